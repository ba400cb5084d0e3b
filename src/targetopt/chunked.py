"""Batches that do not fit into memory: the forward is evaluated piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from targetopt.types import BadArgument, BadForward, positive_int

RngStates = list[tuple[torch.device, Tensor]]


class Chunked:
    """A forward over a batch in pieces, with the memory of one piece, the targets and their gradient.

    Every evaluation runs through the pieces without keeping any graph, and a backward pass evaluates each piece
    once more, as gradient checkpointing does: an inner step costs two forwards and a backward where it cost one of
    each, and nothing else changes. The numbers are those of the whole batch up to rounding. Use it as the forward:
    ``opt.step(to.Chunked(model, x, 32), oracle)``.

    Dropout draws a mask for each piece, and the same one again when that piece is evaluated again. Modules whose
    outputs depend on the other rows of a batch, or whose buffers a forward moves (BatchNorm in training), would
    compute something else in pieces; they are refused.

    Args:
        model: called with each piece; a module, or any function of the piece that uses the parameters.
        batch: a tensor, or a tuple or mapping of tensors with one row per example, which is cut into pieces; or an
            iterable of batches that gives the same ones every time (a ``DataLoader`` with ``shuffle=False``, a list).
        size: rows of one piece, for a batch of tensors. Leave it out for an iterable.
        params: the parameters to train, if ``model`` is not a module.

    A piece that is a tuple or list is given to the model as positional arguments, a mapping as keyword arguments. Of a
    ``DataLoader`` that gives labels too, use ``model=lambda x, y: network(x)`` with ``params=``.

    Example:
        >>> import torch, targetopt as to
        >>> x = torch.arange(6.0, dtype=torch.float64).reshape(6, 1)
        >>> model = torch.nn.Linear(1, 1).double()
        >>> forward = to.Chunked(model, x, size=2)
        >>> opt = to.SSO(model.parameters(), lr=1.0, inner=to.LBFGS(max_steps=20))
        >>> report = opt.step(forward, to.losses.Squared(3 * x))
        >>> bool(torch.allclose(forward(), 3 * x, atol=1e-6))
        True
    """

    def __init__(
        self,
        model: Callable[..., Tensor],
        batch: Tensor | Sequence[Any] | Mapping[str, Tensor] | Iterable[Any],
        size: int | None = None,
        *,
        params: Iterable[Tensor] | None = None,
    ) -> None:
        if not callable(model):
            raise BadArgument(f"Chunked: model={model!r} must be a module or a function of a piece")
        if params is None and not isinstance(model, nn.Module):
            raise BadArgument(
                "Chunked: model is a function, and params= was not given: pass the parameters that it uses, "
                "params=network.parameters()"
            )
        self.model = model
        self._all = list(model.parameters() if params is None else params)  # type: ignore[attr-defined]
        if any(hasattr(p, "to_local") for p in self._all):
            raise BadArgument(
                "Chunked: parameters that are sharded over ranks (FSDP2) cannot be used. Shard the batch over more "
                "ranks, or use gradient checkpointing inside the model."
            )
        self._tensors = _tensors_of(batch)
        if self._tensors and size is None:
            raise BadArgument(
                "Chunked: size= is missing: the number of rows of one piece of this batch"
            )
        if not self._tensors and size is not None:
            raise BadArgument(
                f"Chunked: size={size} was given for {type(batch).__name__}, which is an iterable of batches: its "
                "own pieces are used. Leave size= out, or pass tensors."
            )
        self.size = 0 if size is None else positive_int("Chunked: size", size)
        self.batch = batch

    def count(self) -> int:
        """How many pieces there are; 1 where the batch does not say."""
        if self._tensors:
            return -(-self._tensors[0].shape[0] // self.size)
        return length_hint(self.batch, 1)

    def pieces(self) -> Iterator[Any]:
        """The pieces of the batch, in order."""
        if not self._tensors:
            yield from self.batch
            return
        for begin in range(0, self._tensors[0].shape[0], self.size):
            end = begin + self.size
            batch: Any = self.batch
            if isinstance(batch, Tensor):
                yield batch[begin:end]
            elif isinstance(batch, Mapping):
                yield {name: part[begin:end] for name, part in batch.items()}
            else:
                yield tuple(part[begin:end] for part in batch)

    def __call__(self) -> Tensor:
        self._check_modules()
        params = [p for p in self._all if p.requires_grad]
        _check_autocast(params)
        z: Tensor = _Evaluated.apply(self, *params)
        return z

    def evaluate(self, piece: Any) -> Tensor:
        """The targets of one piece."""
        if isinstance(piece, Mapping):
            z = self.model(**piece)
        elif isinstance(piece, (tuple, list)):
            z = self.model(*piece)
        else:
            z = self.model(piece)
        if not isinstance(z, Tensor):
            raise BadForward(
                f"Chunked: the model must return a tensor of targets for each piece; it returned {type(z).__name__}"
            )
        return z

    def _check_modules(self) -> None:
        for module in self.model.modules() if isinstance(self.model, nn.Module) else ():
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                raise BadForward(
                    f"Chunked: {type(module).__name__} in training takes its statistics over the rows of a piece, not "
                    "of the batch: the targets would depend on how the batch is cut. Put it in evaluation mode "
                    "(module.eval()), or use LayerNorm or GroupNorm, which look at one example at a time."
                )


class _Evaluated(torch.autograd.Function):
    """z = f(θ) of all pieces; backward evaluates them again."""

    @staticmethod
    def forward(ctx: Any, chunked: Chunked, *params: Tensor) -> Tensor:
        devices = sorted({p.device.type for p in params} - {"cpu"})
        states: list[RngStates] = []
        before = _moving(chunked.model)
        targets = _Gathered(chunked.count())
        for piece in chunked.pieces():
            states.append(_generators(devices, states))
            targets.add(chunked.evaluate(piece).detach())
        if not states:
            raise BadForward("Chunked: the batch has no pieces")
        if any(not torch.equal(now, then) for now, then in before):
            raise BadForward(
                "Chunked: the model moves its buffers in every forward, so each piece would see those of the piece "
                "before. Put the modules that do so in evaluation mode (model.eval())."
            )
        ctx.chunked, ctx.states, ctx.params = chunked, states, params
        ctx.rows = targets.counts
        return targets.whole()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        pulled = _Pulled.apply(ctx.chunked, ctx.states, ctx.rows, v, *ctx.params)
        return (None, *pulled)


class _Pulled(torch.autograd.Function):
    """v ↦ Jᵀv piece by piece; its own backward is u ↦ Ju, for solvers that need both (Gauss–Newton)."""

    @staticmethod
    def forward(
        ctx: Any, chunked: Chunked, states: Any, rows: Any, v: Tensor, *params: Tensor
    ) -> Any:
        ctx.chunked, ctx.states, ctx.rows, ctx.params = chunked, states, rows, params
        sums = [torch.zeros_like(p) for p in params]
        for z, part in _again(chunked, states, rows, v):
            found = torch.autograd.grad(z, params, grad_outputs=part, allow_unused=True)
            del z, part  # what a piece needed is free before the next one is evaluated
            for total, g in zip(sums, found, strict=True):
                if g is not None:
                    total.add_(g)
            del found, g
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *u: Tensor) -> Any:
        products = _Gathered(len(ctx.rows))
        like = torch.zeros(sum(ctx.rows), device=u[0].device)
        for z, _ in _again(ctx.chunked, ctx.states, ctx.rows, like):
            dual = torch.zeros_like(z, requires_grad=True)
            transposed = torch.autograd.grad(
                z, ctx.params, grad_outputs=dual, create_graph=True, allow_unused=True
            )
            used = [(t, w) for t, w in zip(transposed, u, strict=True) if t is not None]
            (ju,) = torch.autograd.grad(
                [t for t, _ in used], dual, grad_outputs=[w for _, w in used]
            )
            products.add(ju)
        return (None, None, None, products.whole(), *[None] * len(ctx.params))


def _again(
    chunked: Chunked, states: Any, rows: list[int], v: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each piece's targets with their graph, under the random numbers of the first time, and its part of ``v``."""
    present = _generators([device.type for device, _ in states[0] if device.type != "cpu"])
    begin = 0
    try:
        for piece, state, n in zip(chunked.pieces(), states, rows, strict=True):
            _set(state)
            with torch.enable_grad():
                z = chunked.evaluate(piece)
            if z.shape[0] != n:
                raise BadForward(
                    f"Chunked: a piece gave {z.shape[0]} rows of targets and {n} before. The pieces must be the same "
                    "every time: a DataLoader needs shuffle=False."
                )
            out = (z, v[begin : begin + n])
            del z
            yield out
            del out
            begin += n
    finally:
        _set(present)


class _Gathered:
    """Rows that come piece by piece, in one tensor that is made with the first of them.

    Small tensors that are kept, between large ones that are not, break the memory into parts too small to be used
    again: a batch of many pieces would need several times the memory of one.

    Args:
        pieces: how many there will be, as far as it is known.
    """

    def __init__(self, pieces: int) -> None:
        self.counts: list[int] = []
        self._pieces = pieces
        self._rows: Tensor | None = None

    def add(self, part: Tensor) -> None:
        begin, count = sum(self.counts), part.shape[0]
        if self._rows is None:
            self._rows = part.new_empty((self._pieces * count, *part.shape[1:]))
        elif part.shape[1:] != self._rows.shape[1:]:
            raise BadForward(
                f"Chunked: a piece gave targets of the shape {tuple(part.shape)}, and those before it "
                f"{('rows', *self._rows.shape[1:])}. All rows must have targets of one shape."
            )
        if begin + count > self._rows.shape[0]:
            larger = self._rows.new_empty((2 * (begin + count), *part.shape[1:]))
            larger[:begin] = self._rows[:begin]
            self._rows = larger
        self._rows[begin : begin + count] = part
        self.counts.append(count)

    def whole(self) -> Tensor:
        assert self._rows is not None
        return self._rows[: sum(self.counts)]


def _generators(devices: Sequence[str], known: Sequence[RngStates] = ()) -> RngStates:
    """The states of the random number generators; the last that are known, where nothing was drawn since."""
    elsewhere = [(torch.device(d), torch.get_device_module(d).get_rng_state()) for d in devices]
    present = [(torch.device("cpu"), torch.get_rng_state()), *elsewhere]
    if known and all(torch.equal(a, b) for (_, a), (_, b) in zip(present, known[-1], strict=True)):
        return known[-1]
    return present


def _set(states: RngStates) -> None:
    for device, state in states:
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device.type).set_rng_state(state)


def _moving(model: object) -> list[tuple[Tensor, Tensor]]:
    """The buffers of a model that trains, with copies of them."""
    if not isinstance(model, nn.Module) or not model.training:
        return []
    return [(b, b.detach().clone()) for b in model.buffers() if b is not None]


def _tensors_of(batch: Any) -> list[Tensor]:
    """The tensors that are to be cut, all with as many rows; empty for an iterable of batches."""
    if isinstance(batch, Tensor):
        return [batch]
    if not isinstance(batch, tuple | Mapping):
        return []
    parts = list(batch.values() if isinstance(batch, Mapping) else batch)
    if not parts or not all(isinstance(part, Tensor) and part.ndim for part in parts):
        raise BadArgument(
            "Chunked: a tuple or mapping must hold tensors with one row per example. For batches that are cut already "
            "pass a list of them, or a DataLoader."
        )
    counts = {part.shape[0] for part in parts}
    if len(counts) > 1:
        raise BadArgument(
            f"Chunked: the tensors of the batch must have one row per example; they have {sorted(counts)} rows"
        )
    return parts


def _check_autocast(params: Sequence[Tensor]) -> None:
    """Autocast belongs inside the model: a backward pass would not see one around the forward."""
    if any(torch.is_autocast_enabled(device) for device in {p.device.type for p in params}):
        raise BadForward(
            "Chunked was called inside torch.autocast, which the second evaluation of each piece would not see. Put "
            "autocast inside the model's forward."
        )
