"""L, μ and κ: of a loss in target space, of its mini-batches, and of a linear problem in θ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from targetopt import losses
from targetopt.baselines.smoothness import linear_smoothness
from targetopt.theory.conditions import OutsideAssumptions
from targetopt.types import BadArgument


def loss_constants(loss: losses.Loss, radius: float | None = None) -> tuple[float, float]:
    """(L, μ) of one example's loss in its target: the range of its curvature.

    On all targets, or with ``radius`` on those with |z| ≤ radius, where losses that have no global
    constant have a local one::

        Squared 1, 1     GaussianKL 1/λ_min(Σ), 1/λ_max(Σ)     CrossEntropy ½, 0     Huber 1, 0
        Logistic ¼, σ(R)σ(−R)          Poisson e^R, e^{−R}          Ridged: both + μ

    (CrossEntropy stays 0 with a radius: adding a constant to all logits changes nothing. Huber is
    taken as 0, for it is flat beyond δ of its label.)

    Example:
        >>> loss_constants(losses.Logistic(torch.ones(1)))
        (0.25, 0.0)
        >>> L, mu = loss_constants(losses.Poisson(torch.ones(1)), radius=1.0)
        >>> round(L, 3), round(mu, 3)
        (2.718, 0.368)
    """
    if radius is not None and not 0 <= radius < math.inf:
        raise BadArgument(f"radius={radius!r} must be at least 0 and finite: it bounds |z|")
    if isinstance(loss, losses.Ridged):
        L, mu = loss_constants(loss.loss, radius)
        return L + loss.mu, mu + loss.mu
    if radius is not None and isinstance(loss, losses.Logistic):
        return 0.25, 1 / (2 + 2 * math.cosh(radius))
    if radius is not None and isinstance(loss, losses.Poisson):
        return math.exp(radius), math.exp(-radius)
    if loss.smoothness is None:
        raise OutsideAssumptions(
            f"{type(loss).__name__}'s L",
            ("a finite smoothness: pass radius= for targets known to stay in |z| ≤ radius",),
        )
    return loss.smoothness, loss.strong_convexity


def curvature_range(loss: losses.Loss, targets: torch.Tensor) -> tuple[float, float]:
    """Largest and smallest curvature actually met at these targets: the check of `loss_constants`.

    Example:
        >>> curvature_range(losses.Logistic(torch.ones(2)), torch.zeros(2))
        (0.25, 0.25)
    """
    curvature = loss.curvature(targets)
    if curvature.ndim > targets.ndim:
        curvature = torch.linalg.eigvalsh(curvature)
    return float(curvature.max()), float(curvature.min())


@dataclass(frozen=True)
class TargetConstants:
    """L, μ, κ and the theoretical step of target-space SGD on batches of b out of n examples.

    The stochastic loss ℓ_B = (1/b) Σ_{i∈B} ℓ_i is smooth with L n/b in the mean norm (its curvature
    lies on b of the n coordinates), while ℓ is μ-strongly convex; so κ = (n/b)(L/μ), **not** L/μ, and
    Thm 4.2's step is η = b/(2Ln). In the paper's Euclidean norm these are L/b, μ/n, the same κ, and
    η' = ηn = b/(2L).

    Args:
        L, mu: of one example's loss (`loss_constants`).
        n: examples.
        batch_size: b, drawn without replacement.

    Example:
        >>> constants = TargetConstants(L=1.0, mu=1.0, n=100, batch_size=5)
        >>> constants.smoothness, constants.kappa, constants.step
        (20.0, 20.0, 0.025)
    """

    L: float
    mu: float
    n: int
    batch_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.n:
            raise BadArgument(
                f"batch_size={self.batch_size} must lie between 1 and n={self.n}, the examples"
            )

    @property
    def smoothness(self) -> float:
        """Of ℓ_B in the mean norm, L n/b."""
        return self.L * self.n / self.batch_size

    @property
    def kappa(self) -> float:
        """(n/b)(L/μ)."""
        return self.smoothness / self.mu if self.mu > 0 else math.inf

    @property
    def step(self) -> float:
        """η = b/(2Ln), what Thm 4.2 (a) takes, in the library's convention."""
        return 0.5 / self.smoothness

    @property
    def euclidean(self) -> tuple[float, float, float]:
        """(L/b, μ/n, η') of the paper's norm, in which distances are √n times the mean ones."""
        return self.L / self.batch_size, self.mu / self.n, self.step * self.n


@dataclass(frozen=True)
class ParameterConstants:
    """L_θ, μ_θ and κ_θ of h(θ) = (1/n) Σ ℓ_i(x_iᵀθ) + ½λ‖θ‖² (Euclidean norm of θ).

    Attributes:
        L, mu: h is L-smooth and μ-strongly convex (``mu`` is 0 where X has not full column rank).
        mu_on_rows: μ restricted to the span of the rows of X, where gradient methods move.
        rank: of X.
    """

    L: float
    mu: float
    mu_on_rows: float
    rank: int

    @property
    def kappa(self) -> float:
        """κ_θ on the span of the rows."""
        return self.L / self.mu_on_rows if self.mu_on_rows > 0 else math.inf


def parameter_constants(
    X: Any, L: float, mu: float, *, bias: bool = False, weight_decay: float = 0.0
) -> ParameterConstants:
    """L_θ = L λ_max(XᵀX)/n + λ and μ_θ = μ λ_min(XᵀX)/n + λ, for linear targets z = Xθ.

    Args:
        X: dense or scipy-sparse data, one row per example; at most 4096 on its smaller side, since
            the smallest eigenvalue needs all of them.
        L, mu: of one example's loss (`loss_constants`).
        bias: whether a column of ones is added.
        weight_decay: λ.

    Example:
        >>> found = parameter_constants(np.diag([3.0, 1.0]), 1.0, 1.0)
        >>> found.L, found.mu, found.kappa
        (4.5, 0.5, 9.0)
    """
    spectrum, columns = _gram_spectrum(X, bias)
    floor = spectrum[-1] * max(*X.shape, 1) * np.finfo(np.float64).eps
    positive = spectrum[spectrum > floor]
    rank = int(positive.size)
    if rank == 0:
        raise BadArgument("X is zero: the problem has no curvature in θ")
    smallest = float(positive[0])
    return ParameterConstants(
        L=linear_smoothness(X, L, bias=bias, weight_decay=weight_decay),
        mu=(mu * smallest if rank == columns else 0.0) + weight_decay,
        mu_on_rows=mu * smallest + weight_decay,
        rank=rank,
    )


def _gram_spectrum(X: Any, bias: bool) -> tuple[NDArray[np.float64], int]:
    """Eigenvalues of XᵀX/n (the non-zero ones at least), ascending, and the number of columns."""
    n, d = X.shape
    if min(n, d) > 4096:
        raise BadArgument(
            f"X has shape {X.shape}: μ_θ needs all eigenvalues of its smaller Gram matrix, which is "
            "done up to 4096. Pass a sample of its rows or columns."
        )
    if bias:
        ones = np.ones((n, 1))
        sparse = scipy.sparse.issparse(X)
        X = (
            scipy.sparse.csr_array(scipy.sparse.hstack([X, scipy.sparse.csr_array(ones)]))
            if sparse
            else np.hstack([X, ones])
        )
        d += 1
    gram = X.T @ X if d <= n else X @ X.T
    dense_gram = gram.toarray() if hasattr(gram, "toarray") else np.asarray(gram)
    return np.linalg.eigvalsh(dense_gram) / n, d
