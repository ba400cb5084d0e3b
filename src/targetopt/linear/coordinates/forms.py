"""The inner problem of a linear model in its three forms, for any number of outputs.

With s the surrogate's gradient in the targets and W its metric, the inner objective and its
gradient are

    q(θ) = mean[s·(z − z_t) + ½ (z − z_t)ᵀW(z − z_t)] + ½λ‖θ‖²,      ∇q = Xᵀs/n + λθ,

and gradients never leave span{θ_t} + range(Xᵀ). A `Form` holds directions as flat coordinates:
``dual`` as (v, r), meaning Xᵀv + rθ_t; ``primal`` and ``matvec`` as the direction itself. `probe`
gives what a step needs to know of a direction: its squared length, its curvature and its image under
the Hessian. A step of size α then changes q by −α‖∇‖² + ½α²⟨∇, H∇⟩ exactly: a trial costs O(1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from targetopt.linear.coordinates.choice import DUAL, MATVEC, PRIMAL
from targetopt.linear.design import Design

Array = NDArray[np.float64]

# Below this fraction of its largest possible value, a quadratic form on a Gram matrix has lost too
# many digits to cancellation; the same number is then taken from X itself.
CANCELLED = 1e-6
REFINEMENTS = 2
# Conjugate gradients stop at this share of the first gradient; what is left is rounding.
CONVERGED = 1e-14
RESTARTS = 5
# A Cholesky pivot below this share of the largest diagonal entry says the rank may be deficient.
PIVOT = 1e-10


class Probe(NamedTuple):
    """‖d‖², ⟨d, Hd⟩ and the coordinates of Hd."""

    squared: float
    bend: float
    image: Array


class Form(ABC):
    """One way to hold the inner problem; counts its products with X and Xᵀ."""

    number: int

    def __init__(
        self, X: Design, theta: Array, targets: Array, slope: Array, metric: Array, decay: float
    ) -> None:
        self.X, self.theta, self.targets = X, theta, targets
        self.slope, self.metric, self.decay = slope, metric, decay
        self.rows, self.outputs = targets.shape
        self.forward_calls = self.backward_calls = 0

    @abstractmethod
    def gradient(self) -> Array:
        """Coordinates of ∇q at θ_t."""

    @abstractmethod
    def probe(self, x: Array) -> Probe:
        """What a step along x needs."""

    @abstractmethod
    def covector(self, x: Array) -> Array:
        """c with c·y = ⟨x, y⟩, the inner product of parameters, for every y."""

    @abstractmethod
    def moved(self, shift: Array) -> Array:
        """θ_t + shift, as parameters."""

    @abstractmethod
    def exact(self) -> Array:
        """θ* − θ_t in coordinates; of several minimisers, the one nearest to θ_t."""

    def weighted(self, p: Array) -> Array:
        """Wp/n."""
        if self.metric.ndim == 3:
            return cast(Array, np.einsum("nij,nj->ni", self.metric, p) / self.rows)
        return cast(Array, self.metric * p / self.rows)

    def matvec(self, theta: Array) -> Array:
        self.forward_calls += 1
        return self.X.matvec(theta)

    def rmatvec(self, u: Array) -> Array:
        self.backward_calls += 1
        return self.X.rmatvec(u)

    def through_targets(self, full: Array, p: Array) -> tuple[float, float]:
        """‖d‖² and ⟨d, Hd⟩ of the direction ``full``, whose targets are p."""
        squared = float(np.vdot(full, full))
        return squared, float(np.vdot(p, self.weighted(p))) + self.decay * squared

    def decrease(self, shift: Array) -> float:
        """q(θ_t) − q(θ_t + shift), from the change of the targets."""
        d = self.moved(shift) - self.theta
        p = self.matvec(d)
        change = np.vdot(p, self.slope / self.rows + 0.5 * self.weighted(p))
        return -float(change + self.decay * np.vdot(d, self.theta + 0.5 * d))


class Dual(Form):
    """Coordinates (v, r) with the n × n matrix K = XXᵀ, shared by all outputs."""

    number = DUAL

    def __init__(self, *problem: object) -> None:
        super().__init__(*problem)  # type: ignore[arg-type]
        self.gram = self.X.gram_dual()
        self.trace = float(np.trace(self.gram))
        self.length = float(np.vdot(self.theta, self.theta))

    def _split(self, x: Array) -> tuple[Array, float]:
        return x[:-1].reshape(self.rows, self.outputs), float(x[-1])

    def gradient(self) -> Array:
        return np.append(self.slope.ravel() / self.rows, self.decay)

    def probe(self, x: Array) -> Probe:
        v, r = self._split(x)
        p = self.gram @ v + r * self.targets
        squared = float(np.vdot(v, p) + r * (np.vdot(v, self.targets) + r * self.length))
        if squared < CANCELLED * (self.trace * np.vdot(v, v) + r * r * self.length):
            full = self.rmatvec(v) + r * self.theta
            p = self.matvec(full)
            squared, bend = self.through_targets(full, p)
            weighted = self.weighted(p)
        else:
            weighted = self.weighted(p)
            bend = float(np.vdot(p, weighted)) + self.decay * squared
        return Probe(squared, bend, np.append(weighted + self.decay * v, self.decay * r))

    def covector(self, x: Array) -> Array:
        v, r = self._split(x)
        p = self.gram @ v + r * self.targets
        last = float(np.vdot(v, self.targets)) + r * self.length
        if np.vdot(v, p) + r * last < CANCELLED * (
            self.trace * np.vdot(v, v) + r * r * self.length
        ):
            full = self.rmatvec(v) + r * self.theta
            p, last = self.matvec(full), float(np.vdot(full, self.theta))
        return np.append(p, last)

    def moved(self, shift: Array) -> Array:
        v, r = self._split(shift)
        return (1.0 + r) * self.theta + self.rmatvec(v)

    def exact(self) -> Array:
        """(DKD + λ)y = …, D = √(W/n), for each output with a metric of its own."""
        metric = np.broadcast_to(self.metric, self.targets.shape)
        root = np.sqrt(metric / self.rows)
        right = -self.slope + (metric * self.targets if self.decay > 0 else 0.0)
        right = right / (self.rows * root)
        solution = np.zeros_like(right)
        for columns in _columns_with_one_metric(self.metric, self.outputs):
            D = root[:, columns.start, None]
            system = D * self.gram * D.T + self.decay * np.eye(self.rows)
            inverse = Inverse(system)
            y, residual = np.zeros_like(right[:, columns]), right[:, columns]
            for _ in range(1 + REFINEMENTS):  # residuals from X: the Gram matrix has fewer digits
                y = y + inverse(residual)
                p = self.matvec(self.rmatvec(D * y))
                residual = right[:, columns] - D * p - self.decay * y
            solution[:, columns] = D * y
        return np.append(solution, -1.0 if self.decay > 0 else 0.0)


class Matvec(Form):
    """The direction itself; every probe is a product with X and one with Xᵀ."""

    number = MATVEC

    def gradient(self) -> Array:
        return (self.rmatvec(self.slope / self.rows) + self.decay * self.theta).ravel()

    def probe(self, x: Array) -> Probe:
        d = x.reshape(self.theta.shape)
        p = self.matvec(d)
        squared, bend = self.through_targets(d, p)
        return Probe(squared, bend, (self.rmatvec(self.weighted(p)) + self.decay * d).ravel())

    def covector(self, x: Array) -> Array:
        return x

    def moved(self, shift: Array) -> Array:
        return self.theta + shift.reshape(self.theta.shape)

    def exact(self) -> Array:
        """Conjugate gradients from θ_t, which stay in range(Xᵀ); restarted while that gains."""
        start = self.gradient()
        shift, best = np.zeros_like(start), np.inf
        goal = CONVERGED**2 * float(start @ start)
        for _ in range(RESTARTS):
            residual = -start - (self.probe(shift).image if shift.any() else 0.0)
            squared = float(residual @ residual)
            if squared <= goal or not squared < 0.25 * best:
                break
            best, d = squared, residual.copy()
            for _ in range(10 * min(self.rows * self.outputs, start.size) + 10):
                _, bend, image = self.probe(d)
                if not bend > 0:
                    break
                alpha = squared / bend
                shift += alpha * d
                residual -= alpha * image
                before, squared = squared, float(residual @ residual)
                if squared <= goal:
                    break
                d = residual + squared / before * d
        return shift


class Primal(Matvec):
    """The direction itself with the matrix XᵀWX/n: d × d if all outputs share W, else (dk) × (dk)."""

    number = PRIMAL

    def __init__(self, *problem: object) -> None:
        super().__init__(*problem)  # type: ignore[arg-type]
        self.shared = self.metric.ndim == 0 or self.outputs == 1
        if self.shared:
            weights = np.broadcast_to(self.metric.reshape(-1), (self.rows,)) / self.rows
            self.gram = self.X.gram_primal(weights)
        else:
            self.gram = self._all_outputs()
        self.trace = float(np.trace(self.gram))

    def _all_outputs(self) -> Array:
        k, d = self.outputs, self.X.shape[1]
        gram = np.zeros((d, k, d, k))
        for i in range(k):
            if self.metric.ndim == 2:
                gram[:, i, :, i] = self.X.gram_primal(self.metric[:, i] / self.rows)
            else:
                for j in range(k):
                    gram[:, i, :, j] = self.X.gram_primal(self.metric[:, i, j] / self.rows)
        return gram.reshape(d * k, d * k)

    def _product(self, x: Array) -> Array:
        if self.shared:
            return (self.gram @ x.reshape(self.theta.shape)).ravel()
        return self.gram @ x

    def probe(self, x: Array) -> Probe:
        image = self._product(x)
        squared, bend = float(x @ x), float(x @ image)
        image = image + self.decay * x
        if bend < CANCELLED * self.trace * squared:
            d = x.reshape(self.theta.shape)
            return Probe(*self.through_targets(d, self.matvec(d)), image)
        return Probe(squared, bend + self.decay * squared, image)

    def exact(self) -> Array:
        """(XᵀWX/n + λ)d = −∇q."""
        inverse = Inverse(self.gram + self.decay * np.eye(self.gram.shape[0]))
        columns = self.theta.shape if self.shared else (-1, 1)
        start = self.gradient()
        shift, residual = np.zeros_like(start), -start
        for _ in range(1 + REFINEMENTS):
            shift = shift + inverse(residual.reshape(columns)).ravel()
            residual = -start - super().probe(shift).image
        return shift


class Inverse:
    """A symmetric positive semi-definite matrix's (pseudo-)inverse."""

    def __init__(self, system: Array) -> None:
        self._factor = _cholesky(system)
        if self._factor is not None:
            return
        if not np.isfinite(system).all():  # the run has diverged, and its θ shall say so
            self._vectors = np.full_like(system, np.nan)
            self._inverse = np.full(len(system), np.nan)
            return
        values, self._vectors = eigh(system, check_finite=False)
        keep = values > values[-1] * values.size * 2.2e-16
        self._inverse = np.where(keep, 1.0 / np.where(keep, values, 1.0), 0.0)

    def __call__(self, right: Array) -> Array:
        if self._factor is not None:
            return np.asarray(cho_solve(self._factor, right, check_finite=False))
        return self._vectors @ (self._inverse[:, None] * (self._vectors.T @ right))


def _cholesky(system: Array) -> tuple[Array, bool] | None:
    """The factor for ``cho_solve``; None if the matrix may be singular."""
    try:
        factor = cho_factor(system, lower=True, check_finite=False)
    except LinAlgError:
        return None
    pivots = np.diag(factor[0]) ** 2
    return factor if pivots.min() > PIVOT * np.diag(system).max() else None


def _columns_with_one_metric(metric: Array, outputs: int) -> list[slice]:
    """Groups of outputs whose exact solves share a system."""
    if metric.ndim == 0:
        return [slice(0, outputs)]
    return [slice(i, i + 1) for i in range(outputs)]
