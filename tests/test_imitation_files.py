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
from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.policies import weights

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
