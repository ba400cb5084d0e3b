"""Policy and expert files from anybody: whatever is in them, a clear refusal or a network, and no code run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from targetopt import BadArgument
from targetopt import imitation as im
from targetopt.imitation.expert import NetworkExpert, load_expert
from targetopt.imitation.policies import weights
from targetopt.imitation.policies.network import Network

ODD: list[Any] = [None, [], {}, [[]], "x", -1, 3, True, 10**400]
ARRAYS = [
    np.zeros(0),
    np.zeros((2, 2)),
    np.zeros((1, 1, 1)),
    np.zeros((4, 0)),
    np.array([np.nan, 1.0]),
    np.array([np.inf, 1.0]),
]


def policy(directory: Path) -> Path:
    return im.GaussianPolicy(4, 2, hidden=(3,)).save(directory / "policy.safetensors")


def expert(directory: Path) -> Path:
    made = NetworkExpert(
        im.load_policy(policy(directory)).numpy(),
        "tanh",
        low=-1.0,
        high=1.0,
        environment="E",
        family="f",
        observation_mean=np.zeros(4),
        observation_std=np.ones(4),
        observation_clip=5.0,
        card={"steps": 1},
    )
    return made.save(directory / "expert.safetensors")


KINDS = {"policy": (policy, im.load_policy), "expert": (expert, im.load_expert)}


def put(path: Path, arrays: dict[str, np.ndarray], header: object) -> Path:
    path.write_bytes(save(arrays, metadata={weights.KEY: json.dumps(header)}))
    return path


def changes(arrays: dict[str, np.ndarray], header: dict[str, Any]):
    """The same file with one part missing or replaced: what, its arrays, its header."""
    for other in (*ODD, [header]):
        yield f"header {other!r:.20}", arrays, other
    for key, old in header.items():
        yield f"without {key}", arrays, {k: v for k, v in header.items() if k != key}
        for value in ODD:
            if not isinstance(value, type(old)):
                yield f"{key}={value!r:.20}", arrays, {**header, key: value}
    for key in header.get("learner", ()):
        parts = header["learner"]
        rest = {k: v for k, v in parts.items() if k != key}
        yield f"learner without {key}", arrays, {**header, "learner": rest}
        for value in ODD:
            if value != "x" or key != "class":
                yield (
                    f"learner {key}={value!r:.20}",
                    arrays,
                    {**header, "learner": {**parts, key: value}},
                )
    for name in arrays:
        if name != "observation.clip":  # which need not be there
            rest = {k: v for k, v in arrays.items() if k != name}
            yield f"without {name}", rest, header
        for array in ARRAYS:
            yield f"{name} of {array.shape}", {**arrays, name: array}, header


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_that_is_missing_or_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    make, load = KINDS[kind]
    path = make(tmp_path)
    tried = list(changes(*weights.read(path, kind)))
    assert len(tried) > 80
    accepted, refusals = set(), []
    for what, arrays, header in tried:
        try:
            load(put(path, arrays, header))
            accepted.add(what)
        except BadArgument as error:
            refusals.append(str(error))
    assert all(str(path) in refusal for refusal in refusals)
    # an action box may be without bounds, if every action has one
    assert accepted <= {"action.high of (2,)"}


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_and_cuts(kind: str, tmp_path: Path) -> None:
    make, load = KINDS[kind]
    path = make(tmp_path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    spoiled = [good[:at] for at in range(0, len(good), 11)]
    for at in range(len(good)):
        flipped = bytes([good[at] ^ 1 << int(rng.integers(8))])
        spoiled.append(good[:at] + flipped + good[at + 1 :])
    refused = 0
    for content in spoiled:
        path.write_bytes(content)
        try:
            load(path)  # a flip in a weight is another weight
        except BadArgument:
            refused += 1
    assert refused > len(good) // 11


def test_widths_in_a_header_take_no_memory(tmp_path: Path) -> None:
    path = policy(tmp_path)
    arrays, header = weights.read(path, "policy")
    header["learner"]["widths"] = [4, 10**9, 2]
    with pytest.raises(BadArgument, match="its weights are too few for layers of"):
        im.load_policy(put(path, arrays, header))


def test_a_type_in_a_header_is_a_type_and_nothing_else_of_torch(tmp_path: Path) -> None:
    path = policy(tmp_path)
    arrays, header = weights.read(path, "policy")
    for name in ("hub", "load", "int64", "torch.Tensor"):
        header["learner"]["dtype"] = name
        with pytest.raises(BadArgument, match="damaged policy file"):
            im.load_policy(put(path, arrays, header))


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "..", "Hopper-v5-sac/../Hopper-v5"])
def test_an_environment_s_name_leads_to_no_other_file(name: str) -> None:
    with pytest.raises(BadArgument, match="no expert for environment"):
        im.load_expert(name)


def test_scales_of_observations_are_positive() -> None:
    network = im.GaussianPolicy(4, 2, mean="linear").numpy()
    for std in (0.0, -1.0, np.inf):
        with pytest.raises(BadArgument, match=r"observation_std=.* must be positive and finite"):
            NetworkExpert(
                network, "tanh", low=-1, high=1, observation_mean=0.0, observation_std=std
            )
    with pytest.raises(BadArgument, match="low=1 must lie below high=-1"):
        NetworkExpert(network, "tanh", low=1, high=-1)


@pytest.mark.parametrize("kind", ["fixed", "of the state"])
def test_an_expert_keeps_the_deviation_of_its_actions(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = [((4, 3), 4), ((2, 4), 2)]
    layers = [(rng.standard_normal(shape), rng.standard_normal(out)) for shape, out in shapes]
    network = Network([w for w, _ in layers], [b for _, b in layers], "tanh")
    weight, bias = rng.standard_normal((2, 4)), np.array([-1.0, 0.5])
    log_std = bias if kind == "fixed" else (weight, bias)
    statistics = {"observation_mean": [1.0, 2.0, 3.0], "observation_std": [2.0, 1.0, 0.5]}
    expert = NetworkExpert(network, "tanh", low=-1.0, high=2.0, log_std=log_std, **statistics)
    states = rng.standard_normal((5, 3))
    hidden = np.tanh((states - [1, 2, 3]) / [2, 1, 0.5] @ layers[0][0].T + layers[0][1])
    slope = 0.0 if kind == "fixed" else hidden @ weight.T
    expected = np.broadcast_to(np.exp(np.minimum(slope + bias, 2.0)), (5, 2))
    np.testing.assert_allclose(expert.deviation(states), expected, rtol=1e-13)
    again = load_expert(expert.save(tmp_path / "expert.safetensors"))
    np.testing.assert_array_equal(again.deviation(states), expert.deviation(states))


def test_an_expert_without_a_deviation_says_so() -> None:
    expert = NetworkExpert(Network([np.eye(2)], [np.zeros(2)]), "clip", low=-1.0, high=1.0)
    with pytest.raises(BadArgument, match="has no log_std"):
        expert.deviation(np.zeros((1, 2)))
    wrong = (np.zeros((2, 3)), np.zeros(2))
    with pytest.raises(BadArgument, match=r"must have the shapes \(2, 2\) and \(2,\)"):
        NetworkExpert(expert.network, "clip", low=-1.0, high=1.0, log_std=wrong)
