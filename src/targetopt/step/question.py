"""What the oracle is asked, from the moment of asking to that of the answer, in this process or another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import local
from targetopt.step.determinism import FrozenForward
from targetopt.step.journal import Journal
from targetopt.step.targets import Targets
from targetopt.types import BadArgument, BadForward, Query, differing_rows, shown


@dataclass
class Live:
    """A query in the process that asked it: its graph serves the first inner gradient, once."""

    frozen: FrozenForward
    z: Tensor | None
    versions: list[int]


def joined(query: Query, targets: Targets, journal: Journal) -> tuple[Live, Tensor, int]:
    """The query's graph, and the forwards it took to make it again.

    Within a step the live one serves. In `tell` the forward is evaluated anew, in whatever process:
    a closure may mean something else by then, and it is the one the inner loop will call.
    """
    versions = [local(p)._version for p in targets.params]
    live: Live | None = query.live
    if (
        live is not None
        and live.z is not None
        and live.frozen.forward is targets
        and live.versions == versions
    ):
        return live, live.z, 0
    if query.digest and query.digest != digest(targets.params):
        raise BadForward(
            "the parameters are not those at which the oracle was asked: they changed between ask and tell (or "
            "others are trained now). Load the parameters as they were at ask, and pass the same forward."
        )
    with torch.enable_grad():
        if live is None:
            frozen = FrozenForward(targets, [str(p.device) for p in targets.params], journal)
            live = Live(frozen, None, [])
            z = frozen.rejoin(query.rng, query.buffers)
            calls = 2 if query.buffers else 1
        else:
            live.z = None  # its memory first
            live.frozen.continued(journal)
            z = live.frozen.retake(targets)
            calls = 1
    now = z.detach()[: targets.batch]
    same_shape = now.shape == query.targets.shape
    rows = differing_rows(now, query.targets, targets.computed_in) if same_shape else []
    if rows or not same_shape:
        what = (
            f"{len(rows)} of {now.shape[0]} rows differ: {shown(rows)}"
            if same_shape
            else f"their shape is {tuple(now.shape)} and was {tuple(query.targets.shape)}"
        )
        raise BadForward(
            f"the forward no longer gives the targets the oracle was asked about ({what}): the "
            "batch or the model's mode changed between ask and tell. Load the parameters as they were "
            "at ask, and pass the same forward."
        )
    live.z, live.versions = z, versions
    query.live = live
    return live, z, calls


def digest(params: Sequence[Tensor]) -> str:
    """A fingerprint of the parameters' values, the same in every process and on every device."""
    found = hashlib.blake2b(digest_size=16)
    for p in params:
        values = local(p.detach()).cpu().contiguous().reshape(-1)
        found.update(f"{p.dtype} {tuple(p.shape)} ".encode())
        found.update(values.view(torch.uint8).numpy().data)
    return found.hexdigest()


def checked_ids(ids: Sequence[Any] | None, rows: int) -> list[Any] | None:
    """The ids of a query's rows: one each, all different."""
    if ids is None:
        return None
    names = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    try:
        distinct = len(set(names))
    except TypeError:
        distinct = -1
    if len(names) != rows or distinct != rows:
        raise BadArgument(
            f"ids= must name each of the {rows} rows differently, by strings or whole numbers; got {len(names)}, "
            f"{'not all hashable' if distinct < 0 else f'{distinct} different ones'}"
        )
    return names


def checked_index(index: Tensor | None, z: Tensor) -> Tensor | None:
    if index is None:
        return None
    try:
        index = torch.as_tensor(index, device=z.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadArgument(
            f"index= must be whole numbers, the data rows of this batch ({error}). Number the examples 0, 1, 2, … "
            "by their place in the data set."
        ) from error
    if index.is_floating_point() or index.dtype == torch.bool or index.shape != z.shape[:1]:
        raise BadArgument(
            f"index= must be one whole number per example, shape ({z.shape[0]},): the data rows of this "
            f"batch; got {index.dtype} of shape {tuple(index.shape)}"
        )
    if (index < 0).any():
        raise BadArgument(f"index= has a negative row, {int(index.min())}; rows count from 0")
    return index.to(torch.long, copy=True)
