"""What a training of an expert leaves behind comes back with its bits, and runs no code when it is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core_parts import identical
from targetopt.arrays import DamagedFile
from targetopt.imitation.experts import plain, replay, snapshot
from targetopt.imitation.experts.checkpoint import Checkpoint

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(
        [np.float32(0.1), np.int64(-3), np.arange(3), np.zeros((0, 2)), np.array(True)]
    )
    | st.sampled_from([torch.arange(4, dtype=torch.uint8), torch.tensor(0.1), torch.zeros(2, 0)])
)
TREES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inside, max_size=3)
    ),
    max_leaves=8,
)


def shape(tree: Any) -> Any:
    """Types and bits, to be compared by ``==``."""
    if isinstance(tree, dict):
        return dict, [(shape(k), shape(v)) for k, v in tree.items()]
    if isinstance(tree, list | tuple):
        return type(tree), [shape(each) for each in tree]
    if isinstance(tree, np.ndarray | np.generic | torch.Tensor):
        array = np.asarray(tree)
        return type(tree), array.dtype, array.shape, array.tobytes()
    return type(tree), tree


@given(tree=TREES)
@settings(max_examples=20, deadline=None)
def test_trees_come_back_with_their_types_and_bits(
    tree: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tree") / "state.npz"
    plain.write(path, tree)
    assert shape(plain.read(path)) == shape(tree)


def test_a_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    for kind in (np.random.PCG64, np.random.MT19937):
        generator = np.random.Generator(kind(3))
        generator.normal(size=5)
        plain.write(tmp_path / "state.npz", [generator])
        [again] = plain.read(tmp_path / "state.npz")
        assert again.normal(size=4).tolist() == generator.normal(size=4).tolist()


@pytest.mark.parametrize("value", [object(), {1: {2}}, [lambda: 0], np.array([None]), Path("x")])
def test_what_is_not_plain_is_refused(value: Any, tmp_path: Path) -> None:
    assert not plain.is_plain(value)
    with pytest.raises(TypeError, match="is not plain"):
        plain.write(tmp_path / "state.npz", value)
    assert not list(tmp_path.iterdir())


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.mkdir, (self.path,))


def test_a_malicious_checkpoint_runs_no_code(tmp_path: Path) -> None:
    bad = Malicious(tmp_path / "made")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.path.write_bytes(pickle.dumps(bad))
    with pytest.raises(replay.BrokenCheckpoint, match="cannot be read"):
        checkpoint.read()
    array = np.empty(1, object)
    array[0] = bad
    np.savez(checkpoint.path, tree=array, allow_pickle=True)
    with pytest.raises(replay.BrokenCheckpoint, match="cannot be read"):
        checkpoint.read()
    assert not bad.path.exists()


@example(place=1081, byte=255)  # the archive's directory before the beginning of the file
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=40, deadline=None)
def test_a_changed_byte_is_survived(
    place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tree") / "state.npz"
    tree = {"a": [np.arange(5.0), 1, 2.5], "b": (torch.ones(2), "x", np.random.default_rng(0))}
    plain.write(path, tree)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        plain.read(path)
    except DamagedFile:
        return


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"code": 1}', '{"array": 7}', '{"dict": 3}', '{"dict": [[{"list": []}, 1]]}', "{", "{}",
     '{"generator": {"dict": [["bit_generator", "RandomState"]]}}'],
)  # fmt: skip
def test_a_tree_of_another_form_is_damaged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    np.savez(path, tree=np.frombuffer(text.encode(), np.uint8))
    with pytest.raises(DamagedFile, match="is damaged"):
        plain.read(path)


def test_a_checkpoint_without_a_part_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.read() is None
    for content in ({"about": {}}, 3):
        plain.write(checkpoint.path, content)
        with pytest.raises(replay.BrokenCheckpoint, match=r"checkpoint\.npz cannot be read"):
            checkpoint.read()


def test_no_state_takes_the_place_of_a_method_or_reaches_beyond_an_array() -> None:
    env = gymnasium.make("Hopper-v5")
    env.reset(seed=0)
    state = snapshot.take_environment(env)
    assert state is not None
    integers = {name for name, x in state[-1]["data"].items() if np.asarray(x).dtype.kind != "f"}
    assert not integers
    for layer, name, value in [
        (0, "step", 3),
        (-1, "model", 3),
        (-1, "data", {**state[-1]["data"], "qpos": np.zeros(99)}),
        (-1, "data", {"qpos": np.zeros(6)}),
    ]:
        wrong = [dict(each) for each in state]
        wrong[layer][name] = value
        with pytest.raises(ValueError, match=f"{name} is no state|shape|another version"):
            snapshot.put_environment(env, wrong)
    env.step(np.zeros(3, np.float32))
    assert identical(np.shape(env.unwrapped.data.qpos), (6,))
    env.close()
