"""What passes between the seams: the oracle's answer, the step's report, and the errors (from ``errors.py``).

Convention, stated once for the whole package. Targets ``z = f(θ)`` have shape ``(n,)`` or
``(n, …)`` with one row per example; a loss gives one number per example; everything is averaged::

    ℓ(z) = (1/n) Σ ℓ_i(z_i)      ⟨a, b⟩ = (1/n) Σ a_i · b_i      g_i = ∂ℓ_i(z_i)/∂z_i

so the target step η does not depend on the batch size, and duplicating every example changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.errors import BadAnswer as BadAnswer
from targetopt.errors import BadArgument as BadArgument
from targetopt.errors import BadForward as BadForward
from targetopt.errors import Diverged as Diverged
from targetopt.errors import MissingCapability as MissingCapability
from targetopt.errors import TargetoptError as TargetoptError

if TYPE_CHECKING:
    from targetopt.losses import Loss
    from targetopt.surrogate import Surrogate

Forward = Callable[[], Tensor]
"""A user's ``lambda: model(x)``: the targets at the current parameters."""

State = dict[str, Any]
"""Explicit state of a rule or inner solver: tensors and plain numbers, nothing else."""


@dataclass(frozen=True)
class TargetPoint:
    """What the oracle said of the targets ``z_t``: one expensive call.

    Attributes:
        targets: ``z_t``, detached, one row per example.
        losses: ``ℓ_i(z_i)``, shape ``(n,)``; ``None`` if the oracle knows gradients alone (as in reinforcement
            learning). Rules that compare losses refuse such an answer.
        gradients: ``∂ℓ_i/∂z_i``, shaped like ``targets``.
        curvature: gives ``∂²ℓ_i/∂z_i²`` at ``z_t`` when called, shaped like ``targets`` if it is
            diagonal, with one more axis if each example has a matrix; ``None`` if unknown.
        value: gives the losses of other targets (a line-search asks this); ``None`` if unknown.
        smoothness: ``L``, the largest curvature of one example's loss; ``None`` if unknown.
        index: the data rows these examples are, for rules that remember each example.
        data: what else the oracle says of each row, by name; tensors with one entry per row, for rules that know
            what they mean.
        weights: how much each row counts, shape ``(n,)``, not negative; ``None`` if all count alike. The mean inner
            product is then (1/n) Σ w_i a_i · b_i, in the loss and in the divergence.
        scales: how far each row may go beside the others, shape ``(n,)``, positive: row i has the step η·scales_i.
            ``None`` if all have η.
        interactions: steps of an environment that this answer has cost.
        revealed: the loss itself, if the answer reveals it everywhere (labels); ``None`` if not.
        majoriser: a function that is nowhere below the loss and equal to it at ``z_t`` (its mean over the
            rows), if the oracle knows one; ``None`` if not.
        penalty: ½λ‖θ_t‖², which the step's objective has beside the loss; `core` fills it in.
        earlier: the targets that these rows had at the point where the last step began, for rules that
            judge their steps (`Rule.looks_back`); `core` evaluates them.
        everything: the targets of all data at this point, if ``regularise_on=`` was given; `core` evaluates
            them.
    """

    targets: Tensor
    losses: Tensor | None
    gradients: Tensor
    curvature: Callable[[], Tensor] | None = None
    value: Callable[[Tensor], Tensor] | None = None
    smoothness: float | None = None
    index: Tensor | None = None
    revealed: Loss | None = None
    majoriser: Surrogate | None = None
    penalty: float = 0.0
    earlier: Tensor | None = None
    everything: Tensor | None = None
    data: Mapping[str, Tensor] | None = None
    weights: Tensor | None = None
    scales: Tensor | None = None
    interactions: int = 0

    @property
    def loss(self) -> Tensor:
        """ℓ(z_t), the (weighted) mean of the losses; 0 where nobody knows them: surrogates have any constant then."""
        if self.losses is None:
            return self.gradients.new_zeros(())
        return present().mean(self.losses if self.weights is None else self.weights * self.losses)

    def weighted(self, rows: Tensor) -> Tensor:
        """``rows`` times the weights of the rows; as they are if all count alike."""
        if self.weights is None:
            return rows
        return self.weights.reshape(-1, *[1] * (rows.ndim - 1)) * rows

    def etas(self, eta: float) -> float | Tensor:
        """The steps of the rows: ``eta`` itself, or η·scales_i, shape ``(n,)``."""
        return eta if self.scales is None else eta * self.scales

    @property
    def gradient_norm_squared(self) -> float:
        """‖g‖² in the mean inner product; beyond float32's range too, where gradients are float32."""
        world = present()
        squared = float(world.mean(self.gradients.square()))
        if 0.0 < squared < math.inf or not self.gradients.numel():
            return squared
        # squares that left the range of the type
        largest = world.largest(float(self.gradients.abs().max()))
        if not 0.0 < largest < math.inf:
            return squared
        return largest * largest * float(world.mean((self.gradients / largest).square()))

    def query(self, z: Tensor) -> TargetPoint:
        """This answer itself: it is an oracle for the one question it answers.

        An error in the middle of a step hands back what the oracle had said (``error.answer``), and
        ``opt.step(forward, error.answer)`` does the step without another call.
        """
        if z.shape != self.targets.shape:
            raise BadAnswer(
                f"this answer belongs to targets of shape {tuple(self.targets.shape)}; the forward gives "
                f"{tuple(z.shape)}. Ask the oracle again."
            )
        rows = differing_rows(z, self.targets)
        if rows:
            raise BadAnswer(
                f"this answer belongs to other targets: {len(rows)} of {z.shape[0]} rows differ ({shown(rows)}). "
                "It serves the very step that was interrupted, with parameters, batch and generator as they "
                "were. Ask the oracle again."
            )
        return self


@dataclass(frozen=True)
class Counts:
    """Exact numbers of calls: what was paid for the steps that were finished.

    ``oracle_calls`` are gradient-oracle calls (the expensive ones), ``value_calls`` loss-only calls
    of a line-search, ``forward_calls`` calls of the model, ``backward_calls`` vector-Jacobian
    products through it, ``jvp_calls`` Jacobian-vector products, ``inner_steps`` parameter updates,
    ``interactions`` steps of an environment that the answers have cost.

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
    interactions: int = 0

    def __add__(self, other: Counts) -> Counts:
        names = [item.name for item in fields(Counts)]
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class StepReport(Counts):
    """What one outer step did. Counts are of this step alone; ``opt.totals`` has the sums.

    Attributes:
        step: number of this outer step, from 1.
        loss: ℓ(z_t) before the update, as the oracle said (without the weight-decay term); nan if it said none.
        gradient_norm: ‖g_t‖ in target space (mean inner product).
        eta: the target step η_t the rule settled on (for diagonal rules, the mean of theirs).
        surrogate_decrease: q_t(θ_t) − q_t(θ_{t+1}), weight decay included; nan for plain SGD
            steps (``GradientDescent(max_steps=1)``), which do not look where they land.
        stop_reason: why the inner solver stopped: ``"max-steps"``, ``"gradient"``, ``"relative-error"``,
            ``"price"`` (``max_steps="auto"``: a further step is worth less than an oracle call),
            ``"decrease"``, ``"line-search"`` (no smaller value to be found), ``"exact"``, or
            ``"zero-step"`` (η is 0 and nothing moves: a schedule brought it there, and rules
            remember nothing, or `LineSearch` found no step), or ``"refused"`` (the rule looked at what came out
            and would not have it: nothing moves).
        memory: for rules that remember each example: ``"per example"`` when ``index=`` was given,
            ``"per position"`` when rows of successive batches were taken for the same examples.
        form: how a linear forward was solved (``"dual"``, ``"primal"``, ``"matvec"``), else ``""``.
        ratio: ρ, for rules that compare the last step's actual decrease with the predicted one
            (`TrustRegion`); nan if there was nothing to compare.
        accepted: whether the point that was asked about is kept. If not, this step began at the last
            accepted point, to which the parameters went back first.
        steps_at: after how many inner steps ``max_steps="auto"`` would have stopped if an oracle call cost
            1, 10, 100 or 1000 of them; a price is missing if it would have gone on. Only solvers that look
            at the surrogate after every step know it.
        solves: inner solves of this step: more than 1 if the rule looked at what came out and had it solved again
            with another η (`Rule.reconsider`). Counts are of all of them, `surrogate_decrease` of the last.
        measures: what the rule measured of the step, by name (KL and entropy of a policy, say); with ``scales=``,
            ``least_eta`` and ``most_eta`` of the rows.
    """

    step: int = 0
    loss: float = float("nan")
    gradient_norm: float = float("nan")
    eta: float = float("nan")
    surrogate_decrease: float = float("nan")
    stop_reason: str = ""
    memory: str = ""
    form: str = ""
    ratio: float = float("nan")
    accepted: bool = True
    steps_at: dict[int, int] = field(default_factory=dict)
    solves: int = 1
    measures: dict[str, float] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether all numbers are the same; numbers that are not known are.

        >>> StepReport(step=1) == StepReport(step=1), StepReport(step=1) == StepReport(step=2)
        (True, False)
        """
        if not isinstance(other, StepReport):
            return NotImplemented
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return all(ours == theirs or (ours != ours and theirs != theirs) for ours, theirs in pairs)


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
        digest: of the parameters at which the question was asked (`opt.ask` takes it).
        ids: the names of the rows, if they were given: an answer must carry the same.
        scales: how far each row may go beside the others, if it was given.
        regularised: whether ``regularise_on=`` was given.
        live: the graph, in the process that asked.
        seconds: how long the forward took.
        asked: when it was asked, by the clock of the process that asked.
    """

    targets: Tensor
    step: int
    index: Tensor | None = None
    rng: list[tuple[str, Tensor]] = field(default_factory=list)
    buffers: list[Tensor | None] = field(default_factory=list)
    forward_calls: int = 1
    digest: str = ""
    ids: list[Any] | None = None
    scales: Tensor | None = None
    regularised: bool = False
    live: Any = field(default=None, repr=False, compare=False)
    seconds: float = field(default=0.0, repr=False, compare=False)
    asked: float | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "live": None, "asked": None}

    def export(self, path: str | PathLike[str], **columns: object) -> None:
        """Write the question to a file for whoever answers it, ``.parquet`` or ``.jsonl``.

        It has one row per example: ``id`` (the ids or the index given to ``ask``, else 0, 1, 2, …),
        ``targets``, and ``question``, a digest that answers may carry along. `Answers.read` reads what
        comes back.

        Args:
            path: a new file.
            columns: more columns, such as ``inputs=texts``, one entry per row.
        """
        from targetopt.oracle import answers

        answers.export(self, path, **columns)


def differing_rows(now: Tensor, asked: Tensor, computed_in: torch.dtype | None = None) -> list[int]:
    """Rows in which two evaluations of the same targets differ by more than rounding.

    An entry may be off by ε^⅔ of its own size and of the typical (median) size, with ε of the type in
    which the targets were computed: what another processor or thread count does to a forward, and far less
    than another batch or a changed parameter does.

    >>> differing_rows(torch.tensor([1e-3, 2.0]), torch.tensor([2e-3, 2.0]))
    [0]
    """
    asked = asked.to(now)
    size = asked.abs()
    typical = size.median() if bool(size.median() > 0) else size.mean()
    allowed = torch.finfo(computed_in or now.dtype).eps ** (2 / 3) * (size + typical)
    off = ~((now - asked).abs() <= allowed)
    return list(off.reshape(off.shape[0], -1).any(dim=1).nonzero()[:, 0].tolist())


def shown(rows: Sequence[Any], most: int = 10) -> str:
    """The first few of them, for a message.

    >>> shown([3, 7]), shown(range(20), most=3)
    ('3, 7', '0, 1, 2, …')
    """
    return ", ".join(map(str, rows[:most])) + (", …" if len(rows) > most else "")


def checked_whole(owner: str, name: str, value: Any, least: int) -> int:
    """``value`` as Python's int, refused unless it is a whole number (numpy's too) ``≥ least``.

    The message begins with the owner, if there is one.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        whose = f"{owner}: " if owner else ""
        raise BadArgument(f"{whose}{name}={value!r} must be a whole number ≥ {least}")
    return int(value)


def positive_int(name: str, value: int) -> int:
    """The value of an option that counts something, numpy's whole numbers included."""
    return checked_whole("", name, value, 1)


def as_number(value: Any) -> float:
    """The number that ``value`` is (of Python, numpy or torch), or nan for what is none.

    >>> as_number(3), as_number("3")
    (3.0, nan)
    """
    if isinstance(value, (str, bytes, bool)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def settle_whole(part: Any, *names: str, least: int = 1) -> None:
    """Check these fields of a frozen dataclass, in its ``__post_init__``, and keep them as Python's ints."""
    for name in names:
        whole = checked_whole(type(part).__name__, name, getattr(part, name), least)
        object.__setattr__(part, name, whole)


def check_entries(owner: str, state: Any, **kinds: Callable[[Any], bool]) -> None:
    """Refuse a loaded state with an entry that ``owner`` cannot have written.

    Args:
        owner: whose state it is, for the message.
        state: what was loaded.
        kinds: for each entry that is known, whether a value is one that can stand there.
    """
    if not isinstance(state, dict):
        raise BadArgument(
            f"{owner}: the saved state must be a dictionary; got {type(state).__name__}. Use a state_dict() "
            "that was saved whole."
        )
    for name, fits in kinds.items():
        if name in state and not fits(state[name]):
            value = state[name]
            said = (
                f"a tensor of {value.dtype}, shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else repr(value)
            )
            raise BadArgument(
                f"{owner}: the saved state is damaged: {name} is {said}, which this version never writes. Go "
                "back to an earlier checkpoint, or begin with a fresh optimiser."
            )


def is_positive(value: Any) -> bool:
    """Whether it is a finite number > 0 (for `check_entries`)."""
    return isinstance(value, Real) and 0.0 < as_number(value) < math.inf


def is_table(value: Any) -> bool:
    """Whether it is a tensor of finite numbers with rows (for `check_entries`)."""
    tensor = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0
    return tensor and bool(torch.isfinite(value).all())


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
