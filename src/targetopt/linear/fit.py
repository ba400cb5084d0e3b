"""`fit`: a linear model trained by SSO or by a baseline, from the data to the weights.

Methods whose rule, inner solver and loss all have kernels, each registered for exactly its class, run in
compiled loops without returning to Python at each step. Everything else runs one `SSO.step` after
another, with the same result: see `engine`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from targetopt.inner import LBFGS, Exact, Inner
from targetopt.linear.baselines import Baseline
from targetopt.linear.coordinates import FORMS
from targetopt.linear.design import LARGEST, design
from targetopt.linear.engine import COUNTS, Setup, Steps, checked_steps
from targetopt.linear.engines import engine_of
from targetopt.linear.sampling import Batches, Sampling
from targetopt.losses import Logistic, Loss
from targetopt.rules import GradientStep, Rule
from targetopt.schedules import Constant, Schedule, factor
from targetopt.types import BadArgument, Counts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """What `fit` found.

    Attributes:
        theta: the weights, shape ``(d,)``.
        bias: the bias; 0.0 if none was asked for.
        records: arrays of equal length: ``step``, ``epoch``, the counts, ``loss`` (the objective on
            all data, ½·weight_decay·‖θ‖² included) and ``grad_norm`` (of its gradient in θ).
        counts: what was paid for.
        forms: steps made in each form; empty for baselines.
        steps: outer steps made.
        diverged: the run was stopped because the targets left the finite numbers.
        state: hand it to ``fit(..., state=)`` to go on.
    """

    theta: Array
    bias: float
    records: dict[str, Array]
    counts: Counts
    forms: dict[str, int]
    steps: int
    diverged: bool
    state: dict[str, Any]


class Run:
    """A run of `fit`, step by step: ``advance``, ``measure``, ``state_dict``, and again.

    The arguments are those of `fit`.

    Example:
        >>> import targetopt as to
        >>> X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
        >>> run = Run(X, y, inner=to.Armijo(max_steps=5), batch_size=2)
        >>> run.advance(10), run.steps
        (True, 10)
        >>> bool(run.measure()["loss"] < np.log(2))
        True
    """

    def __init__(
        self,
        X: Any,
        y: ArrayLike,
        *,
        loss: Callable[[torch.Tensor], Loss] = Logistic,
        rule: Rule | None = None,
        inner: Inner | None = None,
        baseline: Baseline | None = None,
        lr: float | None = None,
        schedule: Schedule | None = None,
        batch_size: int | None = None,
        sampling: Sampling = "epochs",
        seed: int = 0,
        weight_decay: float = 0.0,
        bias: bool = False,
        start: ArrayLike | None = None,
        form: str | None = None,
    ) -> None:
        self.design = design(X)
        self.has_bias = bias
        if bias:
            self.design = self.design.with_bias()
        self.design.runs.add(self)
        self.n = self.design.shape[0]
        if not callable(loss):
            raise BadArgument(
                f"loss={loss!r} must make a loss from labels, as to.losses.Logistic does; pass the class itself"
            )
        self.loss = loss(torch.as_tensor(self._checked_labels(y)))
        self.weight_decay = _checked_number("weight_decay", weight_decay, zero=True)
        if lr is not None:
            lr = _checked_number("lr", lr, zero=False)
        if form is not None and form not in FORMS:
            raise BadArgument(f"form={form!r} must be one of {FORMS}, or None for the cheapest")
        if baseline is not None:
            self._check_baseline(baseline, rule, inner, lr)
        if schedule is not None and not callable(schedule):
            raise BadArgument(
                f"schedule={schedule!r} must be callable, such as to.schedules.inverse_sqrt()"
            )
        self.schedule: Schedule = Constant() if schedule is None else schedule
        self.baseline = baseline
        self.batches = Batches(self.n, batch_size, seed, sampling)
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.steps = 0
        self._engine = engine_of(
            Setup(
                design=self.design,
                loss=self.loss,
                rule=GradientStep() if rule is None else rule,
                inner=_usual_inner(rule) if inner is None else inner,
                baseline=baseline,
                lr=lr,
                weight_decay=self.weight_decay,
                start=self._checked_start(start),
                form=form,
                steps_per_epoch=self.steps_per_epoch,
            )
        )
        self._beginning = self.state_dict()

    @staticmethod
    def _check_baseline(
        baseline: Baseline, rule: Rule | None, inner: Inner | None, lr: float | None
    ) -> None:
        if not isinstance(baseline, Baseline):
            raise BadArgument(
                f"baseline={baseline!r} must be one such as to.linear.baselines.SGD() (with its parentheses)"
            )
        if rule is not None or inner is not None:
            raise BadArgument(
                f"baseline={baseline!r} has neither rule nor inner solver: those are SSO's. Pass one "
                "or the other."
            )
        if lr is None:
            raise BadArgument(
                f"{type(baseline).__name__} needs lr=, its step in parameter space; "
                "to.baselines.linear_smoothness gives L_θ, of which 1/(2 L_θ) is SGD's."
            )

    def _checked_labels(self, y: ArrayLike) -> Array:
        if isinstance(y, torch.Tensor):
            y = y.detach().cpu().numpy()
        labels = np.asarray(y)
        if labels.dtype.kind not in "biuf":
            raise BadArgument(f"y must hold numbers; got dtype {labels.dtype}")
        if labels.shape != (self.n,):
            raise BadArgument(
                f"y must have one label per row of X, shape ({self.n},); got {labels.shape}. For "
                "several outputs use to.SSO with a to.Linear forward."
            )
        labels = labels.astype(np.float64)
        largest = float(np.abs(labels).max())
        if not largest < LARGEST:  # nan too
            raise BadArgument(
                f"y must be finite and below {LARGEST:g} in size, since losses square it; the largest label "
                f"has the size {largest:g}. Clean or rescale the labels."
            )
        return labels

    def _checked_start(self, start: ArrayLike | None) -> Array:
        d = self.design.shape[1]
        if start is None:
            return np.zeros(d)
        theta = np.array(start, dtype=np.float64)
        if theta.shape != (d,) or not np.isfinite(theta).all():
            last = ", the bias last," if self.has_bias else ""
            raise BadArgument(
                f"start must be {d} finite numbers{last} shape ({d},); got shape {theta.shape}"
            )
        return theta

    @property
    def theta(self) -> Array:
        """The parameters, the bias last."""
        return self._engine.theta

    @property
    def counts(self) -> Counts:
        """What was paid for so far."""
        made = self._engine.counts
        return Counts(**{name: int(c) for name, c in zip(COUNTS, made, strict=False)})

    @property
    def forms(self) -> dict[str, int]:
        """Steps made in each form so far."""
        made = self._engine.counts[len(COUNTS) :]
        return {name: int(c) for name, c in zip(FORMS, made, strict=True) if c}

    def restart(self, seed: int) -> None:
        """Stand at the start again, before the batches of another seed; nothing is validated anew.

        Example:
            >>> import targetopt as to
            >>> run = Run(
            ...     np.eye(3), [1, -1, 1], inner=to.Exact(), batch_size=1, sampling="independent"
            ... )
            >>> losses = []
            >>> for seed in range(5):
            ...     run.restart(seed)
            ...     run.advance(20) and losses.append(run.measure()["loss"])
            >>> bool(np.mean(losses) < 0.2)
            True
        """
        self.load_state_dict(self._beginning)
        was = self.batches
        self.batches = Batches(was.n, was.batch_size, seed, was.sampling, was.echo)

    def advance(self, steps: int, path: Array | None = None) -> bool:
        """Make so many outer steps; False if the run diverged (it then stands before that step).

        Args:
            steps: how many.
            path: takes θ after each of them, a C-contiguous float64 array of shape ``(steps, d)``; SSO
                only.
        """
        first, goal = self.steps, self.steps + steps
        if path is not None:
            self._check_path(path, steps)
        while self.steps < goal:
            order, ends, place = self.batches.draw(self.steps)
            count = min(goal - self.steps, ends.size - place)
            at = range(self.steps + 1, self.steps + 1 + count)
            multipliers = np.array([factor(self.schedule, t) for t in at])
            done = self.steps - first
            piece = self._NO_PATH if path is None else path[done : done + count]
            made = self._engine.advance(Steps(self.steps, order, ends, place, multipliers), piece)
            self.steps += made
            if made < count:
                return False
        return bool(np.isfinite(self.theta).all())

    _NO_PATH = np.empty((0, 0))

    def _check_path(self, path: Array, steps: int) -> None:
        wanted = (steps, self.theta.size)
        if self.baseline is not None:
            raise BadArgument(
                f"path= is kept for SSO only; this run is {self.baseline!r}. Call advance(1) instead."
            )
        if path.shape != wanted or path.dtype != np.float64 or not path.flags.c_contiguous:
            raise BadArgument(
                f"path must be a C-contiguous float64 array of shape {wanted}; got {path.dtype} "
                f"{path.shape}. np.empty({wanted}) makes one."
            )

    def measure(self) -> dict[str, float]:
        """The objective on all data and the norm of its gradient, at the present θ."""
        theta, decay = self.theta, self.weight_decay
        with np.errstate(over="ignore", invalid="ignore"):
            z = torch.from_numpy(self.design.matvec(theta))
            slope = self.loss.gradient(z).numpy()
            gradient = self.design.rmatvec(slope / self.n) + decay * theta
            return {
                "loss": float(self.loss.value(z).mean()) + 0.5 * decay * float(theta @ theta),
                "grad_norm": float(np.sqrt(gradient @ gradient)),
            }

    def state_dict(self) -> dict[str, Any]:
        """All that changes during a run, copied: numbers, arrays, and dictionaries of such."""
        return {"steps": self.steps, **self._engine.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; the run then is the same, bit for bit.

        Every part is checked for its shape, type and range; after an error the run is as it was.
        """
        steps = checked_steps(state)
        self._engine.load(state)
        self.steps = steps


def _usual_inner(rule: Rule | None) -> Inner:
    quadratic = rule is not None and rule.everywhere and rule.uniform
    return Exact() if quadratic else LBFGS()


def _checked_number(name: str, value: Any, *, zero: bool) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (0.0 < number < math.inf or (zero and number == 0.0)):
        raise BadArgument(f"{name}={value!r} must be {'≥ 0' if zero else 'positive'} and finite")
    return number


def fit(
    X: Any,
    y: ArrayLike,
    *,
    loss: Callable[[torch.Tensor], Loss] = Logistic,
    rule: Rule | None = None,
    inner: Inner | None = None,
    baseline: Baseline | None = None,
    lr: float | None = None,
    schedule: Schedule | None = None,
    batch_size: int | None = None,
    sampling: Sampling = "epochs",
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    weight_decay: float = 0.0,
    bias: bool = False,
    start: ArrayLike | None = None,
    form: str | None = None,
    record_at: Iterable[int] | None = None,
    state: dict[str, Any] | None = None,
) -> Fit:
    """Minimise (1/n) Σ ℓ_i(x_i·θ) + ½·weight_decay·‖θ‖² by SSO, or by a baseline, in compiled loops.

    The iterates are those of `to.SSO` with a `to.Linear` forward (``weight_decay=l2``) on the same
    batches, which `Batches` gives; they differ by rounding only.

    Args:
        X: dense or scipy sparse, shape ``(n, d)``.
        y: labels, shape ``(n,)``, as the loss takes them (±1 for Logistic).
        loss: makes the loss from the labels: ``to.losses.Logistic``, or for Huber's delta
            ``lambda y: to.losses.Huber(y, delta=2.0)``.
        rule: a target-space rule; `GradientStep` by default.
        inner: an inner solver; `LBFGS` by default, and `Exact` for a rule whose surrogate is of all data
            (`Memory`), which compiled loops solve with a matrix that they factor once.
        baseline: one of `targetopt.linear.baselines` instead of rule and inner.
        lr: η (``None``: the rule's own, 1/(2L) for most); for baselines the parameter step.
        schedule: multiplies ``lr``, as in `to.SSO`; for SLS, the step that was found.
        batch_size: ``None`` for all examples.
        sampling: ``"epochs"``, shuffled passes over the data, or ``"independent"``, every batch drawn
            uniformly from all examples, whatever came before (see `Batches`).
        epochs: how often to make ⌈n / batch_size⌉ steps; or give
        steps: outer steps to make.
        seed: of the batches.
        weight_decay: λ, on the bias too, as in `to.SSO`.
        bias: whether to fit a bias.
        start: θ_0, the bias last; zeros by default.
        form: ``"dual"``, ``"primal"`` or ``"matvec"`` for every step; the cheapest by default.
        record_at: step numbers at which to measure (0 is the start); by default the start and the
            end of each epoch.
        state: of an earlier `Fit`, to go on from there.

    Example:
        >>> import scipy.sparse as sp, targetopt as to
        >>> rng = np.random.default_rng(0)
        >>> X = sp.random_array((200, 50), density=0.2, rng=rng, format="csr")
        >>> y = np.sign(X @ rng.normal(size=50))
        >>> found = fit(
        ...     X, y, inner=to.Armijo(max_steps=20), batch_size=25, epochs=5, weight_decay=1e-3
        ... )
        >>> found.steps, found.counts.oracle_calls, found.counts.inner_steps
        (40, 40, 800)
        >>> bool(found.records["loss"][-1] < 0.5 * found.records["loss"][0])
        True
    """
    run = Run(
        X,
        y,
        loss=loss,
        rule=rule,
        inner=inner,
        baseline=baseline,
        lr=lr,
        schedule=schedule,
        batch_size=batch_size,
        sampling=sampling,
        seed=seed,
        weight_decay=weight_decay,
        bias=bias,
        start=start,
        form=form,
    )
    if state is not None:
        run.load_state_dict(state)
    last = run.steps + _steps_to_make(epochs, steps, run.steps_per_epoch)
    wanted = _checked_record_at(record_at, run.steps, last, run.steps_per_epoch)
    rows: list[dict[str, float]] = []
    alive = True
    for stop in [*wanted, last]:
        alive = run.advance(stop - run.steps)
        if stop in wanted and (not rows or rows[-1]["step"] != stop):
            rows.append(_row(run))
        if not alive:
            break
    theta = run.theta.copy()
    return Fit(
        theta=theta[:-1] if bias else theta,
        bias=float(theta[-1]) if bias else 0.0,
        records={name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())},
        counts=run.counts,
        forms=run.forms,
        steps=run.steps,
        diverged=not alive,
        state=run.state_dict(),
    )


def _row(run: Run) -> dict[str, float]:
    counts = {name: getattr(run.counts, name) for name in COUNTS}
    epoch = run.steps / run.steps_per_epoch
    return {"step": run.steps, "epoch": epoch, **counts, **run.measure()}


def _steps_to_make(epochs: int | None, steps: int | None, per_epoch: int) -> int:
    if (epochs is None) == (steps is None):
        raise BadArgument(
            f"give epochs= or steps=, one of them; got epochs={epochs!r}, steps={steps!r}"
        )
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise BadArgument(f"{name}={value!r} must be a whole number ≥ 0")
    return int(value) if epochs is None else int(value) * per_epoch


def _checked_record_at(
    record_at: Iterable[int] | None, begin: int, last: int, per_epoch: int
) -> list[int]:
    if record_at is None:
        ends = range(begin + per_epoch - begin % per_epoch, last + 1, per_epoch)
        return sorted({begin, *ends, last})
    wanted = sorted({int(step) for step in record_at})
    if wanted and not begin <= wanted[0] <= wanted[-1] <= last:
        raise BadArgument(
            f"record_at holds step {wanted[0] if wanted[0] < begin else wanted[-1]}; this run makes "
            f"steps {begin} … {last}"
        )
    return wanted
