"""Losses, rules, inner solvers and baselines as plain numbers: what kernels take.

Kernels are compiled once for all methods, so a method reaches them as a flat named tuple with a
``kind``; fields a kind does not have are unread. This is the one place that translates the public
dataclasses.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt import losses as public_losses
from targetopt.inner import LBFGS, Armijo, Exact, GradientDescent, Inner
from targetopt.inner.stopping import DECREASE, EXACT, GRADIENT, LINE_SEARCH, MAX_STEPS
from targetopt.rules import FTRL, AdaGrad, AdaGradNorm, GradientStep, LineSearch, Newton, Rule
from targetopt.rules.line_search import ROUNDING
from targetopt.types import MissingCapability

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# -- forms ----------------------------------------------------------------------------------------

DUAL, PRIMAL, MATVEC = 0, 1, 2
FORMS = ("dual", "primal", "matvec")

# Nanoseconds of one multiply-add, measured: in a dense symmetric product, in a dense Gram matrix,
# through an index list, and in a scattered Gram update. Only their ratios matter.
DENSE_NS, BLAS_NS, SPARSE_NS, SCATTER_NS = 0.15, 0.08, 0.7, 0.8
# Gradient steps need about so many times the root of their number of products with the Hessian, if
# they are made in their Krylov space.
KRYLOV_SHARE = 4.0


def choose_form(
    rows: int, width: int, nnz: int, meetings: float, sparse: bool, steps: int, exact: bool
) -> int:
    """The cheapest form for ``steps`` inner steps or an exact solve, by counting multiply-adds.

    ``meetings`` is Σ_c n_c² over the columns, n_c non-zeros in column c: what XXᵀ costs if X is sparse.
    Only the smaller Gram matrix is a candidate, so memory stays O(nnz + min(rows, width)²).
    """
    if sparse:
        dual = SCATTER_NS * (0.5 * meetings + 3.0 * nnz)
        primal = SCATTER_NS * nnz * (0.5 * nnz / rows + 1)
        product = SPARSE_NS * nnz
    else:
        dual = BLAS_NS * rows * rows * width
        primal = BLAS_NS * rows * width * width
        product = DENSE_NS * nnz
    small = min(rows, width)
    if exact:  # a factorisation, against conjugate gradients that need a few times the rank
        gram = DENSE_NS * small * small * (small / 3 + 4)
        matvec = 6 * product * small
    else:
        products = min(KRYLOV_SHARE * steps**0.5, float(steps), float(small))
        gram = DENSE_NS * small * small * products
        matvec = 2 * product * products
    gram += dual if rows <= width else primal
    if matvec <= gram:
        return MATVEC
    return DUAL if rows <= width else PRIMAL


# -- losses ---------------------------------------------------------------------------------------

SQUARED, LOGISTIC, HUBER, POISSON = 0, 1, 2, 3


class LossSpec(NamedTuple):
    """``delta`` is Huber's; ``ridge`` is Ridged's μ, 0 for the bare loss."""

    kind: int
    delta: float
    ridge: float


def loss_spec(loss: public_losses.Loss) -> LossSpec:
    """The numbers of a loss with one output."""
    if isinstance(loss, public_losses.Ridged):
        bare = loss_spec(loss.loss)
        return bare._replace(ridge=bare.ridge + loss.mu)
    if isinstance(loss, public_losses.Squared):
        return LossSpec(SQUARED, 0.0, 0.0)
    if isinstance(loss, public_losses.Logistic):
        return LossSpec(LOGISTIC, 0.0, 0.0)
    if isinstance(loss, public_losses.Huber):
        return LossSpec(HUBER, loss.delta, 0.0)
    if isinstance(loss, public_losses.Poisson):
        return LossSpec(POISSON, 0.0, 0.0)
    raise MissingCapability(
        f"linear.fit has kernels for Squared, Logistic, Huber, Poisson, Ridged or not; not for "
        f"{type(loss).__name__}. Use to.SSO with a to.Linear forward."
    )


# -- runs -----------------------------------------------------------------------------------------


class Objective(NamedTuple):
    """The mean loss of the targets, and ½ decay ‖θ‖²."""

    y: Array
    loss: LossSpec
    decay: float


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


# -- rules ----------------------------------------------------------------------------------------

GRADIENT_STEP, LINE_SEARCH_RULE, ADAGRAD_NORM, ADAGRAD, NEWTON, FTRL_RULE = 0, 1, 2, 3, 4, 5
LINE_SEARCH_ALLOWANCE = ROUNDING * float(np.finfo(np.float64).eps)
# Rows of the memory table: sums (AdaGrad's squares, FTRL's gradients), first targets, times seen.
SUMS, STARTS, TIMES_SEEN = 0, 1, 2
# Places of ``numbers``: the inner solver's carried step and the rule's own number.
INNER_STEP, RULE_NUMBER = 0, 1
# Places of ``counts``; three more follow, the steps made in each form.
ORACLE_CALLS, VALUE_CALLS, INNER_STEPS, FORWARD_CALLS, BACKWARD_CALLS, FORM_STEPS = range(6)


class RuleSpec(NamedTuple):
    """``lr`` is never absent here; ``ceiling`` bounds LineSearch's trials, ``safe`` is its last resort."""

    kind: int
    lr: float
    ceiling: float
    c: float
    shrink: float
    grow: float
    max_backtracks: int
    safe: float
    eps: float
    floor: float


RULE_KINDS: dict[type[Rule], int] = {
    GradientStep: GRADIENT_STEP,
    LineSearch: LINE_SEARCH_RULE,
    AdaGradNorm: ADAGRAD_NORM,
    AdaGrad: ADAGRAD,
    Newton: NEWTON,
    FTRL: FTRL_RULE,
}


def rule_spec(rule: Rule, lr: float | None, smoothness: float | None) -> RuleSpec:
    """The numbers of a quadratic rule, with ``lr=None`` resolved as `Rule.step_size` does."""
    if type(rule) not in RULE_KINDS:
        raise MissingCapability(
            f"linear.fit runs quadratic rules (GradientStep, LineSearch, AdaGradNorm, AdaGrad, "
            f"Newton, FTRL), not {type(rule).__name__}. Use to.SSO for it."
        )
    spec = RuleSpec(
        RULE_KINDS[type(rule)],
        math.nan,
        math.inf if lr is None else lr,
        0.0,
        0.0,
        0.0,
        0,
        0.0,
        0.0,
        0.0,
    )
    if isinstance(rule, LineSearch):
        first = 1.0 if smoothness is None else 1.0 / smoothness
        return spec._replace(
            lr=first if lr is None else lr,
            c=rule.c,
            shrink=rule.shrink,
            grow=rule.grow,
            max_backtracks=rule.max_backtracks,
            safe=rule.safe_step(smoothness),
        )
    if lr is None:
        lr = rule.natural_lr
    if lr is None:
        if smoothness is None:
            raise MissingCapability(
                f"lr=None means 1/(2L), but this loss has no finite smoothness L, which "
                f"{type(rule).__name__} needs. Pass lr=, or use rule=to.LineSearch()."
            )
        lr = 1.0 / (2.0 * smoothness)
    spec = spec._replace(lr=lr)
    if isinstance(rule, AdaGrad):
        return spec._replace(eps=rule.eps)
    if isinstance(rule, Newton):
        return spec._replace(floor=rule.floor)
    return spec


# -- inner solvers --------------------------------------------------------------------------------

ARMIJO, DESCENT, LBFGS_SOLVER, EXACT_SOLVER = 0, 1, 2, 3
BY_MAX_STEPS, BY_GRADIENT, BY_DECREASE, BY_LINE_SEARCH, BY_EXACT = 0, 1, 2, 3, 4
REASONS = (MAX_STEPS, GRADIENT, DECREASE, LINE_SEARCH, EXACT)


class SolverSpec(NamedTuple):
    """``first_step`` begins a run; nan stands for "none" (L-BFGS then takes 1/‖∇q‖)."""

    kind: int
    max_steps: int
    first_step: float
    c: float
    shrink: float
    grow: float
    max_backtracks: int
    history: int
    gradient_tolerance: float
    relative_decrease: float


def has_solver(inner: Inner) -> bool:
    """Whether an inner solver runs in coordinates; the others go through autograd."""
    return type(inner) in (Armijo, GradientDescent, LBFGS, Exact)


def solver_spec(inner: Inner) -> SolverSpec:
    """The numbers of an inner solver."""
    nothing = SolverSpec(EXACT_SOLVER, 1, math.nan, 0.0, 0.0, 0.0, 0, 1, 0.0, 0.0)
    if isinstance(inner, Exact):
        return nothing
    if not isinstance(inner, Armijo | GradientDescent | LBFGS):
        raise MissingCapability(
            f"linear.fit runs Armijo, GradientDescent, LBFGS and Exact, not "
            f"{type(inner).__name__}. Use to.SSO with a to.Linear forward."
        )
    common = nothing._replace(
        max_steps=inner.max_steps,
        gradient_tolerance=inner.stopping.gradient_tolerance,
        relative_decrease=inner.stopping.relative_decrease,
    )
    if isinstance(inner, GradientDescent):
        return common._replace(kind=DESCENT, first_step=inner.step_size)
    common = common._replace(max_backtracks=inner.max_backtracks)
    if isinstance(inner, LBFGS):
        return common._replace(kind=LBFGS_SOLVER, history=inner.history)
    return common._replace(
        kind=ARMIJO, first_step=inner.initial_step, c=inner.c, shrink=inner.shrink, grow=inner.grow
    )


class Solution(NamedTuple):
    """What solving one inner problem gave; ``step`` is the step size to carry (nan: none)."""

    theta: Array
    steps: int
    decrease: float
    reason: int
    step: float
    form: int
    forward_calls: int
    backward_calls: int


# -- baselines ------------------------------------------------------------------------------------

SGD_KIND, SLS_KIND, ADAGRAD_NORM_KIND, SVRG_KIND, ADAM_KIND, ADAGRAD_KIND = 0, 1, 2, 3, 4, 5
# Places of ``numbers`` for baselines: SLS's last step, AdaGradNorm's b², steps made.
LAST_STEP, ACCUMULATED, STEPS_MADE = 0, 1, 2
# Rows of the memory table (one column per parameter): Adam's moments, Adagrad's sums, SVRG's
# snapshot and full gradient.
FIRST, SECOND = 0, 1


# Where SLS's search begins: at the last step, at lr, or at the last step grown a little.
SLS_RESETS = ("keep", "restart", "grow")
KEEP, RESTART, GROW = 0, 1, 2


class BaselineSpec(NamedTuple):
    """``reset`` and ``growth`` (per step) are SLS's; ``beta1``, ``beta2`` are Adam's."""

    kind: int
    c: float
    shrink: float
    reset: int
    growth: float
    max_backtracks: int
    beta1: float
    beta2: float
    eps: float
