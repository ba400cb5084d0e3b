"""σ², σ_z², ζ_t² and ε_t: the quantities the guarantees are made of, measured.

All distances and gradients are in the library's mean norm, ‖z‖² = (1/n) Σ z_i²; multiply σ² by 1/n and
squared distances by n for the paper's Euclidean norm. ζ_t² is a squared distance of *parameters*
(Euclidean), in the paper and here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.inner import LBFGS, Inner
from targetopt.optim import SSO
from targetopt.theory.bounds import projection_error_bound
from targetopt.theory.exact_problem import Array, ExactProblem, Rows, batch_grams, unbiased_steps
from targetopt.types import BadArgument


def gradient_noise(problem: ExactProblem, batch_size: int) -> float:
    """σ² = E_B‖∇ℓ(z*) − ∇ℓ_B(z*)‖² = ((n − b)/b) · mean_i g_i(z*)², batches without replacement.

    Zero for the full batch, and under interpolation (g(z*) = 0).

    Example:
        >>> import targetopt as to
        >>> twins = ExactProblem(
        ...     np.array([[1.0], [2.0]]), to.losses.Squared(torch.tensor([1.0, -0.5]))
        ... )
        >>> gradient_noise(twins, 1), gradient_noise(twins, 2)
        (0.625, 0.0)
    """
    if not 1 <= batch_size <= problem.n:
        raise BadArgument(f"batch_size={batch_size} must lie between 1 and n={problem.n}")
    g = problem.gradient(problem.solution)
    return (problem.n - batch_size) / batch_size * float(np.mean(g**2))


def parameter_noise(problem: ExactProblem) -> float:
    """σ_θ² = E_i‖x_i g_i(z*)‖², the noise of SGD at θ*."""
    g = problem.gradient(problem.solution)
    return float(np.mean((problem.X**2).sum(axis=1) * g**2))


def objective_noise(problem: ExactProblem, rows: Rows) -> float:
    """σ_z² = min_z ℓ(z) − E_B[min_z ℓ_B(z)] over the targets the model can produce.

    ``rows`` are the batches; with all of them (`all_batches`) the expectation is exact.
    """
    smallest = [float(batch.objective(batch.minimiser)) for batch in map(problem.restricted, rows)]
    return float(problem.objective(problem.minimiser)) - float(np.mean(smallest))


@dataclass(frozen=True)
class Surrogates:
    """The batch surrogates g̃ and q̃ of Prop. 4.3 at one iterate: curvature, and ζ_t².

    Attributes:
        mu_g, L_g: least and largest curvature in θ of g̃ over all batches, λ(X_BᵀX_B)/(ηb).
        mu_q: least curvature of q̃, λ_min(XᵀX)/(ηn).
        excess_g: min E[g̃] − E[min g̃].
        excess_q: min E[q̃] − E[min q̃].
    """

    mu_g: float
    L_g: float
    mu_q: float
    excess_g: float
    excess_q: float

    @property
    def zeta_squared(self) -> float:
        """ζ_t² = (8/min{μ_g, μ_q}) (excess_g + excess_q); infinite if a batch lacks rank."""
        least = min(self.mu_g, self.mu_q)
        excess = self.excess_g + self.excess_q
        return 8 / least * excess if least > 0 else math.inf if excess > 0 else 0.0


def surrogates(problem: ExactProblem, rows: Rows, theta: ArrayLike, eta: float) -> Surrogates:
    """Closed forms at θ, for the target step η (mean convention) ::

        excess_g = (η/2) [E_B (1/b) g_BᵀP_B g_B − (1/n) gᵀP g]         P_B, P: projections onto the
        excess_q = (η/2) [E_B (n/b²) g_BᵀP_BB g_B − (1/n) gᵀP g]       columns of X_B and of X

    For the full batch both vanish. They do **not** vanish under interpolation, only at z_t = z*
    (docs/errata.md).
    """
    X, n, b = problem.X, problem.n, rows.shape[1]
    g = problem.gradient(X @ np.asarray(theta, dtype=np.float64))
    spectra = np.linalg.eigvalsh(batch_grams(X, rows))
    least, largest = float(spectra[:, 0].min()), float(spectra[:, -1].max())
    if least <= largest * problem.d * 1e-14:  # rounding is not curvature
        least = 0.0
    answers = g[rows]
    on_batches = np.linalg.norm(
        X[rows] @ (np.linalg.pinv(X[rows]) @ answers[..., None]), axis=(1, 2)
    )
    inverse = np.linalg.pinv(X.T @ X)
    pulled = np.einsum("kbd,kb->kd", X[rows], answers) / b
    on_all = np.einsum("ki,ij,kj->k", pulled, inverse, pulled) * n
    full = X.T @ g / n
    common = float(full @ inverse @ full) * n
    whole = float(np.linalg.eigvalsh(X.T @ X / n)[0])
    return Surrogates(
        mu_g=least / eta,
        L_g=largest / eta,
        mu_q=max(whole, 0.0) / eta,
        excess_g=max(0.5 * eta * (float(np.mean(on_batches**2)) / b - common), 0.0),
        excess_q=max(0.5 * eta * (float(np.mean(on_all)) - common), 0.0),
    )


def expected_projection_error(
    problem: ExactProblem, rows: Rows, steps: Array, theta: ArrayLike, eta: float
) -> float:
    """E_B[ε_{t+1}²] at θ, for SSO with the step matrices R of `sso_steps`."""
    g = problem.gradient(problem.X @ np.asarray(theta, dtype=np.float64))
    difference = steps - unbiased_steps(problem.X, rows)
    moved = np.einsum("kdb,kb->kd", difference, g[rows]) @ problem.X.T
    return float(eta**2 * np.mean(moved**2, axis=1).mean())


def proposition_4_3(
    problem: ExactProblem,
    rows: Rows,
    theta: ArrayLike,
    eta: float,
    inner_steps: float,
    *,
    sigma_z_squared: float,
) -> float:
    """The right-hand side of Prop. 4.3 at θ, every constant measured (`projection_error_bound`).

    ``sigma_z_squared`` is `objective_noise` of the same batches: it does not change along a run.
    """
    found = surrogates(problem, rows, theta, eta)
    gap = float(problem.objective(np.asarray(theta)) - problem.objective(problem.minimiser))
    return projection_error_bound(
        lipschitz=float(np.linalg.norm(problem.X, 2)) / math.sqrt(problem.n),
        zeta_squared=found.zeta_squared,
        inner_steps=inner_steps,
        mu_g=found.mu_g,
        L_g=found.L_g,
        gap=max(gap, 0.0),
        sigma_z_squared=sigma_z_squared,
        eta=eta,
        L=problem.target_constants(rows.shape[1]).L,
    )


@dataclass(frozen=True)
class Trace:
    """What was measured along a run; index t is the step, from the first.

    Attributes:
        distance: ‖z_t − z*‖.
        gap: h(θ_t) − h*.
        projection_error: ε_{t+1} of the step actually made.
        expected_error: (E_B ε_{t+1}²)^{½} at θ_t, if ``steps`` was given, else nan.
        zeta_squared: ζ_t² (infinite where a batch lacks rank).
    """

    distance: Array
    gap: Array
    projection_error: Array
    expected_error: Array
    zeta_squared: Array


def trace(
    problem: ExactProblem,
    thetas: ArrayLike,
    batches: ArrayLike,
    etas: ArrayLike,
    *,
    all_rows: Rows,
    steps: Array | None = None,
) -> Trace:
    """Measure a finished run exactly, whoever made it: `to.SSO`, the compiled driver, another library.

    Args:
        problem: its data and loss.
        thetas: θ_1 … θ_{T+1}, shape (T+1, d).
        batches: the rows used by each step, shape (T, b).
        etas: η_1 … η_T.
        all_rows: the batches that could have been drawn, for expectations.
        steps: R of the method on ``all_rows``, for E ε².
    """
    path = np.asarray(thetas, dtype=np.float64)
    used = np.asarray(batches, dtype=np.intp)
    sizes = np.asarray(etas, dtype=np.float64)
    X, root = problem.X, math.sqrt(problem.n)
    before, after = path[:-1], path[1:]
    answers = np.take_along_axis(problem.gradient(before @ X.T), used, axis=1)
    ideal = before - sizes[:, None] * np.einsum("tdb,tb->td", unbiased_steps(X, used), answers)
    found = [
        surrogates(problem, all_rows, theta, float(eta))
        for theta, eta in zip(before, sizes, strict=True)
    ]
    expected = [
        math.nan
        if steps is None
        else math.sqrt(expected_projection_error(problem, all_rows, steps, theta, float(eta)))
        for theta, eta in zip(before, sizes, strict=True)
    ]
    return Trace(
        distance=np.linalg.norm(path @ X.T - problem.solution, axis=1) / root,
        gap=problem.objective(path) - problem.objective(problem.minimiser),
        projection_error=np.linalg.norm((after - ideal) @ X.T, axis=1) / root,
        expected_error=np.array(expected),
        zeta_squared=np.array([one.zeta_squared for one in found]),
    )


def measured_projection_error(
    model: nn.Module,
    forward: Callable[[nn.Module], Tensor],
    forward_all: Callable[[nn.Module], Tensor],
    oracle: Any,
    *,
    lr: float,
    inner: Inner,
    reference: Inner | None = None,
) -> float:
    """ε_{t+1} of one SSO step on any model, against q̃ (``regularise_on``); the model is unchanged.

    Args:
        model: the parameters θ_t.
        forward: targets of the batch; ``forward_all``, of all data.
        oracle: answers for the batch; it is asked twice.
        lr: η.
        inner: the solver whose step is measured.
        reference: the solver of q̃; ``LBFGS(max_steps=500)`` by default, `Exact` for linear targets.
            For a non-linear model this is the minimiser it finds, near θ_t.
    """
    made, ideal = copy.deepcopy(model), copy.deepcopy(model)
    SSO(made.parameters(), lr, inner=inner).step(lambda: forward(made), oracle)
    exact = LBFGS(max_steps=500) if reference is None else reference
    SSO(ideal.parameters(), lr, inner=exact).step(
        lambda: forward(ideal), oracle, regularise_on=lambda: forward_all(ideal)
    )
    with torch.no_grad():
        difference = forward_all(made) - forward_all(ideal)
    return float((difference.square().sum() / difference.shape[0]).sqrt())
