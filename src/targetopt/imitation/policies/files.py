"""Policies from files, and from what a checkpoint says of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from targetopt.imitation.policies import weights
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.choices import ChoicePolicy
from targetopt.imitation.policies.learner import OWN
from targetopt.imitation.policies.policy import GaussianPolicy
from targetopt.imitation.simulation.observations import Observations
from targetopt.types import BadArgument

DTYPES = {"torch.float32": torch.float32, "torch.float64": torch.float64}
"""What the networks that are made here may consist of, by the name that files give it."""

EXTRAS = ("std", "action.low", "action.high")
"""Arrays in a file that are no part of the network."""


def load_policy(path: str | Path, learner: nn.Module | None = None) -> Policy:
    """The policy that ``policy.save(path)`` wrote, bit for bit.

    Args:
        path: the file.
        learner: the module that the weights belong to, built as it was built when the policy was
            trained. It is needed for networks of your own, because loading a file never runs code that
            the file names. A policy (a subclass of yours, say) is filled and returned.

    Example:
        >>> import tempfile
        >>> policy = GaussianPolicy(4, 2, mean="linear", seed=3)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     again = load_policy(policy.save(Path(directory) / "policy.safetensors"))
        >>> torch.equal(policy(torch.ones(1, 4).double()), again(torch.ones(1, 4).double()))
        True
    """
    arrays, header = weights.read(path, "policy")
    source = repr(str(path))
    try:
        box = {name: arrays.pop(name) for name in EXTRAS if name in arrays}
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        policy = rebuilt(header["learner"], tensors, box, learner, source)
        policy.environment = header["environment"]
        policy.provenance = header["provenance"]
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, BadArgument) and source in str(error):
            raise
        raise BadArgument(f"{source} is a damaged policy file: {error}") from error
    return policy


def rebuilt(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    extras: Mapping[str, Any],
    learner: nn.Module | None,
    source: str,
) -> Policy:
    """A policy from what a file says of it: its description, its weights, its std and action box."""
    widths = description["widths"]
    if learner is None and description["mean"] == OWN:
        raise BadArgument(
            f"{source} holds the weights of a network of your own, {description['class']}. Pass the module they belong "
            f"to, learner={description['class'].rpartition('.')[2]}(...). It was built as\n{description['modules']}"
        )
    if isinstance(learner, Policy):
        learner.take_extras(extras)
        policy = learner
    else:
        made: dict[str, Any] = {"mean": learner}
        if learner is None:
            _check_room(widths, tensors, source)
            made = {"mean": description["mean"], "dtype": DTYPES[description["dtype"]]}
            made["hidden"] = widths[1:-1]
        policy = _made(description, extras, made)
    policy.fill(tensors, source)
    return policy


def _made(
    description: Mapping[str, Any], extras: Mapping[str, Any], network: dict[str, Any]
) -> Policy:
    widths = description["widths"]
    layout: int | Observations = widths[0]
    if "observations" in description:
        layout = Observations.described(description["observations"])
        if layout.size != widths[0]:
            raise ValueError(
                f"its observations have {layout.size} numbers, its network takes {widths[0]}"
            )
    if "choices" in description:
        return ChoicePolicy(layout, description["choices"], **network)
    box = {"low": extras["action.low"], "high": extras["action.high"]}
    std = description.get("std", extras["std"])
    return GaussianPolicy(layout, len(extras["std"]), std=std, **box, **network)


def _check_room(widths: list[int], tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse widths that the file has no weights for, before memory is taken."""
    needed = sum((before + 1) * after for before, after in pairwise(widths))
    # single arrays that are missing are named by `fill`
    if needed > 10 * sum(tensor.numel() for tensor in tensors.values()):
        raise BadArgument(
            f"{source} is a damaged policy file: its weights are too few for layers of {widths}"
        )
