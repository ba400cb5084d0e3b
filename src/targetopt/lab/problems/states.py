"""Saved states, checked by shape, type and range before a model, an optimiser or a kernel sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from targetopt.types import BadArgument, Counts


def check_keys(state: Any, names: Sequence[str]) -> None:
    """Refuse what is no dictionary with exactly these parts."""
    if not isinstance(state, dict) or state.keys() != set(names):
        raise BadArgument(f"the state does not have the parts {', '.join(names)} and no others")


def check_tensor(name: str, value: Any, *, like: Tensor, finite: bool = True) -> None:
    """Refuse what is no tensor of this shape and type, or has numbers that are not finite but should be."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise BadArgument(f"{name} is a {type(value).__name__}, not a dense tensor")
    if value.shape != like.shape or value.dtype != like.dtype:
        raise BadArgument(
            f"{name} has shape {tuple(value.shape)} and type {value.dtype}; this run needs "
            f"{tuple(like.shape)} and {like.dtype}"
        )
    if finite and value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise BadArgument(f"{name} has numbers that are not finite")


def checked_count(name: str, value: Any) -> int:
    """A whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise BadArgument(f"{name} is {value!r}, not a whole number from 0 on")
    return value


def checked_counts(found: Any) -> Counts:
    """Counts from a dictionary of them."""
    names = vars(Counts()).keys()
    if not isinstance(found, dict) or found.keys() != names:
        raise BadArgument(f"counts are {found!r}, not a dictionary of {', '.join(names)}")
    return Counts(**{name: checked_count(name, found[name]) for name in names})


def load_model(model: nn.Module, state: Any) -> None:
    """Fill a model with parameters and buffers that are all of the right shape, type and range."""
    usual = model.state_dict()
    if not isinstance(state, dict) or state.keys() != usual.keys():
        raise BadArgument(f"the model's state does not have the parts {', '.join(usual)}")
    for name, mine in usual.items():
        if isinstance(mine, Tensor):
            check_tensor(f"model[{name!r}]", state[name], like=mine)
    model.load_state_dict(state)


def load_optimiser(optimiser: torch.optim.Optimizer, state: Any) -> None:
    """Fill one of torch's optimisers, which by itself believes whatever it is given.

    What it keeps for a parameter is a tensor of the parameter's shape, or a number.
    """
    groups = optimiser.param_groups
    usual = optimiser.state_dict()["param_groups"]
    fits = isinstance(state, dict) and {"state", "param_groups"} <= state.keys()
    if not fits or [_plan(group) for group in state["param_groups"]] != [_plan(g) for g in usual]:
        raise BadArgument("the optimiser's state is not one of this method and this model")
    parameters = [parameter for group in groups for parameter in group["params"]]
    for place, kept in state["state"].items():
        if not isinstance(kept, dict):
            raise BadArgument(f"the optimiser's state of parameter {place!r} is not a dictionary")
        if type(place) is not int or not 0 <= place < len(parameters):
            raise BadArgument(f"the optimiser's state has a parameter {place!r}")
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.ndim > 0:
                check_tensor(f"optimiser[{place}][{name!r}]", value, like=parameters[place])
    optimiser.load_state_dict(state)


def _plan(group: Any) -> Any:
    """What must not differ between a saved group and ours: the keys, and which parameters it has."""
    return (sorted(map(str, group)), group.get("params")) if isinstance(group, dict) else None
