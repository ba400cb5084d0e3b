"""What passes between the seams: the oracle's answer, the step's report, and the errors.

Convention, stated once for the whole package. Targets ``z = f(θ)`` have shape ``(n,)`` or
``(n, …)`` with one row per example; a loss gives one number per example; everything is averaged::

    ℓ(z) = (1/n) Σ ℓ_i(z_i)      ⟨a, b⟩ = (1/n) Σ a_i · b_i      g_i = ∂ℓ_i(z_i)/∂z_i

so the target step η does not depend on the batch size, and duplicating every example changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

Forward = Callable[[], Tensor]
"""A user's ``lambda: model(x)``: the targets at the current parameters."""

State = dict[str, Any]
"""Explicit state of a rule or inner solver: tensors and plain numbers, nothing else."""


class TargetoptError(Exception):
    """Base of every error this package raises on purpose."""


class BadArgument(TargetoptError, ValueError):
    """An argument has a value it cannot have."""


class BadAnswer(TargetoptError, ValueError):
    """The oracle answered with the wrong shape, type, or with values that are not finite."""


class BadForward(TargetoptError, RuntimeError):
    """The forward is not a function of the parameters alone, or gives unusable targets."""


class MissingCapability(TargetoptError, TypeError):
    """A method needs something its partner does not offer: "X needs Y. Z has none. Use W."."""


class Diverged(TargetoptError, ArithmeticError):
    """The inner solver left the finite numbers; the parameters were put back."""


@dataclass(frozen=True)
class TargetPoint:
    """What the oracle said of the targets ``z_t``: one expensive call.

    Attributes:
        targets: ``z_t``, detached, one row per example.
        losses: ``ℓ_i(z_i)``, shape ``(n,)``.
        gradients: ``∂ℓ_i/∂z_i``, shaped like ``targets``.
        curvature: gives ``∂²ℓ_i/∂z_i²`` at ``z_t`` when called, shaped like ``targets`` if it is
            diagonal, with one more axis if each example has a matrix; ``None`` if unknown.
        value: gives the losses of other targets (a line-search asks this); ``None`` if unknown.
        smoothness: ``L``, the largest curvature of one example's loss; ``None`` if unknown.
        index: the data rows these examples are, for rules that remember each example.
    """

    targets: Tensor
    losses: Tensor
    gradients: Tensor
    curvature: Callable[[], Tensor] | None = None
    value: Callable[[Tensor], Tensor] | None = None
    smoothness: float | None = None
    index: Tensor | None = None

    @property
    def loss(self) -> Tensor:
        """ℓ(z_t), the mean of the losses."""
        return self.losses.mean()

    @property
    def gradient_norm_squared(self) -> Tensor:
        """‖g‖² in the mean inner product."""
        return self.gradients.square().sum() / self.gradients.shape[0]


@dataclass(frozen=True)
class Counts:
    """Exact numbers of calls: what was paid for the steps that were finished.

    ``oracle_calls`` are gradient-oracle calls (the expensive ones), ``value_calls`` loss-only calls
    of a line-search, ``forward_calls`` calls of the model, ``backward_calls`` vector-Jacobian
    products through it, ``jvp_calls`` Jacobian-vector products, ``inner_steps`` parameter updates.

    A step that raised, or a ``tell`` that did, is counted nowhere, though it may have called the model
    and the oracle: steps are atomic, and their counts with them. Where refused answers are billed too,
    count in the oracle itself.
    """

    oracle_calls: int = 0
    value_calls: int = 0
    inner_steps: int = 0
    forward_calls: int = 0
    backward_calls: int = 0
    jvp_calls: int = 0

    def __add__(self, other: Counts) -> Counts:
        names = [item.name for item in fields(Counts)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class StepReport(Counts):
    """What one outer step did. Counts are of this step alone; ``opt.totals`` has the sums.

    Attributes:
        step: number of this outer step, from 1.
        loss: ℓ(z_t) before the update, as the oracle said (without the weight-decay term).
        gradient_norm: ‖g_t‖ in target space (mean inner product).
        eta: the target step η_t the rule settled on (for diagonal rules, the mean of theirs).
        surrogate_decrease: q_t(θ_t) − q_t(θ_{t+1}), weight decay included; nan for plain SGD
            steps (``GradientDescent(max_steps=1)``), which do not look where they land.
        stop_reason: why the inner solver stopped: ``"max-steps"``, ``"gradient"``,
            ``"decrease"``, ``"line-search"`` (no smaller value to be found), ``"exact"``, or
            ``"zero-step"`` (η is 0 and nothing moves: a schedule brought it there, and rules
            remember nothing, or `LineSearch` found no step).
        memory: for rules that remember each example: ``"per example"`` when ``index=`` was given,
            ``"per position"`` when rows of successive batches were taken for the same examples.
        form: how a linear forward was solved (``"dual"``, ``"primal"``, ``"matvec"``), else ``""``.
    """

    step: int = 0
    loss: float = float("nan")
    gradient_norm: float = float("nan")
    eta: float = float("nan")
    surrogate_decrease: float = float("nan")
    stop_reason: str = ""
    memory: str = ""
    form: str = ""


@dataclass
class Query:
    """The targets that wait for the oracle's answer (``opt.ask`` makes it, ``opt.tell`` ends it).

    It can be pickled and told in another process: all but the live graph travels.

    Attributes:
        targets: z_t, what the oracle must be asked about.
        step: outer steps finished before this one.
        index: the data rows, if they were given.
        rng: generator states before the forward, if it is random.
        buffers: what the buffers that the forward moves held before it.
        forward_calls: calls of the forward that asking took.
        regularised: whether ``regularise_on=`` was given.
        live: the graph, in the process that asked.
    """

    targets: Tensor
    step: int
    index: Tensor | None = None
    rng: list[tuple[str, Tensor]] = field(default_factory=list)
    buffers: list[Tensor | None] = field(default_factory=list)
    forward_calls: int = 1
    regularised: bool = False
    live: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None}


def checked_whole(owner: str, name: str, value: Any, least: int) -> int:
    """``value`` as Python's int, refused unless it is a whole number (numpy's too) ``≥ least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise BadArgument(f"{owner}: {name}={value!r} must be a whole number ≥ {least}")
    return int(value)


def settle_whole(part: Any, *names: str, least: int = 1) -> None:
    """Check these fields of a frozen dataclass, in its ``__post_init__``, and keep them as Python's ints."""
    for name in names:
        whole = checked_whole(type(part).__name__, name, getattr(part, name), least)
        object.__setattr__(part, name, whole)


HALF = (torch.float16, torch.bfloat16)
"""Types for the model, not for the arithmetic on it: 11 or 8 bits, and float16 ends at 65504."""


def wide(t: Tensor) -> Tensor:
    """``t``, dense and of at least float32, for sums, differences and steps that half precision would lose."""
    t = t.to_dense() if t.is_sparse else t
    return t.float() if t.dtype in HALF else t


def finite_rows(tensor: Tensor) -> Tensor:
    """Boolean per row: every entry of the row is finite."""
    return torch.isfinite(tensor).reshape(tensor.shape[0], -1).all(dim=1)


def total(scalars: Sequence[Tensor]) -> float:
    """The sum of 0-d tensors, with one wait for the device (one each if they live on several)."""
    if len({t.device for t in scalars}) == 1:
        return float(sum(scalars[1:], start=scalars[0]))
    return sum(float(t) for t in scalars)


def all_finite(*tensors: Tensor) -> bool:
    """Whether every entry is finite; one pass over the data when it is."""
    if math.isfinite(total([t.detach().sum() for t in tensors])):
        return True
    return all(bool(torch.isfinite(t).all()) for t in tensors)  # or the sum overflowed
