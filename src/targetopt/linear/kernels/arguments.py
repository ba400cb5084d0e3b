"""What kernels take: plain numbers and arrays, in named tuples, and the places in them.

A method's parts reach a kernel as the addresses of their own compiled functions (see `jit`) beside the
numbers that those need. Each part makes its tuple itself: losses in `losses`, rules in `rules`, inner
solvers in `solvers`, baselines in ``linear.baselines``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class LossSpec(NamedTuple):
    """The addresses of the three functions of one target, how many of the
    numbers a, b, c they take after the target and the label, and the μ of a term ½μz² that is added."""

    value: int
    slope: int
    curvature: int
    arity: int
    a: float
    b: float
    c: float
    ridge: float


class Criterion(NamedTuple):
    """The mean loss of the targets, and ½ decay ‖θ‖²."""

    y: Array
    loss: LossSpec
    decay: float


class Point(NamedTuple):
    """What a rule is told: the objective, the batch's rows, their targets z, the slopes there and the mean of
    their squares, and what the schedule multiplies the step by."""

    objective: Criterion
    rows: Index
    z: Array
    slope: Array
    squared: float
    multiplier: float


class Stretch(NamedTuple):
    """Some consecutive steps of a draw of batches.

    Batch t of the draw is ``order[ends[t-1]:ends[t]]``. The steps use those from ``first`` on, one for each
    of the ``multipliers``, which multiply their step sizes.
    """

    order: Index
    ends: Index
    first: int
    multipliers: Array


class State(NamedTuple):
    """All that a run changes, in place: ``memory`` and ``numbers`` are the method's, see below."""

    theta: Array
    memory: Array
    numbers: Array
    counts: Index


# Rows of the memory table: sums (AdaGrad's squares, FTRL's gradients), first targets, times seen.
SUMS, STARTS, TIMES_SEEN = 0, 1, 2
# Places of ``numbers``: the inner solver's carried step and the rule's own number.
INNER_STEP, RULE_NUMBER = 0, 1
# Places of ``counts``; three more follow, the steps made in each form.
ORACLE_CALLS, VALUE_CALLS, INNER_STEPS, FORWARD_CALLS, BACKWARD_CALLS, FORM_STEPS = range(6)


class RuleSpec(NamedTuple):
    """The address of a rule's kernel, its lr (``nan`` where it needs none) and its own numbers.

    ``given`` is the lr that the user gave, 1 if none; ``uniform`` says whether its metric is one number.
    """

    address: int
    lr: float
    given: float
    uniform: bool
    own: Array


class SolverSpec(NamedTuple):
    """The address of an inner solver's kernel and the numbers of its class; what it does not have is unread.

    ``first_step`` begins a run; nan stands for "none" (L-BFGS then takes 1/‖∇q‖). ``searches`` says whether
    gradient steps are found by Armijo's rule, ``exact`` whether a linear system is solved instead.
    """

    address: int
    exact: bool
    searches: bool
    max_steps: int
    first_step: float
    c: float
    shrink: float
    grow: float
    max_backtracks: int
    history: int
    gradient_tolerance: float
    relative_decrease: float


# Places of ``numbers`` for baselines: SLS's last step, AdaGradNorm's b², steps made.
LAST_STEP, ACCUMULATED, STEPS_MADE = 0, 1, 2
# Rows of the memory table (one column per parameter): Adam's moments, Adagrad's sums, SVRG's
# snapshot and full gradient.
FIRST, SECOND = 0, 1


class BaselineSpec(NamedTuple):
    """What a baseline does beyond θ ← θ − lr·g, and the numbers of its class.

    ``searches``: SLS's line-search from the last step (``restarts``: from lr) times ``growth``;
    ``norms``: AdaGradNorm's step; ``corrects``: SVRG's direction; ``averages``: Adam's moments;
    ``scales``: Adagrad's steps.
    """

    searches: bool
    norms: bool
    corrects: bool
    averages: bool
    scales: bool
    c: float
    shrink: float
    restarts: bool
    growth: float
    max_backtracks: int
    beta1: float
    beta2: float
    eps: float
