"""App. D.5: the helper lemmas about numbers and sequences."""

from __future__ import annotations

import math

import numpy as np

from targetopt.lab.studies.theory.appendix.registry import Case, inequality
from targetopt.theory.exponential import ExponentialStep

Rng = np.random.Generator


def _schedule(rng: Rng) -> ExponentialStep:
    steps = int(np.exp(rng.uniform(math.log(2), math.log(3000))))
    beta = float(np.exp(rng.uniform(math.log(0.01), math.log(0.99 * steps))))
    return ExponentialStep(steps, beta)


def _kappa(rng: Rng) -> float:
    return float(np.exp(rng.uniform(0, 7)))


@inequality("Lemma D.4", label="lem:ineq1", says="1/(x−1) ≤ 2/ln x for x > 1; even ≤ 1/ln x")
def _lemma_d4(rng: Rng, as_printed: bool) -> Case:
    excess = float(np.exp(rng.uniform(-12, 12)))
    return Case(1 / excess, 2 / math.log1p(excess), 1 / math.log1p(excess))


@inequality("Lemma D.5", label="lem:ineq2", says="e^{−x} ≤ (γ/(ex))^γ for x, γ > 0")
def _lemma_d5(rng: Rng, as_printed: bool) -> Case:
    x, gamma = np.exp(rng.uniform(-4, 4, size=2))
    right = float(np.exp(gamma * (np.log(gamma) - 1 - np.log(x))))
    return Case(math.exp(-x), right, right)


@inequality(
    "Lemma D.6", label="lemma:A-bound", says="A ≥ (αT − 2β)/ln(T/β); even ≥ (αT − β)/ln(T/β)"
)
def _lemma_d6(rng: Rng, as_printed: bool) -> Case:
    step = _schedule(rng)
    return Case(-step.reach(), -step.reach_printed(), -step.reach_bound())


@inequality(
    "Lemma D.7",
    label="lemma:B-bound",
    says="B_T ≤ 16κ²c ln²(T/β)/(e²α²T)",
)
def _lemma_d7(rng: Rng, as_printed: bool) -> Case:
    step, kappa = _schedule(rng), _kappa(rng)
    right = step.noise_printed(kappa)
    return Case(step.noise_sum(kappa), right, right)


@inequality(
    "Lemma D.7, sharper",
    ours=True,
    label="lemma:B-bound",
    says="B_T ≤ [(1 + x_T) T/ln(T/β) + 4e^{x_T−2}]/x_0², x_t = α^{t+1}/(2κ(1−α)) (ours)",
)
def _lemma_d7_sharper(rng: Rng, as_printed: bool) -> Case:
    step, kappa = _schedule(rng), _kappa(rng)
    right = step.noise_bound(kappa)
    return Case(step.noise_sum(kappa), right, right)


@inequality(
    "Lemma D.8",
    label="lemma:C-bound",
    says="Σ exp(−(1/ζ)Σ_{i≥t} α^i) ≤ exp(2β ln T/(ζ ln(T/β))): false; true for C_T (i > t), hence for this "
    "smaller sum: ≤ min(T, 1 + (T/ln(T/β)) e^{x_T}(E₁(x_T) − E₁(x_1)))",
    printed_holds=False,
)
def _lemma_d8(rng: Rng, as_printed: bool) -> Case:
    step, zeta = _schedule(rng), 4 * _kappa(rng)
    exponents = step.remaining() + step.multipliers()
    left = float(np.exp(-exponents / zeta).sum())
    if not as_printed:
        left = step.forgetting_sum(zeta)  # what the theorem needs: the sum from t+1
    return Case(left, step.forgetting_printed(zeta), step.forgetting_bound(zeta))


@inequality(
    "Lemma D.8, closed",
    ours=True,
    label="lemma:C-bound",
    says="C_T ≤ min(T, 1 + T ln(1 + ζ ln(T/β)/(αβ))/ln(T/β)) (ours)",
)
def _lemma_d8_closed(rng: Rng, as_printed: bool) -> Case:
    step, zeta = _schedule(rng), 4 * _kappa(rng)
    right = step.forgetting_closed(zeta)
    return Case(step.forgetting_sum(zeta), right, right)


@inequality(
    "Lemma D.8, tight",
    ours=True,
    label="lemma:C-bound",
    says="the bound of C_T exceeds C_T by at most 1 (ours)",
)
def _lemma_d8_tight(rng: Rng, as_printed: bool) -> Case:
    step, zeta = _schedule(rng), 4 * _kappa(rng)
    right = step.forgetting_sum(zeta) + 1
    return Case(step.forgetting_bound(zeta), right, right)


@inequality(
    "Lemma D.8, proportional",
    ours=True,
    label="lemma:C-bound",
    says="Σ α^t exp(−(1/ζ)Σ_{i>t} α^i) ≤ ζ + 1 for every T (ours)",
)
def _lemma_d8_proportional(rng: Rng, as_printed: bool) -> Case:
    step, zeta = _schedule(rng), 4 * _kappa(rng)
    right = step.proportional_bound(zeta)
    return Case(step.proportional_sum(zeta), right, right)


@inequality(
    "Lemma D.9",
    label="lem:sum-prod-eq",
    says="Π(1−α_t) + Σ α_t Π_{i>t}(1−α_i) = 1 for any sequence",
    relation="=",
)
def _lemma_d9(rng: Rng, as_printed: bool) -> Case:
    alphas = rng.uniform(-0.5, 1.5, size=rng.integers(1, 30))
    later = np.append(np.cumprod((1 - alphas)[::-1])[::-1][1:], 1.0)
    return Case(float(np.prod(1 - alphas) + alphas @ later), 1.0, 1.0)


@inequality(
    "Lemma D.10",
    label="lem:slb_upperbound",
    says="v_τ² ≤ S_τ + Σλ_t v_t implies v_τ ≤ ½Σλ + (S_τ + (½Σλ)²)^½",
)
def _lemma_d10(rng: Rng, as_printed: bool) -> Case:
    steps = int(rng.integers(1, 40))
    lambdas = rng.exponential(size=steps) * rng.choice([0.01, 1.0, 10.0])
    grown = np.cumsum(rng.exponential(size=steps + 1))
    values: list[float] = []
    for tau in range(steps):  # the largest v that the assumption allows
        known = grown[tau + 1] + float(lambdas[:tau] @ np.array(values))
        values.append(0.5 * lambdas[tau] + math.sqrt(known + 0.25 * lambdas[tau] ** 2))
    half = 0.5 * float(lambdas.sum())
    right = half + math.sqrt(grown[-1] + half**2)
    return Case(values[-1], right, right)


@inequality(
    "Thm 4.2, square roots",
    ours=True,
    label="prop:gd_sc_bnd",
    says="Σ_t (Π_{i>t}ρ_i)^½ ≤ 2 Σ_t Π_{i>t}ρ_i for steps that never grow (ours): so the theorem's "
    "general form is true as printed for these",
)
def _square_roots(rng: Rng, as_printed: bool) -> Case:
    steps = -np.sort(-(rng.uniform(0, 0.5, size=rng.integers(1, 200)) ** rng.integers(1, 6)))
    later = np.append(np.cumprod((1 - steps)[::-1])[::-1][1:], 1.0)
    right = 2 * float(later.sum())
    return Case(float(np.sqrt(later).sum()), right, right)


@inequality(
    "App. B.2, divergence",
    label="app:smd",
    says="D_φ(x, y) = Σ x ln(x/y) + Σx − Σy: the signs of the sums are the other way round",
    printed_holds=False,
    relation="=",
)
def _divergence(rng: Rng, as_printed: bool) -> Case:
    x, y = rng.exponential(size=(2, 4)) + 0.01
    definition = (x * np.log(x)).sum() - (y * np.log(y)).sum() - ((1 + np.log(y)) * (x - y)).sum()
    cross = float((x * np.log(x / y)).sum())
    change = float(x.sum() - y.sum())
    return Case(float(definition), cross + change, cross - change)


@inequality(
    "App. B.2, update",
    label="eq:fsmd-2",
    says="0 = g + (1/η)(∇φ(z_{t+½}) − ∇φ(·)): the divergence is from z_t, not from z_{t+½} again",
    printed_holds=False,
    relation="=",
)
def _mirror_update(rng: Rng, as_printed: bool) -> Case:
    z, eta, g = rng.exponential() + 0.01, rng.exponential() + 0.01, float(rng.normal())
    half = z * math.exp(-eta * g)
    return Case(0.0, g + (math.log(half) - math.log(half)) / eta, g + math.log(half / z) / eta)
