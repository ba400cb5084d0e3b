"""`SSORegressor`: least squares, Huber's loss and Poisson counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from targetopt.errors import BadArgument
from targetopt.sklearn.base import LARGEST, Array, LinearSSO, Shared, check_number, solvable

if TYPE_CHECKING:
    from targetopt.losses import Loss

STRAIGHT = 1.35
"""Spreads of the errors beyond which Huber's loss is straight: 95 % as efficient as least squares on normal errors."""
ROUNDS = 20
"""Fits at most that look for the spread of the errors."""


class SSORegressor(RegressorMixin, LinearSSO):  # type: ignore[misc]
    """Linear regression with an L2 penalty: least squares, Huber's loss, or Poisson counts.

    Minimises Σ_i s_i ℓ_i(z_i)/Σ_i s_i + ½ alpha ‖w‖² by SSO's Newton rule on the full batch (see
    :mod:`targetopt.linear.newton`). There is no learning rate. If y has several columns, each is a problem of its own;
    with the squared loss they share what is computed of X.

    Args:
        alpha: Penalty on the coefficients. ``"auto"`` is 1/n on n rows (1/Σ_i s_i), which is the default of
            ``Ridge``; ``Ridge(alpha=a)`` is ``alpha=a/n``, and ``PoissonRegressor(alpha=a)`` is ``alpha=a``. With
            ``partial_fit`` the penalty ``"auto"`` is paid once, by the first rows.
        loss: ``"squared"``, ½(z − y)²; ``"huber"``, the same up to ``|z − y| = delta`` and straight
            beyond; ``"poisson"``, exp(z) − yz for y ≥ 0, predicting exp(z).
        delta: Where Huber's loss becomes straight, in units of y. ``"auto"`` is 1.35 times the spread of the errors
            (1.4826 times the median of their sizes). It begins with the spread of y and narrows from fit to fit, until
            it changes by less than 1 %. The coefficients then follow the unit of y.
        fit_intercept: Whether z has an intercept; it is not penalised.
        tol: Stop when the objective is estimated to be within ``tol`` of its minimum, relatively.
        max_iter: Most steps; each costs one product with X and one with Xᵀ. A fit that ends here
            warns with ``ConvergenceWarning``.
        warm_start: Whether ``fit`` begins at the last coefficients.

    Attributes:
        coef_: Shape ``(features,)``, or ``(outputs, features)`` if y has columns.
        intercept_: A number, or one for each output; zero without ``fit_intercept``.
        n_iter_: Steps made by the last fit; the most of any output.
        delta_: Where Huber's loss became straight, a number or one for each output; only with ``loss="huber"``.

    Example:
        >>> model = SSORegressor(alpha=0.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> model.predict([[3.0]]).round(6)
        array([7.])

    Reference:
        Lavington, Vaswani, Babanezhad, Schmidt, Le Roux: "Target-based Surrogates for Stochastic
        Optimization", ICML 2023, appendix B.1 (SSO-Newton).
    """

    delta_: Any

    def __init__(
        self,
        alpha: float | str = "auto",
        *,
        loss: str = "squared",
        delta: float | str = "auto",
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
        tags.target_tags.multi_output = True
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
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite=False,  # `check_scale` finds what is not
            y_numeric=True,
            multi_output=True,
            reset=reset,
        )
        weights = self._check_weights(sample_weight, X)
        y, X = np.asarray(y, dtype=np.float64), solvable(X)
        shape = (*y.shape[1:], X.shape[1] + bool(self.fit_intercept))
        past = start if memory is None else memory
        if past is not None and past.shape != shape:
            if memory is not None:
                now, earlier = (1 if len(each) == 1 else each[0] for each in (shape, past.shape))
                changed = (
                    f"y has {now} columns, and earlier rows had {earlier}; give as many columns as before"
                    if now != earlier
                    else "fit_intercept was changed after earlier rows; set it back"
                )
                raise BadArgument(f"partial_fit: {changed}, or call fit to begin anew")
            start = None
        if y.ndim == 1:
            theta = self._fit_output(X, y, weights, start, memory, reset)
        else:
            theta = self._fit_outputs(X, y, weights, start, memory, reset)
        features = X.shape[1]
        self.coef_ = theta[..., :features].copy()
        self.intercept_ = 0.0 if y.ndim == 1 else np.zeros(y.shape[1])
        if self.fit_intercept:
            self.intercept_ = float(theta[-1]) if y.ndim == 1 else theta[:, -1].copy()
        return self

    def _fit_outputs(
        self,
        X: Any,
        y: Array,
        weights: Array,
        start: Array | None,
        memory: Array | None,
        reset: bool,
    ) -> Array:
        """One output after the other; what each leaves behind is put together in the end."""
        deltas = getattr(self, "delta_", None) if not reset else None
        found, memories, steps, straight = [], [], [], []
        shared = Shared(y.shape[1])
        for k, column in enumerate(np.ascontiguousarray(y.T)):
            if deltas is not None:
                self.delta_ = deltas[k]
            begin, past = (None if each is None else each[k] for each in (start, memory))
            found.append(self._fit_output(X, column, weights, begin, past, reset, shared))
            memories.append(self._memory)
            steps.append(self.n_iter_)
            straight.append(getattr(self, "delta_", None))
        self._memory, self.n_iter_ = np.stack(memories), max(steps)
        if self.loss == "huber":
            self.delta_ = np.array(straight)
        return np.stack(found)

    def _fit_output(
        self,
        X: Any,
        y: Array,
        weights: Array,
        start: Array | None,
        memory: Array | None,
        reset: bool,
        shared: Shared | None = None,
    ) -> Array:
        """θ of one output, the intercept last."""
        if self.loss == "huber":
            self.delta_ = self._straight_beyond(reset)
            if not self.delta_:
                return self._narrowed(X, y, weights, start)
        return self._minimised(X, y, weights, start, memory, shared)

    def _minimised(
        self,
        X: Any,
        y: Array,
        weights: Array,
        start: Array | None,
        memory: Array | None = None,
        shared: Shared | None = None,
    ) -> Array:
        """θ of one output whose loss is known."""
        unit, loss = self._loss(y)
        start = start if start is None else start / unit
        return unit * self._solve(X, loss, (), weights, start, memory, shared)

    def _loss(self, y: Array) -> tuple[float, Loss]:
        """The unit in which y and z are counted, and the loss in this unit.

        It is 1 unless the squares of y would leave float64's range. Squared and Huber's loss know no unit:
        for y/s (and delta/s) the coefficients are those of y, divided by s.
        """
        import torch

        from targetopt.losses import Huber, Poisson, Squared

        largest = float(np.abs(y).max())
        extreme = largest > LARGEST or 0 < largest < 1 / LARGEST
        unit = 2.0 ** round(math.log2(largest)) if extreme else 1.0
        if self.loss == "squared":
            return unit, Squared(torch.from_numpy(y / unit))
        if self.loss == "huber":
            delta = self.delta_ / unit
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

    def _straight_beyond(self, first: bool) -> float:
        """delta as a number, 0 if it is still to be found; ``partial_fit`` keeps what its first call found."""
        if self.delta != "auto":
            check_number("delta", self.delta, "it is a distance in units of y, or 'auto'")
            if self.delta == 0:
                raise BadArgument("delta=0 would be the absolute loss, which has no curvature")
            return float(self.delta)
        return 0.0 if first else float(self.delta_)

    def _narrowed(self, X: Any, y: Array, weights: Array, start: Array | None) -> Array:
        """θ for the ``delta_`` that suits these rows, which is found on the way; the steps of all solves count."""
        middle = weighted_median(y, weights)
        wide = STRAIGHT * spread(y - middle, weights) or STRAIGHT * float(np.abs(y - middle).max())
        self.delta_ = wide or 1.0  # 1 if y is constant
        theta = self._minimised(X, y, weights, start)
        steps = self.n_iter_
        for _ in range(ROUNDS if wide else 0):
            z = X @ theta[: X.shape[1]] + (theta[-1] if self.fit_intercept else 0.0)
            narrow = STRAIGHT * spread(y - z, weights)
            if not 0 < narrow < 0.99 * self.delta_:
                break
            self.delta_ = narrow
            theta = self._minimised(X, y, weights, theta)
            steps += self.n_iter_
        self.n_iter_ = steps
        return theta

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the prediction; with ``loss="poisson"`` D², the share of the deviance that is explained.

        D² = 1 − D(y, prediction)/D(y, mean of y) with the Poisson deviance D, as ``PoissonRegressor`` has it. Several
        outputs have the mean of their scores.
        """
        if self.loss != "poisson":
            return float(super().score(X, y, sample_weight))
        from sklearn.metrics import d2_tweedie_score

        outputs = np.atleast_2d(np.asarray(y, dtype=np.float64).T)
        expected = np.atleast_2d(self.predict(X).T)
        shares = [
            d2_tweedie_score(each, predicted, sample_weight=sample_weight, power=1)
            for each, predicted in zip(outputs, expected, strict=True)
        ]
        return float(np.mean(shares))

    def _theta(self) -> Array:
        if not self.fit_intercept:
            return self.coef_
        return np.concatenate([self.coef_, np.asarray(self.intercept_)[..., None]], axis=-1)

    def predict(self, X: Any) -> Array:
        """z for each row, or exp(z) with ``loss="poisson"``."""
        z = self._margins(X)
        return np.exp(z) if self.loss == "poisson" else z


def weighted_median(values: Array, weights: Array) -> float:
    """The smallest value with half of the weight at or below it: a row of weight 2 counts as two rows.

    >>> weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 5.0]))
    2.0
    """
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, below[-1] / 2)]])


def spread(errors: Array, weights: Array) -> float:
    """The standard deviation of normal errors, from the median of their sizes, which outliers hardly move.

    >>> round(spread(np.array([-1.0, 1.0, 1.0, -1.0, 1e9]), np.ones(5)), 4)
    1.4826
    """
    return 1.4826 * weighted_median(np.abs(errors), weights)
