"""Lemma C.1 where ℓ is not convex: the smallest gradient of full-batch SSO beside its bound.

ℓ_i(z) = r²/(1 + r²), r = z − y_i (Geman and McClure's loss of robust regression), has curvatures between −½ and 2, so
L = 2 and no convexity. Targets are linear, z = Xθ, so that the surrogate has the smoothness β = λ_max(XᵀX/n)/η that
the lemma speaks of, and m steps of gradient descent with 1/β are what its proof assumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from targetopt.inner import GradientDescent
from targetopt.optim import SSO
from targetopt.oracle import GradientOracle
from targetopt.theory.bounds import stationarity
from targetopt.theory.exact_problem import Array

L = 2.0


@dataclass(frozen=True)
class Stationarity:
    """One run: min_{s<t} ‖∇h(θ_s)‖² and its bound, for t = 1, 2, …

    Attributes:
        problem: the number of the random problem. ``inner_steps``: m.
        measured, bound: both sides of the lemma.
        rises: how many steps ended with a higher loss.
        least_curvature: the smallest ∂²ℓ_i seen along the run, negative where ℓ is not convex.
    """

    problem: int
    inner_steps: int
    measured: Array
    bound: Array
    rises: int
    least_curvature: float


def loss_and_slope(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Geman and McClure's loss and its derivative, for each row.

    >>> loss_and_slope(torch.tensor([1.0]), torch.tensor([0.0]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    r = z - y
    return r.square() / (1 + r.square()), 2 * r / (1 + r.square()).square()


def run_stationarity(
    problems: int, steps: int, inner_steps: Sequence[int] = (1, 5, 20)
) -> list[Stationarity]:
    """Full-batch SSO with η = 1/L on random problems, each with every m."""
    return [_one(number, m, steps) for number in range(problems) for m in inner_steps]


def _one(number: int, m: int, steps: int) -> Stationarity:
    rng = np.random.default_rng([5, number])
    n, d = int(rng.integers(10, 60)), int(rng.integers(1, 8))
    X = torch.from_numpy(rng.normal(size=(n, d)))
    outliers = np.where(rng.random(n) < 0.3, rng.normal(size=n) * 10, 0.0)
    y = X @ torch.from_numpy(rng.normal(size=d)) + torch.from_numpy(outliers)
    theta = torch.from_numpy(rng.normal(size=d) * 2).requires_grad_()
    beta = float(torch.linalg.eigvalsh(X.T @ X / n)[-1]) * L
    oracle = GradientOracle(lambda z: loss_and_slope(z, y))
    opt = SSO([theta], lr=1 / L, inner=GradientDescent(step_size=1 / beta, max_steps=m))
    losses, squares, curvature = [], [], np.inf
    for _ in range(steps):
        with torch.no_grad():
            z = X @ theta
            each, slope = loss_and_slope(z, y)
            r2 = (z - y).square()
            curvature = min(curvature, float(((2 - 6 * r2) / (1 + r2) ** 3).min()))
        losses.append(float(each.mean()))
        squares.append(float((X.T @ slope / n).square().sum()))
        opt.step(lambda: X @ theta, oracle)
    values = np.array(losses)
    # h* is at most the least value that was seen, so this bound is at most the lemma's.
    gap = float(values[0] - values.min())
    return Stationarity(
        problem=number,
        inner_steps=m,
        measured=np.minimum.accumulate(squares),
        bound=np.array([stationarity(beta, gap, t) for t in range(1, steps + 1)]),
        rises=int((np.diff(values) > 1e-15).sum()),
        least_curvature=curvature,
    )
