"""`SSOClassifier`: logistic regression, binary or multinomial."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from targetopt.errors import BadArgument
from targetopt.sklearn.base import Array, LinearSSO, solvable


class SSOClassifier(ClassifierMixin, LinearSSO):  # type: ignore[misc]
    """L2-penalised logistic regression, binary or multinomial, dense or sparse.

    Minimises Σ_i s_i ℓ_i(z_i)/Σ_i s_i + ½ alpha ‖w‖² with the logistic loss for two classes and
    softmax cross-entropy for more, by SSO's Newton rule on the full batch (see
    :mod:`targetopt.linear.newton`). There is no learning rate.

    Args:
        alpha: Penalty on the coefficients. ``"auto"`` is 1/n on n rows (1/Σ_i s_i), which is the default of
            ``LogisticRegression``; ``LogisticRegression(C=C)`` is ``alpha=1/(C*n)``. With ``partial_fit`` the
            penalty ``"auto"`` is paid once, by the first rows.
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
        alpha: float | str = "auto",
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
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False
        )
        classes = _labels(y)
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
        return self._learn(solvable(X), y, self._check_weights(sample_weight, X), start, None)

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
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite=False,
            reset=first,
        )
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
            return self._learn(solvable(X), y, weights, None, None)
        return self._learn(solvable(X), y, weights, self._theta(), self._memory)

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
        import torch

        from targetopt.losses import CrossEntropy, Logistic, Loss

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


def _labels(y: Any) -> Any:
    """The labels that occur, sorted; refused if they are no classes.

    Whole numbers always are classes. Those that float64 holds are sorted as such, for numpy looks for the different
    ones among whole numbers with a table, which takes up to ten times as long.
    """
    if y.dtype.kind not in "iu" or max(int(y.max()), -int(y.min())) > 1 << 53:
        check_classification_targets(y)
        return np.unique(y)
    return np.unique(y.astype(np.float64)).astype(y.dtype)
