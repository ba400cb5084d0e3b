"""scikit-learn estimators on the full-batch SSO solver: linear models, nothing to tune but ``alpha``.

Both minimise

    F(w, b) = Σ_i s_i ℓ_i(x_i·w + b) / Σ_i s_i + ½ alpha ‖w‖²

with the sample weights s_i; the intercept is not penalised. A weighted row counts as that many equal
rows. ``LogisticRegression(C=C)`` on n rows is ``alpha = 1/(C·n)``, ``Ridge(alpha=a)`` is
``alpha = a/n`` (for weighted data read Σ s_i for n).
"""

from __future__ import annotations

import math
import warnings
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from targetopt.linear.newton import Objective, minimise
from targetopt.linear.newton.objective import Array, is_sparse
from targetopt.losses import CrossEntropy, Huber, Logistic, Loss, OnArrays, Poisson, Squared
from targetopt.types import BadArgument

__all__ = ["SSOClassifier", "SSORegressor"]

LARGEST = 1e100
"""Features and counts beyond this, or all below its inverse, have squares that float64 cannot hold."""


class _LinearSSO(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: checks, the solve, and the memory ``partial_fit`` needs."""

    alpha: float
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
        _check_number("alpha", self.alpha, "0 means no penalty")
        _check_number("tol", self.tol, "it is a relative accuracy, for example 1e-8")
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
    ) -> Array:
        """Minimise F, plus ½Σ_j Λ_j (θ_j − start_j)² where the rows before left a memory Λ.

        Returns θ, the intercept last. Λ is a sum over rows and F a mean, hence the division.
        """
        _check_scale(X, float(self.alpha))
        total = float(weights.sum())
        if not 0 < total < np.inf:
            raise BadArgument(
                f"the weights of the rows sum to {total}; at least one row must have a weight above "
                "zero, and all must be finite (sample_weight times class_weight)"
            )
        weights = weights / total
        on_arrays = OnArrays(loss)
        intercept = bool(self.fit_intercept)
        ridge = np.full((X.shape[1] + intercept, *outputs), float(self.alpha))
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
        found = minimise(
            Objective(X, on_arrays, weights, ridge, center, intercept),
            start,
            tol=float(self.tol),
            max_iter=int(self.max_iter),
        )
        self._memory = total * (found.diagonal + ridge)
        self.n_iter_ = found.n_iter
        if not found.converged:
            self._warn(found.n_iter, found.gap / found.value if found.value else 0.0)
        if outputs and memory is None:  # softmax ignores what all classes share; so does the answer
            return np.asarray(found.theta - found.theta.mean(axis=1, keepdims=True))
        return found.theta

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


class SSOClassifier(ClassifierMixin, _LinearSSO):  # type: ignore[misc]
    """L2-penalised logistic regression, binary or multinomial, dense or sparse.

    Minimises Σ_i s_i ℓ_i(z_i)/Σ_i s_i + ½ alpha ‖w‖² with the logistic loss for two classes and
    softmax cross-entropy for more, by SSO's Newton rule on the full batch (see
    :mod:`targetopt.linear.newton`). There is no learning rate.

    Args:
        alpha: Penalty on the coefficients. ``LogisticRegression(C=C)`` is ``alpha=1/(C*n)``.
        fit_intercept: Whether z has an intercept; it is not penalised.
        class_weight: ``None``, ``"balanced"`` or ``{class: weight}``; multiplies sample weights.
        tol: Stop when the objective is estimated to be within ``tol`` of its minimum, relatively.
        max_iter: Most steps; each costs one product with X and one with Xᵀ, as does an epoch of
            :mod:`targetopt.linear.newton.tangents`. A fit that ends here warns with ``ConvergenceWarning``.
        warm_start: Whether ``fit`` begins at the last coefficients.

    Attributes:
        classes_: The labels, sorted.
        coef_: Shape ``(1, features)`` for two classes, else ``(classes, features)``.
        intercept_: Shape ``(1,)`` or ``(classes,)``; zero without ``fit_intercept``.
        n_iter_: Steps and epochs made by the last fit, shape ``(1,)``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> SSOClassifier(alpha=1e-3).fit(X, y).predict(X[::50]).tolist()
        [0, 1, 2]

    Reference:
        Lavington, Vaswani, Babanezhad, Schmidt, Le Roux: "Target-based Surrogates for Stochastic
        Optimization", ICML 2023, appendix B.1 (SSO-Newton).
    """

    classes_: Any

    def __init__(
        self,
        alpha: float = 1e-4,
        *,
        fit_intercept: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        tol: float = 1e-8,
        max_iter: int = 1000,
        warm_start: bool = False,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Minimise the objective on these rows.

        If it is refused or interrupted, the estimator is what it was before.
        """
        return self._adopt(self._twin()._fit(X, y, sample_weight))

    def _fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> Self:
        self._check_parameters()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        classes = np.unique(y)
        if classes.size < 2:
            raise BadArgument(
                f"SSOClassifier needs samples of at least 2 classes; y holds only one class, "
                f"{classes[0]!r}"
            )
        start = None
        if self.warm_start and hasattr(self, "coef_") and np.array_equal(self.classes_, classes):
            start = self._theta()
            if start.shape[0] != X.shape[1] + bool(
                self.fit_intercept
            ):  # other columns: begin afresh
                start = None
        self.classes_ = classes
        return self._learn(_solvable(X), y, self._check_weights(sample_weight, X), start, None)

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from more rows, without the earlier ones.

        The first call is ``fit``. Each later one minimises the new rows' losses and penalty plus
        ½ Σ_j Λ_j (θ_j − θ_t,j)², where θ_t are the present coefficients and Λ_j the sum, over all
        rows seen, of the curvature in θ_j: a proximal step whose strength grows with the evidence.
        ``fit`` then ``partial_fit`` continues from the fit. Λ is diagonal, so the result is near
        but not equal to a fit on all rows together, nearer for standardised features.

        If it is refused or interrupted, the estimator is what it was before.

        Args:
            classes: All labels there will be; needed at the first call only.
        """
        return self._adopt(self._twin()._partial_fit(X, y, classes, sample_weight))

    def _partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        classes: ArrayLike | None,
        sample_weight: ArrayLike | None,
    ) -> Self:
        self._check_parameters()
        first = not hasattr(self, "coef_")
        if first and classes is None:
            raise BadArgument(
                "partial_fit needs classes= at its first call: all labels that will ever occur"
            )
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, reset=first)
        check_classification_targets(y)
        known = np.unique(np.asarray(classes)) if classes is not None else self.classes_
        if known.size < 2:
            raise BadArgument(f"classes={known.tolist()} must name at least 2 classes")
        if not first and not np.array_equal(known, self.classes_):
            raise BadArgument(
                f"classes={known.tolist()} differ from those of the first call, "
                f"{self.classes_.tolist()}; they are fixed then"
            )
        unknown = np.setdiff1d(y, known)
        if unknown.size:
            raise BadArgument(
                f"y holds the labels {unknown[:5].tolist()}, which are not among classes="
                f"{known.tolist()}"
            )
        if isinstance(self.class_weight, str):
            raise BadArgument(
                f"class_weight={self.class_weight!r} cannot be used with partial_fit, which does not "
                "know how often each class will occur; pass a dict"
            )
        self.classes_ = known
        weights = self._check_weights(sample_weight, X)
        if first:
            return self._learn(_solvable(X), y, weights, None, None)
        return self._learn(_solvable(X), y, weights, self._theta(), self._memory)

    def _learn(
        self, X: Any, y: Any, weights: Array, start: Array | None, memory: Array | None
    ) -> Self:
        binary = self.classes_.size == 2
        labels = (
            (y == self.classes_[1]).astype(np.intp) if binary else np.searchsorted(self.classes_, y)
        )
        if self.class_weight is not None:
            by_class = compute_class_weight(
                self.class_weight, classes=self.classes_, y=y, sample_weight=weights
            )
            weights = weights * by_class[labels]
        if binary:
            loss: Loss = Logistic(torch.from_numpy(2.0 * labels - 1.0))
            theta = self._solve(X, loss, (), weights, start, memory)
        else:
            k = int(self.classes_.size)
            loss = CrossEntropy(torch.from_numpy(labels), classes=k)
            theta = self._solve(X, loss, (k,), weights, start, memory)
        columns = theta[:, None] if binary else theta
        self.coef_ = np.ascontiguousarray(columns[: X.shape[1]].T)
        self.intercept_ = columns[-1].copy() if self.fit_intercept else np.zeros(columns.shape[1])
        self.n_iter_ = np.array([self.n_iter_], dtype=np.int32)
        return self

    def _theta(self) -> Array:
        theta = self.coef_.T
        if self.fit_intercept:
            theta = np.vstack([theta, self.intercept_])
        return theta[:, 0] if self.classes_.size == 2 else theta

    def decision_function(self, X: Any) -> Array:
        """z: shape ``(n,)``, positive for ``classes_[1]``; or ``(n, classes)``."""
        z = self._margins(X)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict(self, X: Any) -> Any:
        """The most likely label of each row."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(np.intp) if z.ndim == 1 else z.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of ``classes_``."""
        z = self.decision_function(X)
        return np.stack([expit(-z), expit(z)], axis=1) if z.ndim == 1 else softmax(z, axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of :meth:`predict_proba`, exact however small."""
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.stack([log_expit(-z), log_expit(z)], axis=1)
        return np.asarray(log_softmax(z, axis=1))


class SSORegressor(RegressorMixin, _LinearSSO):  # type: ignore[misc]
    """Linear regression with an L2 penalty: least squares, Huber's loss, or Poisson counts.

    Minimises Σ_i s_i ℓ_i(z_i)/Σ_i s_i + ½ alpha ‖w‖² by SSO's Newton rule on the full batch (see
    :mod:`targetopt.linear.newton`). There is no learning rate.

    Args:
        alpha: Penalty on the coefficients. ``Ridge(alpha=a)`` is ``alpha=a/n``, and
            ``PoissonRegressor(alpha=a)`` is ``alpha=a``.
        loss: ``"squared"``, ½(z − y)²; ``"huber"``, the same up to ``|z − y| = delta`` and straight
            beyond; ``"poisson"``, exp(z) − yz for y ≥ 0, predicting exp(z).
        delta: Where Huber's loss becomes straight, in units of y.
        fit_intercept: Whether z has an intercept; it is not penalised.
        tol: Stop when the objective is estimated to be within ``tol`` of its minimum, relatively.
        max_iter: Most steps; each costs one product with X and one with Xᵀ. A fit that ends here
            warns with ``ConvergenceWarning``.
        warm_start: Whether ``fit`` begins at the last coefficients.

    Attributes:
        coef_: Shape ``(features,)``.
        intercept_: A number; zero without ``fit_intercept``.
        n_iter_: Steps made by the last fit.

    Example:
        >>> model = SSORegressor(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> model.predict([[3.0]]).round(6)
        array([7.])

    Reference:
        Lavington, Vaswani, Babanezhad, Schmidt, Le Roux: "Target-based Surrogates for Stochastic
        Optimization", ICML 2023, appendix B.1 (SSO-Newton).
    """

    def __init__(
        self,
        alpha: float = 1e-4,
        *,
        loss: str = "squared",
        delta: float = 1.0,
        fit_intercept: bool = True,
        tol: float = 1e-8,
        max_iter: int = 1000,
        warm_start: bool = False,
    ) -> None:
        self.alpha = alpha
        self.loss = loss
        self.delta = delta
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Minimise the objective on these rows.

        If it is refused or interrupted, the estimator is what it was before.
        """
        start = self._theta() if self.warm_start and hasattr(self, "coef_") else None
        return self._adopt(self._twin()._learn(X, y, sample_weight, start, None, reset=True))

    def partial_fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from more rows, without the earlier ones.

        The first call is ``fit``. Each later one minimises the new rows' losses and penalty plus
        ½ Σ_j Λ_j (θ_j − θ_t,j)², where θ_t are the present coefficients and Λ_j the sum, over all
        rows seen, of the curvature in θ_j: a proximal step whose strength grows with the evidence.
        ``fit`` then ``partial_fit`` continues from the fit. Λ is diagonal, so the result is near
        but not equal to a fit on all rows together, nearer for standardised features.

        If it is refused or interrupted, the estimator is what it was before.
        """
        first = not hasattr(self, "coef_")
        start, memory = (None, None) if first else (self._theta(), self._memory)
        return self._adopt(self._twin()._learn(X, y, sample_weight, start, memory, reset=first))

    def _learn(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        start: Array | None,
        memory: Array | None,
        reset: bool,
    ) -> Self:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True, reset=reset
        )
        weights = self._check_weights(sample_weight, X)
        if start is not None and start.size != X.shape[1] + bool(self.fit_intercept):
            start = None
        unit, loss = self._loss(np.asarray(y, dtype=np.float64))
        start = start if start is None else start / unit
        theta = unit * self._solve(_solvable(X), loss, (), weights, start, memory)
        self.coef_ = theta[: X.shape[1]].copy()
        self.intercept_ = float(theta[-1]) if self.fit_intercept else 0.0
        return self

    def _loss(self, y: Array) -> tuple[float, Loss]:
        """The unit in which y and z are counted, and the loss in this unit.

        It is 1 unless the squares of y would leave float64's range. Squared and Huber's loss know no unit:
        for y/s (and delta/s) the coefficients are those of y, divided by s.
        """
        largest = float(np.abs(y).max())
        extreme = largest > LARGEST or 0 < largest < 1 / LARGEST
        unit = 2.0 ** round(math.log2(largest)) if extreme else 1.0
        if self.loss == "squared":
            return unit, Squared(torch.from_numpy(y / unit))
        if self.loss == "huber":
            _check_number("delta", self.delta, "it is a distance in units of y")
            if self.delta == 0:
                raise BadArgument("delta=0 would be the absolute loss, which has no curvature")
            delta = float(self.delta) / unit
            if not 0 < delta < np.inf:
                raise BadArgument(
                    f"delta={self.delta!r} is out of proportion to y, whose largest entry is {largest:.3g}; "
                    "choose it of the size of the errors to expect"
                )
            return unit, Huber(torch.from_numpy(y / unit), delta)
        if self.loss == "poisson":
            if (y < 0).any():
                raise BadArgument(
                    f"loss='poisson' needs y >= 0; the smallest is {y.min()!r} in row {y.argmin()}"
                )
            if largest > LARGEST:
                raise BadArgument(
                    f"loss='poisson' takes counts up to {LARGEST:.0e}; y holds {largest:.3g} in row "
                    f"{y.argmax()}. Count in a larger unit."
                )
            return 1.0, Poisson(torch.from_numpy(y))
        raise BadArgument(f"loss={self.loss!r} must be 'squared', 'huber' or 'poisson'")

    def _theta(self) -> Array:
        return np.append(self.coef_, self.intercept_) if self.fit_intercept else self.coef_

    def predict(self, X: Any) -> Array:
        """z for each row, or exp(z) with ``loss="poisson"``."""
        z = self._margins(X)
        return np.exp(z) if self.loss == "poisson" else z


def _check_number(name: str, value: Any, hint: str) -> None:
    if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
        raise BadArgument(f"{name}={value!r} must be a finite number, not negative; {hint}")


def _check_scale(X: Any, alpha: float) -> None:
    """Refuse features whose squares float64 cannot hold: the solution would be silently wrong."""
    entries = X.data if is_sparse(X) else X
    largest = float(np.abs(entries).max(initial=0.0))
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
    sizes = np.ravel(abs(X).max(axis=0).toarray() if is_sparse(X) else np.abs(X).max(axis=0))
    tiny = (sizes > 0) & (sizes < 1 / LARGEST)
    if tiny.any():
        column = int(tiny.argmax())
        raise BadArgument(
            f"without a penalty (alpha=0) column {column} of X, whose largest entry is "
            f"{sizes[column]:.3g}, would need a coefficient beyond float64's range. {advice}"
        )


def _solvable(X: Any) -> Any:
    """X as the solver's products want it: contiguous, or sound CSR with int32 indices."""
    if not is_sparse(X):
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
