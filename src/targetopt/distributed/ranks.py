"""The ranks of a process group, and how they meet: one message from everybody to everybody."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from targetopt.distributed.world import ALONE, World, inhabited, local, present, replicas
from targetopt.errors import BadArgument, RankFailed
from targetopt.types import TargetPoint

SLOTS = 64
"""Numbers in one message; a meeting is one such message from everybody to everybody."""

WORDS = 600
"""Bytes of an error's text that the other ranks get to read."""

BUCKET = 1 << 22
"""Entries up to which gradients are put together for one all-reduce."""

_known: dict[int, Ranks] = {}


def world_of(group: Any = "auto") -> World:
    """The world of a process group.

    Args:
        group: a group of ``torch.distributed``; ``"auto"`` for the default group if there is one and it has more than
            one rank; ``None`` for this process alone.

    Example:
        >>> world_of("auto").size  # no process group here
        1
    """
    if group is None:
        return ALONE
    if not (dist.is_available() and dist.is_initialized()):
        if group == "auto":
            return ALONE
        raise BadArgument(
            "group= was given, and torch.distributed is not initialised: call init_process_group first"
        )
    chosen: Any = dist.group.WORLD if group == "auto" else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise BadArgument(
            f"group={group!r} must be a process group of torch.distributed that this rank belongs to, 'auto' or None"
        )
    if chosen.size() == 1:
        return ALONE
    known = _known.get(id(chosen))
    if known is None or known.group is not chosen:
        known = _known[id(chosen)] = Ranks(chosen)
    return known


def together(group: Any, doing: str) -> AbstractContextManager[World]:
    """What one rank fails to do in this block, no rank does: each gets an error that says who failed and why."""
    world = world_of(group)
    return _shared(world, doing) if isinstance(world, Ranks) else nullcontext(world)


@contextmanager
def _shared(world: Ranks, doing: str) -> Iterator[World]:
    try:
        with inhabited(world):
            yield world
    except RankFailed:  # everybody knows
        raise
    except BaseException as error:
        world.tell_failure(f"failed in {doing}: {type(error).__name__}: {error}")
        raise


class Ranks(World):
    """The ranks of a process group.

    Every meeting begins with one message of fixed size from each rank, which says whether that rank has failed. So a
    rank that cannot go on takes part in whatever meeting the others come to next, and nobody waits for it. Ranks that
    have died are noticed by the connection or by the group's time-out.

    The messages go through a gloo group of their own beside the given one, because they are numbers of the
    processor and must not be mistaken for what models send (DDP, FSDP). Gradients go through the given group.

    Args:
        group: of ``torch.distributed``; its time-out is used.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.lost = ""
        self._talk = dist.new_group(
            dist.get_process_group_ranks(group),
            timeout=_timeout(group),
            backend="gloo",
            use_local_synchronization=True,
        )

    # -- meetings -------------------------------------------------------------------------------

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of each rank, in the order of the ranks: as many from each."""
        short = len(numbers) <= SLOTS - 1
        found = self._message(0.0, numbers if short else [])
        if short:
            return [row[: len(numbers)] for row in found]
        sent = torch.tensor(numbers, dtype=torch.float64)
        return [part.tolist() for part in self._everybodys(sent)]

    def _message(self, failed: float, numbers: Sequence[float]) -> list[list[float]]:
        sent = torch.zeros(SLOTS, dtype=torch.float64)
        sent[: 1 + len(numbers)] = torch.tensor([failed, *numbers], dtype=torch.float64)
        rows = [part.tolist() for part in self._everybodys(sent)]
        failures = [rank for rank, row in enumerate(rows) if row[0]]
        if failures and not failed:
            raise RankFailed(self._said(failures, self._everybodys(_as_bytes(""))))
        return [row[1:] for row in rows]

    def _said(self, failures: list[int], texts: list[Tensor]) -> str:
        said = "; ".join(f"rank {rank} {_as_text(texts[rank])}" for rank in failures)
        return (
            f"{said}. No rank has done this step: parameters, buffers and states are as they were on all "
            f"{self.size} ranks. This is rank {self.rank}, which did not fail. Mend the cause and call step on every "
            "rank again"
        )

    def _everybodys(self, sent: Tensor) -> list[Tensor]:
        found = [torch.empty_like(sent) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(found, sent, group=self._talk))
        return found

    def _do(self, work: Callable[[], object]) -> None:
        if self.lost:
            raise RankFailed(self.lost)
        try:
            work()
        except RuntimeError as error:
            self.lost = (
                f"rank {self.rank} has lost the other ranks: one of them has ended, hangs, or is doing something else "
                f"({str(error).strip().splitlines()[-1][:300]}). This step was not done here. The process group "
                "cannot be used any more: end this process, and start all ranks again from the last checkpoint"
            )
            raise RankFailed(self.lost) from error

    def meet(self) -> None:
        self.gather([])

    def tell_failure(self, text: str) -> None:
        """Say at the others' next meeting that this rank has failed."""
        try:
            self._message(1.0, [])
            self._everybodys(_as_bytes(text))
        except RankFailed:
            pass  # nobody is there to be told; this rank's own error says enough

    # -- numbers --------------------------------------------------------------------------------

    def average(self, sums: Tensor, count: int) -> Tensor:
        rows = self.gather([float(count), *_numbers(sums)])
        number = math.fsum(row[0] for row in rows)
        return _shaped([math.fsum(column) / number for column in zip(*rows, strict=True)][1:], sums)

    def sums(self, numbers: Tensor) -> Tensor:
        rows = self.gather(_numbers(numbers))
        return _shaped([math.fsum(column) for column in zip(*rows, strict=True)], numbers)

    def lengths(self, norms: Tensor) -> Tensor:
        return self.sums(norms.square()).sqrt()

    def rows(self, count: int) -> int:
        return int(sum(row[0] for row in self.gather([float(count)])))

    def before(self, count: int) -> int:
        return int(sum(row[0] for row in self.gather([float(count)])[: self.rank]))

    def largest(self, number: float) -> float:
        return max(row[0] for row in self.gather([number]))

    def all(self, truth: bool) -> bool:
        return all(row[0] for row in self.gather([float(truth)]))

    # -- tensors --------------------------------------------------------------------------------

    def joined(self, rows: Tensor) -> Tensor:
        counts = [int(row[0]) for row in self.gather([float(rows.shape[0])])]
        padded = torch.zeros((max(counts), *rows.shape[1:]), dtype=rows.dtype)
        padded[: rows.shape[0]] = rows.detach()
        parts = self._everybodys(padded)
        whole = torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])
        return whole.to(rows.device)

    def first(self, tensor: Tensor) -> Tensor:
        self.gather([])
        sent = tensor.detach().cpu().contiguous()
        source = dist.get_global_rank(self._talk, 0)
        self._do(lambda: dist.broadcast(sent, source, group=self._talk))
        return sent.to(tensor.device)

    def added(self, tensors: list[Tensor]) -> list[Tensor]:
        self.gather([])
        answer: list[Tensor] = list(tensors)
        small: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        seen: set[int] = set()
        for place, tensor in enumerate(tensors):
            alone = tensor.is_contiguous() and tensor.data_ptr() not in seen
            seen.add(tensor.data_ptr())
            if tensor.numel() >= BUCKET:
                answer[place] = tensor if alone else tensor.contiguous().clone()
                self._reduce(answer[place])
            else:
                small.setdefault((tensor.dtype, tensor.device), []).append(place)
        for places in small.values():
            for bucket in _buckets(places, tensors):
                flat = torch.cat([tensors[i].reshape(-1) for i in bucket])
                self._reduce(flat)
                parts = flat.split([tensors[i].numel() for i in bucket])
                for i, part in zip(bucket, parts, strict=True):
                    answer[i] = part.view(tensors[i].shape)
        return answer

    def _reduce(self, tensor: Tensor) -> None:
        self._do(lambda: dist.all_reduce(tensor, group=self.group))

    # -- agreement ------------------------------------------------------------------------------

    def agree(self, settings: str, params: Sequence[Tensor]) -> None:
        marks = [_mark(settings), *_fingerprint(params)]
        rows = self.gather(marks)
        for what, remedy, places in (
            ("settings", f"this rank has {settings}. Build the optimiser alike on all ranks", [0]),
            (
                "parameters",
                "begin from the same ones (the same seed, or broadcast rank 0's), train the same ones, and change them "
                "nowhere but in step",
                [1, 2, 3],
            ),
        ):
            own = [marks[i] for i in places]
            others = [r for r, row in enumerate(rows) if [row[i] for i in places] != own]
            if any([row[i] for i in places] != [rows[0][i] for i in places] for row in rows):
                raise RankFailed(
                    f"the ranks differ in their {what}: rank {self.rank} has others than rank "
                    f"{', '.join(map(str, others)) or 'none'}. Nothing was changed. All ranks must agree: {remedy}"
                )


def agreed(point: TargetPoint) -> TargetPoint:
    """The answer with the smoothness of all ranks' losses: the largest L, unknown if one rank does not know it."""
    world = present()
    if world.size == 1:
        return point
    known = world.largest(math.inf if point.smoothness is None else point.smoothness)
    return replace(point, smoothness=None if math.isinf(known) else known)


def _timeout(group: Any) -> timedelta:
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        if options is not None:
            found: timedelta = options._timeout
            return found
    return dist.default_pg_timeout


def _numbers(tensor: Tensor) -> list[float]:
    found: list[float] = tensor.detach().reshape(-1).double().tolist()
    return found


def _shaped(numbers: list[float], like: Tensor) -> Tensor:
    """As a tensor like this one; a single number keeps all its digits."""
    kind = torch.float64 if like.ndim == 0 else like.dtype
    return torch.tensor(numbers, dtype=kind, device=like.device).view(like.shape)


def _buckets(places: list[int], tensors: list[Tensor]) -> Iterator[list[int]]:
    bucket: list[int] = []
    filled = 0
    for place in places:
        if bucket and filled + tensors[place].numel() > BUCKET:
            yield bucket
            bucket, filled = [], 0
        bucket.append(place)
        filled += tensors[place].numel()
    if bucket:
        yield bucket


def _as_bytes(text: str) -> Tensor:
    raw = text.encode()[:WORDS]
    sent = torch.zeros(WORDS, dtype=torch.uint8)
    sent[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else sent[:0]
    return sent


def _as_text(raw: Tensor) -> str:
    return bytes(raw.tolist()).rstrip(b"\0").decode(errors="replace")


def _mark(text: str) -> float:
    """48 bits of a digest, which a float64 holds exactly."""
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()))


def _fingerprint(params: Sequence[Tensor]) -> list[float]:
    """Of the values of the parameters that are whole on every rank, by a cheap pass over their bits."""
    found = hashlib.blake2b(digest_size=18)
    for p in params:
        found.update(f"{p.dtype} {tuple(p.shape)} ".encode())
        if replicas(p) is None and p.numel():
            bits = local(p).detach().contiguous().reshape(-1)
            size = 1 << (
                17 if bits.device.type == "cpu" else 24
            )  # what a cache holds, or few waits
            for part in bits.view(_WORDS[bits.element_size()]).split(size):
                words = part.to(torch.int64)  # sums and squares run over, which does no harm
                sums = torch.stack([words.sum(), (words * words).sum()])
                found.update(bytes(sums.cpu().view(torch.uint8).tolist()))
    raw = found.digest()
    return [float(int.from_bytes(raw[i : i + 6])) for i in (0, 6, 12)]


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
