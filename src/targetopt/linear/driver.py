"""Whole runs on linear models without returning to Python at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from targetopt.inner import LBFGS, Inner
from targetopt.linear import backend, spec
from targetopt.linear.baselines import SVRG, Baseline
from targetopt.linear.operators import design
from targetopt.linear.plain import losses
from targetopt.linear.sampling import Batches, Sampling
from targetopt.losses import Logistic, Loss
from targetopt.rules import FTRL, AdaGrad, AdaGradNorm, GradientStep, Rule
from targetopt.schedules import Constant, Schedule
from targetopt.types import BadArgument, Counts

Array = NDArray[np.float64]

_COUNTS = ("oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls")


@dataclass(frozen=True)
class Fit:
    """What `fit` found.

    Attributes:
        theta: the weights, shape ``(d,)``.
        bias: the bias; 0.0 if none was asked for.
        records: arrays of equal length: ``step``, ``epoch``, the counts, ``loss`` (the objective on
            all data, ½·l2·‖θ‖² included) and ``grad_norm`` (of its gradient in θ).
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
        l2: float = 0.0,
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
        made = loss(torch.as_tensor(self._checked_labels(y)))
        self.loss, smoothness = spec.loss_spec(made), made.smoothness
        self.y = np.array(made.y.numpy(), dtype=np.float64)  # type: ignore[attr-defined]
        if not 0 <= l2 < math.inf:
            raise BadArgument(f"l2={l2!r} must be ≥ 0 and finite")
        if lr is not None and not 0 < lr < math.inf:
            raise BadArgument(f"lr={lr!r} must be positive and finite")
        if form is not None and form not in spec.FORMS:
            raise BadArgument(
                f"form={form!r} must be one of {spec.FORMS}, or None for the cheapest"
            )
        self.l2 = float(l2)
        self.form = -1 if form is None else spec.FORMS.index(form)
        self.schedule: Schedule = Constant() if schedule is None else schedule
        self.batches = Batches(self.n, batch_size, seed, sampling)
        self.steps_per_epoch = self.batches.steps_per_epoch
        self.theta = self._checked_start(start)
        self.steps = 0
        self._counts = np.zeros(spec.FORM_STEPS + len(spec.FORMS), np.int64)
        self.baseline = baseline
        if baseline is None:
            self._set_up_sso(rule, inner, lr, smoothness)
        else:
            self._set_up_baseline(baseline, rule, inner, lr)
        self._beginning = self.state_dict()

    def _set_up_sso(
        self, rule: Rule | None, inner: Inner | None, lr: float | None, smoothness: float | None
    ) -> None:
        rule = GradientStep() if rule is None else rule
        self.rule = spec.rule_spec(rule, lr, smoothness)
        self.solver = spec.solver_spec(LBFGS() if inner is None else inner)
        remembers = isinstance(rule, AdaGrad | FTRL)
        self._memory = np.zeros((3, self.n if remembers else 0))
        number = rule.initial**2 if isinstance(rule, AdaGradNorm) else math.nan
        self._numbers = np.array([self.solver.first_step, number])

    def _set_up_baseline(
        self, baseline: Baseline, rule: Rule | None, inner: Inner | None, lr: float | None
    ) -> None:
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
        self.lr = float(lr)
        self.baseline_spec = baseline.spec(self.steps_per_epoch)
        self._memory = np.full((2, self.design.shape[1]), baseline.initial_memory())
        self._numbers = np.array(baseline.initial_numbers())

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
        return labels.astype(np.float64)

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
    def counts(self) -> Counts:
        """What was paid for so far."""
        return Counts(**{name: int(c) for name, c in zip(_COUNTS, self._counts, strict=False)})

    @property
    def forms(self) -> dict[str, int]:
        """Steps made in each form so far."""
        made = self._counts[spec.FORM_STEPS :]
        return {name: int(c) for name, c in zip(spec.FORMS, made, strict=True) if c}

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
        self.batches = Batches(was.n, was.batch_size, seed, was.sampling)

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
            most = goal - self.steps
            if isinstance(self.baseline, SVRG):
                position = self.steps % self.steps_per_epoch
                most = min(most, self.steps_per_epoch - position)
                if position == 0:
                    self._take_snapshot()
            order, ends, place = self.batches.draw(self.steps)
            count = min(most, ends.size - place)
            multipliers = np.array([self.schedule(self.steps + 1 + t) for t in range(count)])
            done = self.steps - first
            piece = self._NO_PATH if path is None else path[done : done + count]
            made = self._run_chunk(spec.Stretch(order, ends, place, multipliers), piece)
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

    def _run_chunk(self, stretch: spec.Stretch, path: Array) -> int:
        kernels, design = backend.kernels(), self.design
        objective = spec.Objective(self.y, self.loss, self.l2)
        state = spec.State(self.theta, self._memory, self._numbers, self._counts)
        if self.baseline is None:
            rule, solver, form = self.rule, self.solver, self.form
            return int(kernels.run_sso(design, objective, rule, solver, form, stretch, state, path))
        baseline = self.baseline_spec
        return int(kernels.run_baseline(design, objective, baseline, self.lr, stretch, state))

    def _take_snapshot(self) -> None:
        """SVRG's: θ̃ and the full gradient of the loss there, one oracle call per batch."""
        slope = losses.slope(self.loss, self.design.matvec(self.theta), self.y)
        self._memory[spec.FIRST] = self.theta
        self._memory[spec.SECOND] = self.design.rmatvec(slope / self.n)
        for place in (spec.ORACLE_CALLS, spec.FORWARD_CALLS, spec.BACKWARD_CALLS):
            self._counts[place] += self.steps_per_epoch

    def measure(self) -> dict[str, float]:
        """The objective on all data and the norm of its gradient, at the present θ."""
        with np.errstate(over="ignore", invalid="ignore"):
            z = self.design.matvec(self.theta)
            value = losses.value(self.loss, z, self.y).mean()
            slope = losses.slope(self.loss, z, self.y)
            gradient = self.design.rmatvec(slope / self.n) + self.l2 * self.theta
            return {
                "loss": float(value + 0.5 * self.l2 * (self.theta @ self.theta)),
                "grad_norm": float(np.sqrt(gradient @ gradient)),
            }

    def state_dict(self) -> dict[str, Any]:
        """All that changes during a run, copied."""
        return {
            "steps": self.steps,
            "theta": self.theta.copy(),
            "memory": self._memory.copy(),
            "numbers": self._numbers.copy(),
            "counts": self._counts.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`; the run then is the same, bit for bit."""
        own = {"theta": self.theta, "memory": self._memory, "numbers": self._numbers}
        for name, mine in own.items():
            if np.shape(state[name]) != mine.shape:
                raise BadArgument(
                    f"state[{name!r}] has shape {np.shape(state[name])}, this run needs {mine.shape}: it "
                    "was saved by a run with other data or another method"
                )
        self.steps = int(state["steps"])
        self.theta = np.array(state["theta"], dtype=np.float64)
        self._memory = np.array(state["memory"], dtype=np.float64)
        self._numbers = np.array(state["numbers"], dtype=np.float64)
        self._counts = np.array(state["counts"], dtype=np.int64)


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
    l2: float = 0.0,
    bias: bool = False,
    start: ArrayLike | None = None,
    form: str | None = None,
    record_at: Iterable[int] | None = None,
    state: dict[str, Any] | None = None,
) -> Fit:
    """Minimise (1/n) Σ ℓ_i(x_i·θ) + ½·l2·‖θ‖² by SSO, or by a baseline, in compiled loops.

    The iterates are those of `to.SSO` with a `to.Linear` forward (``weight_decay=l2``) on the same
    batches, which `Batches` gives; they differ by rounding only.

    Args:
        X: dense or scipy sparse, shape ``(n, d)``.
        y: labels, shape ``(n,)``, as the loss takes them (±1 for Logistic).
        loss: ``to.losses.Squared``, ``Logistic``, ``Huber`` or ``Poisson``; for Huber's delta,
            ``lambda y: to.losses.Huber(y, delta=2.0)``.
        rule: a quadratic rule; `GradientStep` by default.
        inner: `Armijo`, `GradientDescent`, `LBFGS` (default) or `Exact`.
        baseline: one of `targetopt.linear.baselines` instead of rule and inner.
        lr: η (``None``: the rule's own, 1/(2L) for most); for baselines the parameter step.
        schedule: multiplies ``lr``, as in `to.SSO`; for SLS, the step that was found.
        batch_size: ``None`` for all examples.
        sampling: ``"epochs"``, shuffled passes over the data, or ``"independent"``, every batch drawn
            uniformly from all examples, whatever came before (see `Batches`).
        epochs: how often to make ⌈n / batch_size⌉ steps; or give
        steps: outer steps to make.
        seed: of the batches.
        l2: λ, on the bias too, as SSO's ``weight_decay``.
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
        >>> found = fit(X, y, inner=to.Armijo(max_steps=20), batch_size=25, epochs=5, l2=1e-3)
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
        l2=l2,
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
    counts = {name: getattr(run.counts, name) for name in _COUNTS}
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
