"""Whole runs in compiled loops, for methods and losses whose parts are registered, each by its exact class."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from targetopt.inner import Inner
from targetopt.linear import baselines as rivals
from targetopt.linear.coordinates import FORMS
from targetopt.linear.design import Design, SparseDesign
from targetopt.linear.engine import PLACES, Engine, Setup, Steps, checked_part, not_negative
from targetopt.linear.kernels.arguments import (
    BACKWARD_CALLS,
    FIRST,
    FORWARD_CALLS,
    ORACLE_CALLS,
    SECOND,
    Array,
    BaselineSpec,
    Criterion,
    State,
    Stretch,
)
from targetopt.linear.kernels.compiler.jit import prepare
from targetopt.linear.kernels.data.batch import matrix_of
from targetopt.linear.kernels.data.gathered import gathering
from targetopt.linear.kernels.data.pieces import batches_of
from targetopt.linear.kernels.inner.solvers import SOLVERS, solver_spec
from targetopt.linear.kernels.losses import loss_spec
from targetopt.linear.kernels.rules import RULES, rule_spec
from targetopt.linear.kernels.runs import baselines, memory, sso
from targetopt.rules import Rule


def engine(setup: Setup) -> Engine | None:
    """Compiled loops for this run; None if a part has no kernel of its own."""
    baseline, columns = setup.baseline, setup.design.shape[1]
    remembers = baseline is None and memory.runs_in_kernels(setup.rule, setup.inner, columns)
    known = type(baseline) in BASELINES
    if baseline is None:
        known = has(setup.rule, setup.inner, columns)
    form = setup.loss.scalar_form() if known else None
    loss = loss_spec(form)
    if form is None or loss is None:
        return None
    labels = np.array(form.labels.numpy(), dtype=np.float64)
    objective = Criterion(labels, loss, setup.weight_decay)
    if remembers:
        return memory.CompiledMemory(setup, objective)
    if baseline is None:
        return _CompiledSso(setup, objective)
    return _CompiledBaseline(setup, objective, baseline)


def has(rule: Rule, inner: Inner, columns: int = 1) -> bool:
    """Whether both have kernels of their own, on a matrix with so many columns."""
    if not inner.prescribed:
        return False
    if type(rule) in RULES and type(inner) in SOLVERS:
        return True
    return memory.runs_in_kernels(rule, inner, columns)


class _Compiled:
    """What compiled engines share: the arrays that kernels change."""

    def __init__(self, setup: Setup, objective: Criterion, memory: Array, numbers: Any) -> None:
        self.setup, self.objective = setup, objective
        self.theta = setup.start.copy()
        self.counts = np.zeros(PLACES, np.int64)
        self._memory, self._numbers = memory, np.array(numbers, dtype=np.float64)

    @property
    def _arrays(self) -> State:
        return State(self.theta, self._memory, self._numbers, self.counts)

    def state(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self._arrays._asdict().items()}

    def load(self, state: dict[str, Any]) -> None:
        theta = checked_part(state, "theta", self.theta)
        memory = checked_part(state, "memory", self._memory)
        numbers = checked_part(state, "numbers", self._numbers, nan_means_none=True)
        not_negative(state, "numbers", numbers)
        counts = checked_part(state, "counts", self.counts)
        self.theta, self._memory, self._numbers, self.counts = theta, memory, numbers, counts


class _CompiledSso(_Compiled):
    def __init__(self, setup: Setup, objective: Criterion) -> None:
        kernel, solver = RULES[type(setup.rule)], SOLVERS[type(setup.inner)]
        batches = [gathering()] if setup.steps_per_epoch > 1 else []
        prepare(sso.running(), solver.pointer.request, *batches, kernel.pointer.request)
        self._rule = rule_spec(setup.rule, setup.lr, setup.loss.smoothness)
        self._solver = solver_spec(setup.inner)
        self._form = -1 if setup.form is None else FORMS.index(setup.form)
        memory = np.zeros((3, setup.design.shape[0] if kernel.remembers else 0))
        numbers = [self._solver.first_step, kernel.number(setup.rule)]
        super().__init__(setup, objective, memory, numbers)

    def advance(self, steps: Steps, path: Array) -> int:
        stretch = Stretch(steps.order, steps.ends, steps.first, steps.multipliers)
        X, state = self.setup.design, self._arrays
        movable = _movable(X, self.objective)
        if movable is None or not movable.gains_by_order or path.size > 0:
            columns, own = None, state
        else:
            X, columns = movable.by_use
            own = state._replace(theta=state.theta[columns])
        made, count = 0, stretch.multipliers.size
        while made < count:  # as many at once as were gathered
            at = stretch.first + made
            with batches_of(X, stretch, at, self._solver.exact) as piece:
                most = min(piece.last - at, count - made)
                done = sso.run(
                    piece.gathered,
                    at - piece.first,
                    self.objective,
                    self._rule,
                    self._solver,
                    self._form,
                    stretch.multipliers[made : made + most],
                    own,
                    path[made : made + most],
                )
            made += done
            if done < most:
                break
        if columns is not None:
            state.theta[columns] = own.theta
        return made


class BaselineKernel(NamedTuple):
    """A baseline's numbers, given the batches of an epoch; and its number and its table at first."""

    spec: Callable[[Any, int], BaselineSpec]
    accumulated: Callable[[Any], float] = lambda baseline: 0.0
    memory: Callable[[Any], float] = lambda baseline: 0.0


_PLAIN = BaselineSpec(
    searches=False,
    norms=False,
    corrects=False,
    averages=False,
    scales=False,
    c=0.0,
    shrink=0.0,
    restarts=False,
    growth=1.0,
    max_backtracks=0,
    beta1=0.0,
    beta2=0.0,
    eps=0.0,
)


def _search(baseline: rivals.SLS, batches_per_epoch: int) -> BaselineSpec:
    grows = baseline.reset == "grow"
    return _PLAIN._replace(
        searches=True,
        c=float(baseline.c),
        shrink=float(baseline.shrink),
        restarts=baseline.reset == "restart",
        growth=float(baseline.growth ** (1.0 / batches_per_epoch)) if grows else 1.0,
        max_backtracks=baseline.max_backtracks,
    )


def _averages(baseline: rivals.Adam, batches_per_epoch: int) -> BaselineSpec:
    beta1, beta2 = map(float, baseline.betas)
    return _PLAIN._replace(averages=True, beta1=beta1, beta2=beta2, eps=float(baseline.eps))


BASELINES: dict[type[rivals.Baseline], BaselineKernel] = {
    rivals.SGD: BaselineKernel(lambda baseline, batches: _PLAIN),
    rivals.SLS: BaselineKernel(_search),
    rivals.AdaGradNorm: BaselineKernel(
        lambda baseline, batches: _PLAIN._replace(norms=True),
        accumulated=lambda baseline: baseline.initial**2,
    ),
    rivals.SVRG: BaselineKernel(lambda baseline, batches: _PLAIN._replace(corrects=True)),
    rivals.Adam: BaselineKernel(_averages),
    rivals.Adagrad: BaselineKernel(
        lambda baseline, batches: _PLAIN._replace(scales=True, eps=float(baseline.eps)),
        memory=lambda baseline: baseline.initial_accumulator_value,
    ),
}


class _CompiledBaseline(_Compiled):
    def __init__(self, setup: Setup, objective: Criterion, baseline: rivals.Baseline) -> None:
        kernel = BASELINES[type(baseline)]
        assert setup.lr is not None  # Run has seen to that
        self._lr = setup.lr
        self._spec = kernel.spec(baseline, setup.steps_per_epoch)
        memory = np.full((2, setup.design.shape[1]), kernel.memory(baseline), dtype=np.float64)
        super().__init__(setup, objective, memory, [math.nan, kernel.accumulated(baseline), 0.0])

    def advance(self, steps: Steps, path: Array) -> int:
        per_epoch, count, made = self.setup.steps_per_epoch, steps.multipliers.size, 0
        while made < count:
            position = (steps.number + made) % per_epoch
            most = count - made
            if self._spec.corrects:
                most = min(most, per_epoch - position)
                if position == 0:
                    self._take_snapshot()
            multipliers = steps.multipliers[made : made + most]
            done = self._run(Stretch(steps.order, steps.ends, steps.first + made, multipliers))
            made += done
            if done < most:
                break
        return made

    def _run(self, stretch: Stretch) -> int:
        X, objective, spec, state = self.setup.design, self.objective, self._spec, self._arrays
        sweeps = spec.averages or spec.corrects  # all columns at each step, empty ones for nothing
        movable = _movable(X, objective)
        if movable is None or not (sweeps or movable.gains_by_order):
            return int(baselines.run(matrix_of(X), objective, spec, self._lr, stretch, state))
        X, columns = movable.by_use
        theta, memory, _, _ = state
        some = state._replace(theta=theta[columns], memory=np.ascontiguousarray(memory[:, columns]))
        made = baselines.run(matrix_of(X), objective, spec, self._lr, stretch, some)
        theta[columns], memory[:, columns] = some.theta, some.memory
        return int(made)

    def _take_snapshot(self) -> None:
        """SVRG's: θ̃ and the full gradient of the loss there, one oracle call per batch."""
        X = self.setup.design
        slope = self.setup.loss.gradient(torch.from_numpy(X.matvec(self.theta))).numpy()
        self._memory[FIRST] = self.theta
        self._memory[SECOND] = X.rmatvec(slope / X.shape[0])
        self.counts[[ORACLE_CALLS, FORWARD_CALLS, BACKWARD_CALLS]] += self.setup.steps_per_epoch


def _movable(X: Design, objective: Criterion) -> SparseDesign | None:
    """X if its columns can be reordered and left out: without weight decay nothing happens in empty ones."""
    return X if isinstance(X, SparseDesign) and objective.decay == 0.0 else None
