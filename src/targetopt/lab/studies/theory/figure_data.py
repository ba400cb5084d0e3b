"""What the two theory figures are made of, computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from targetopt.lab.studies.theory.appendix import Checked, check_all
from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.lab.studies.theory.nonconvex import Stationarity, run_stationarity
from targetopt.lab.studies.theory.survey import (
    Comparison,
    ProjectionCurve,
    projection_curve,
    run_setting,
    step_sizes,
    survey,
)
from targetopt.theory import counterexample
from targetopt.theory.exact_problem import Array, ExactProblem, Rows, Runs, all_batches
from targetopt.theory.exponential import ExponentialStep
from targetopt.theory.measure import surrogates


@dataclass(frozen=True)
class BoundsData:
    """What ``theory-bounds`` shows.

    Attributes:
        curves: for each schedule and method on one problem, the runs, and the bound's total.
        comparisons: the survey of random problems.
        projection: E ε² against m. ``full``: the same with all data.
        forgetting: rows (T, C_T, bound, printed) for κ = 10.
        interpolation: distance, ζ_t² and gap along SSO on an interpolating problem.
        outcomes: of every inequality of the appendix.
        stationarity: Lemma C.1 on losses that are not convex.
    """

    curves: dict[tuple[str, str], tuple[Runs, Array]]
    comparisons: list[Comparison]
    projection: ProjectionCurve
    full: ProjectionCurve
    forgetting: Array
    interpolation: dict[str, Array]
    outcomes: list[Checked]
    stationarity: list[Stationarity]


@dataclass(frozen=True)
class CounterexampleData:
    """What ``theory-counterexample`` shows.

    Attributes:
        biases: (schedule, variant) → T → what runs of T steps ended in.
        exact: schedule → T → E θ_{T+1} of SSO.
        refutations: Thm 4.2 (b) against T, on five copies.
        start: θ_1.
    """

    biases: dict[tuple[str, str], dict[int, counterexample.Bias]]
    exact: dict[str, dict[int, float]]
    refutations: list[counterexample.Refutation]
    start: float


def bounds_data(
    problems: int, seeds: int, steps: int, longest: int, instances: int | None = None
) -> BoundsData:
    """Compute what ``theory-bounds`` shows; ``instances`` caps those of each inequality."""
    rng = np.random.default_rng(2)
    shown = random_problem(rng, n=10, d=2)
    start = shown.minimiser + 3.0
    curves = {}
    for schedule in ("constant", "exponential"):
        etas = step_sizes(schedule, shown.target_constants(5).step, 2 * steps)
        for method in ("sso", "analysis"):
            runs, bound = run_setting(
                shown, 5, method, etas, start=start, seeds=seeds, rng=np.random.default_rng(0)
            )
            curves[schedule, method] = runs, bound.total
    eta = 0.5 / shown.target_constants(10).L
    ms = tuple(dict.fromkeys(int(m) for m in np.geomspace(1, 400, 25)))
    horizons = [T for T in (10, 30, 100, 300, 1000, 3000, 10**4, 10**5, 10**6) if longest >= T]
    return BoundsData(
        curves=curves,
        comparisons=survey(problems, seeds=seeds, steps=steps),
        projection=projection_curve(shown, 5, ms, start, eta),
        full=projection_curve(shown, 10, ms, start, eta),
        forgetting=np.array([_forgetting(T, 40.0) for T in horizons]),
        interpolation=_interpolation(seeds),
        outcomes=check_all(most=instances),
        stationarity=run_stationarity(problems, steps),
    )


def _forgetting(T: int, zeta: float) -> tuple[float, float, float, float]:
    step = ExponentialStep(T)
    return (
        float(T),
        step.forgetting_sum(zeta),
        step.forgetting_bound(zeta),
        step.forgetting_printed(zeta),
    )


def _interpolation(seeds: int) -> dict[str, Array]:
    """SSO on least squares with exact labels, b = 5 of 10: distance, its bound, ζ_t² of one run."""
    problem = random_problem(np.random.default_rng(3), n=10, d=2, interpolates=True)
    start = problem.minimiser + 1.0
    etas = np.full(120, problem.target_constants(5).step)
    runs, bound = run_setting(
        problem, 5, "sso", etas, start=start, seeds=seeds, rng=np.random.default_rng(0)
    )
    rows = all_batches(10, 5)
    # ζ_t² depends on θ_t through z_t − z* alone, and quadratically: take θ_t on a line to θ*
    rms = np.sqrt((runs.distance**2).mean(axis=1))
    zeta = [_zeta_at(problem, rows, start, float(r / rms[0]), float(etas[0])) for r in rms]
    return {"rms": rms, "bound": bound.total, "zeta": np.array(zeta)}


def _zeta_at(problem: ExactProblem, rows: Rows, start: Array, share: float, eta: float) -> float:
    theta = problem.minimiser + share * (start - problem.minimiser)
    return surrogates(problem, rows, theta, eta).zeta_squared


def counterexample_data(runs: int, longest: int, start: float = 1.0) -> CounterexampleData:
    """Compute what ``theory-counterexample`` shows."""
    names = ("constant", "1/t", "1/sqrt(t)", "exponential")
    variants: tuple[counterexample.Variant, ...] = ("sso", "analysis", "independent")
    horizons = (2, 5, 10, 30, 100, 300)
    biases: dict[tuple[str, str], dict[int, counterexample.Bias]] = {}
    exact: dict[str, dict[int, float]] = {}
    for name in names:
        etas = {T: 0.5 * counterexample.schedule(name, T) for T in horizons}
        exact[name] = {T: counterexample.expected_bias(start, e) for T, e in etas.items()}
        for variant in variants:
            biases[name, variant] = {
                T: counterexample.simulate_bias(e, start=start, runs=runs, seed=T, variant=variant)
                for T, e in etas.items()
            }
    totals = [T for T in (10**2, 10**3, 10**4, 10**5, 10**6) if longest >= T]
    refutations = [counterexample.refute_exponential(5, T) for T in totals]
    return CounterexampleData(biases, exact, refutations, start)
