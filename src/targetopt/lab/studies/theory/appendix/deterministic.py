"""§2, §3, App. A and App. C: smoothness, majorisation and the deterministic guarantee."""

from __future__ import annotations

import math

import numpy as np
import torch

from targetopt import losses
from targetopt.lab.studies.theory.appendix.registry import Case, inequality
from targetopt.theory.bounds import stationarity
from targetopt.theory.constants import loss_constants
from targetopt.theory.exact_problem import Array, ExactProblem

Rng = np.random.Generator


def random_problem(
    rng: Rng, *, n: int = 8, d: int = 3, interpolates: bool = False, scale: float = 1.0
) -> ExactProblem:
    """Squared or ridged logistic loss on random data; with interpolation, squared on exact labels."""
    X = rng.normal(size=(n, d)) * np.exp(rng.uniform(-1, 1, size=d)) * scale
    if interpolates:
        return ExactProblem(X, losses.Squared(torch.from_numpy(X @ rng.normal(size=d))))
    y = torch.from_numpy(rng.normal(size=n))
    if rng.random() < 0.5:
        return ExactProblem(X, losses.Squared(y))
    signs = torch.where(y > 0, 1.0, -1.0).double()
    return ExactProblem(X, losses.Ridged(losses.Logistic(signs), float(rng.uniform(0.02, 0.3))))


@inequality(
    "§2, L_θ",
    label="sec:problem",
    says="L_θ of logistic regression is ¼λ_max(XᵀX), not λ_max(XᵀX); it is attained at θ = 0",
    printed_holds=False,
    relation="=",
)
def _logistic_smoothness(rng: Rng, as_printed: bool) -> Case:
    X = rng.normal(size=(6, 3))
    gram = float(np.linalg.eigvalsh(X.T @ X)[-1])
    at_zero = losses.Logistic(torch.ones(6).double()).curvature(torch.zeros(6).double()).numpy()
    hessian = X.T @ (at_zero[:, None] * X)
    return Case(float(np.linalg.eigvalsh(hessian)[-1]), gram, 0.25 * gram)


@inequality(
    "App. A, smoothness",
    label="app:definitions",
    says="‖∇f(w) − ∇f(v)‖² ≤ 2L(f(w) − f(v) − ⟨∇f(v), w − v⟩) as used at z*, where ∇f(v) ≠ 0: a "
    "consequence of smoothness *and convexity*, not of smoothness",
    printed_holds=False,
)
def _cocoercive(rng: Rng, as_printed: bool) -> Case:
    w, v = rng.uniform(-4, 4, size=2)
    if as_printed:  # 1-smooth with a finite minimum, not convex
        right = 2 * ((1 - math.cos(w)) - (1 - math.cos(v)) - math.sin(v) * (w - v))
        return Case((math.sin(w) - math.sin(v)) ** 2, right, right)
    loss = losses.Ridged(losses.Logistic(torch.ones(1).double()), 0.1)
    at = [torch.tensor([u], dtype=torch.float64) for u in (w, v)]
    values = [float(loss.value(u)) for u in at]
    slopes = [float(loss.gradient(u)) for u in at]
    right = 2 * loss_constants(loss)[0] * (values[0] - values[1] - slopes[1] * (w - v))
    return Case((slopes[0] - slopes[1]) ** 2, right, right)


@inequality(
    "§3, majorisation",
    label="sec:method-deterministic",
    says="h(θ) ≤ g_t(θ) for every θ if η ≤ 1/L",
)
def _majorisation(rng: Rng, as_printed: bool) -> Case:
    problem = random_problem(rng)
    eta = rng.uniform(0.05, 1) / loss_constants(problem.loss)[0]
    here, there = rng.normal(size=(2, problem.d)) * 2
    right = _surrogate(problem, here, eta, there)
    return Case(float(problem.objective(there)), right, right)


def _surrogate(problem: ExactProblem, anchor: Array, eta: float, theta: Array) -> float:
    z, moved = problem.X @ anchor, problem.X @ (theta - anchor)
    gain = problem.gradient(z) * moved + moved**2 / (2 * eta)
    return float(problem.objective(anchor) + gain.mean())


def _descent(rng: Rng, steps: int) -> tuple[ExactProblem, float, list[Array], Array]:
    """T outer steps of Alg. 1; the iterates of the first inner loop, and the outer iterates."""
    problem = random_problem(rng, scale=float(np.exp(rng.uniform(-2, 2))))
    X, n = problem.X, problem.n
    eta = rng.uniform(0.1, 1) / loss_constants(problem.loss)[0]
    gram = X.T @ X / (n * eta)
    beta = float(np.linalg.eigvalsh(gram)[-1])
    m = int(rng.integers(1, 6))
    outer = [rng.normal(size=problem.d)]
    first: list[Array] = []
    for t in range(steps):
        theta = outer[-1]
        pull = X.T @ problem.gradient(X @ theta) / n
        omega = theta
        for _ in range(m):
            if t == 0:
                first.append(omega)
            omega = omega - (pull + gram @ (omega - theta)) / beta
        outer.append(omega)
    slopes = [
        X.T @ problem.gradient(X @ outer[0]) / n + gram @ (omega - outer[0]) for omega in first
    ]
    return problem, beta, slopes, np.stack(outer)


@inequality(
    "Lemma C.1, descent",
    label="lemma:deterministic-algo",
    says="h(θ_{t+1}) ≥ h(θ_t) is printed; ≤ is meant and proved",
    printed_holds=False,
)
def _monotone(rng: Rng, as_printed: bool) -> Case:
    problem, _, _, outer = _descent(rng, 1)
    before, after = (float(problem.objective(theta)) for theta in outer)
    return Case(before, after, before) if as_printed else Case(after, after, before)


@inequality(
    "Lemma C.1, proof",
    label="lemma:deterministic-algo",
    says="h(θ_{t+1}) ≤ h(θ_t) − (1/2β)‖∇g(ω_0)‖² − Σ_{k≥1}‖∇g(ω_k)‖²: the sum needs 1/(2β) too",
    printed_holds=False,
)
def _decrease(rng: Rng, as_printed: bool) -> Case:
    problem, beta, slopes, outer = _descent(rng, 1)
    before, after = (float(problem.objective(theta)) for theta in outer)
    squares = [float(s @ s) for s in slopes]
    first, rest = squares[0] / (2 * beta), sum(squares[1:])
    return Case(after, before - first - rest, before - first - rest / (2 * beta))


@inequality(
    "Lemma C.1",
    label="lemma:deterministic-algo",
    says="min_{t<T}‖∇h(θ_t)‖² ≤ 2β[h(θ_0) − h*]/T",
    instances=100,
)
def _stationary(rng: Rng, as_printed: bool) -> Case:
    steps = int(rng.integers(1, 20))
    problem, beta, _, outer = _descent(rng, steps)
    slopes = problem.gradient(outer[:-1] @ problem.X.T) @ problem.X / problem.n
    gap = float(problem.objective(outer[0]) - problem.objective(problem.minimiser))
    right = stationarity(beta, gap, steps)
    return Case(float((slopes**2).sum(axis=1).min()), right, right)
