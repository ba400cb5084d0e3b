"""What both estimators share: checks, the solve, and the memory that ``partial_fit`` needs.

torch and the solver are imported by the first fit, so that importing the estimators costs little more than
importing scikit-learn.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_is_fitted,
    validate_data,
)

from targetopt.errors import BadArgument

if TYPE_CHECKING:
    from targetopt.linear.newton import Metric, PenalisedLoss
    from targetopt.losses import Loss

Array = NDArray[np.float64]

LARGEST = 1e100
"""Features and counts beyond this, or all below its inverse, have squares that float64 cannot hold."""


class LinearSSO(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: checks, the solve, and the memory ``partial_fit`` needs."""

    alpha: float | str
    fit_intercept: bool
    tol: float
    max_iter: int
    warm_start: bool
    coef_: Array
    intercept_: Any
    n_iter_: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        if self.alpha != "auto":
            check_number(
                "alpha", self.alpha, "0 means no penalty, 'auto' one over the number of rows"
            )
        check_number("tol", self.tol, "it is a relative accuracy, for example 1e-8")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise BadArgument(f"max_iter={self.max_iter!r} must be a whole number, at least 1")

    def _check_weights(self, sample_weight: ArrayLike | None, X: Any) -> Array:
        if sample_weight is None:
            return np.ones(X.shape[0])
        return np.asarray(
            _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        )

    def _solve(
        self,
        X: Any,
        loss: Loss,
        outputs: tuple[int, ...],
        weights: Array,
        start: Array | None,
        memory: Array | None,
        shared: Shared | None = None,
    ) -> Array:
        """Minimise F, plus ½Σ_j Λ_j (θ_j − start_j)² where the rows before left a memory Λ.

        Returns θ, the intercept last. Λ is a sum over rows and F a mean, hence the division.
        """
        total = float(weights.sum())
        if not 0 < total < np.inf:
            raise BadArgument(
                f"the weights of the rows sum to {total}; at least one row must have a weight above "
                "zero, and all must be finite (sample_weight times class_weight)"
            )
        weights = weights / total
        alpha = self._penalty(total, first=memory is None)
        check_scale(X, alpha if memory is None else 1.0, type(self).__name__)
        from targetopt.linear.newton import PenalisedLoss, minimise
        from targetopt.losses import OnArrays

        on_arrays = OnArrays(loss)
        intercept = bool(self.fit_intercept)
        ridge = np.full((X.shape[1] + intercept, *outputs), alpha)
        if intercept:
            ridge[-1] = 0.0
        if start is None:
            start = np.zeros_like(ridge)
            if intercept:
                start[-1] = on_arrays.best_constant(weights)
        center: Array | float = 0.0
        if memory is not None:
            ridge += memory / total
            pull = memory / total * start
            center = np.divide(pull, ridge, out=np.zeros_like(start), where=ridge > 0)
        problem = PenalisedLoss(X, on_arrays, weights, ridge, center, intercept)
        metric = None if shared is None else shared.metric(problem)
        found = minimise(
            problem, start, tol=float(self.tol), max_iter=int(self.max_iter), metric=metric
        )
        self._memory = total * (found.diagonal + ridge)
        self.n_iter_ = found.n_iter
        if not found.converged:
            self._warn(found.n_iter, found.gap / found.value if found.value else 0.0)
        if outputs and memory is None:  # softmax ignores what all classes share; so does the answer
            return np.asarray(found.theta - found.theta.mean(axis=1, keepdims=True))
        return found.theta

    def _penalty(self, total: float, *, first: bool) -> float:
        """alpha as a number: "auto" is a penalty of ½‖w‖² beside the sum over rows, paid once."""
        if self.alpha == "auto":
            return 1.0 / total if first else 0.0
        return float(self.alpha)

    def _warn(self, steps: int, gap: float) -> None:
        why = (
            f"stopped at max_iter={self.max_iter} steps"
            if steps >= self.max_iter
            else f"could not lower the objective any more after {steps} steps, because of rounding errors"
        )
        left = f"about {gap:.1g}" if np.isfinite(gap) else "not known"
        warnings.warn(
            f"{type(self).__name__} {why}, before tol={self.tol}: the relative distance to the minimum "
            f"is {left}. Raise max_iter, scale the features to similar size, or raise alpha.",
            ConvergenceWarning,
            stacklevel=6,
        )

    def _adopt(self, fitted: Self) -> Self:
        """Become ``fitted``, in one assignment: a fit is done, or it has changed nothing."""
        self.__dict__ = fitted.__dict__
        return self

    def _twin(self) -> Self:
        """Another estimator with the same attributes, on which a fit does its work."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _margins(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_.T + self.intercept_)


class Shared:
    """What outputs of the same quadratic problem need to compute only once: a metric with the Hessian's factor."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs
        self._metric: Metric | None = None

    def metric(self, problem: PenalisedLoss) -> Metric | None:
        """The metric of the outputs before, if the Hessian is the same for all; it depends on X, ω and λ alone."""
        if not problem.loss.quadratic:
            return None
        if self._metric is None or not np.array_equal(self._metric.objective.ridge, problem.ridge):
            from targetopt.linear.newton import cheapest_metric

            self._metric = cheapest_metric(problem)
            self._metric.outputs = self._outputs
        return self._metric


def check_number(name: str, value: Any, hint: str) -> None:
    """Refuse what is not a finite number ≥ 0."""
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise BadArgument(f"{name}={value!r} must be a finite number, not negative; {hint}")


def check_scale(X: Any, alpha: float, estimator: str) -> None:
    """Refuse features that are not finite, or whose squares float64 cannot hold: the solution would be silently wrong.

    Fits leave the search for what is not finite to this: the sum of squares, which is needed here anyway, tells of it.
    """
    sparse = bool(sp.issparse(X))
    entries = X.data if sparse else X
    flat = entries.ravel(order="K")
    with np.errstate(over="ignore", under="ignore"):
        square = float(flat @ flat)
    if (
        alpha > 0 and flat.size / LARGEST**2 < square < LARGEST**2
    ):  # one quick pass tells of most data
        return
    if not np.isfinite(square):
        assert_all_finite(X, estimator_name=estimator, input_name="X")
    largest = max(float(entries.max(initial=0.0)), -float(entries.min(initial=0.0)))
    advice = (
        "Bring the columns of X to a similar size, for example with StandardScaler or MaxAbsScaler."
    )
    if largest > LARGEST or 0 < largest < 1 / LARGEST:
        raise BadArgument(
            f"the largest entry of X is {largest:.3g} in size; its square is beyond what float64 can "
            f"hold to full accuracy. {advice}"
        )
    if alpha > 0 or not largest:  # a column that is next to nothing then has a coefficient that is
        return
    sizes = np.ravel(abs(X).max(axis=0).toarray() if sparse else np.abs(X).max(axis=0))
    tiny = (sizes > 0) & (sizes < 1 / LARGEST)
    if tiny.any():
        column = int(tiny.argmax())
        raise BadArgument(
            f"without a penalty (alpha=0) column {column} of X, whose largest entry is "
            f"{sizes[column]:.3g}, would need a coefficient beyond float64's range. {advice}"
        )


def solvable(X: Any) -> Any:
    """X as the solver's products want it: contiguous, or sound CSR with int32 indices."""
    sparse = bool(sp.issparse(X))
    if not sparse:
        contiguous = X.flags.c_contiguous or X.flags.f_contiguous
        return X if contiguous else np.ascontiguousarray(X)
    if X.nnz and (X.indices.min() < 0 or X.indices.max() >= X.shape[1]):
        raise BadArgument(
            "X is a broken sparse matrix: its indices point outside it. Rebuild it, for example with "
            "scipy.sparse.csr_array((data, (rows, columns)), shape=...)"
        )
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    if X.indices.dtype != np.int32 and max(X.nnz, *X.shape) <= np.iinfo(np.int32).max:
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        return sp.csr_array((X.data, indices, indptr), shape=X.shape)
    return X
