"""Many random problems, many seeds: the measured distances beside the bounds that should hold them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from targetopt.inner import Armijo, Exact, Inner
from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.theory.bounds import (
    BoundCurve,
    constant_step_bound,
    distance_bound,
    exponential_step_bound,
)
from targetopt.theory.driven import drive
from targetopt.theory.exact_problem import (
    Array,
    ExactProblem,
    Runs,
    all_batches,
    simulate,
    sso_steps,
    unbiased_steps,
)
from targetopt.theory.exponential import ExponentialStep
from targetopt.theory.measure import (
    expected_projection_error,
    gradient_noise,
    objective_noise,
    proposition_4_3,
)
from targetopt.types import BadArgument

SCHEDULES = ("constant", "inverse-sqrt", "exponential")
METHODS = ("sso", "sso m=5", "analysis")
INNER: dict[str, Inner] = {"sso": Exact(), "sso m=5": Armijo(max_steps=5)}


@dataclass(frozen=True)
class Setting:
    """One problem and one way of running SSO on it.

    Attributes:
        problem: the problem's number; ``loss``, ``n``, ``d`` describe it.
        batch_size: b. ``kappa``: (n/b)(L/μ).
        method: ``"sso"`` (exact inner solve) or ``"sso m=5"`` (five Armijo steps), run by the compiled
            driver; or ``"analysis"``, the steps on q̃, which exist in the analysis alone.
        schedule: of η_t, which starts at b/(2Ln), Thm 4.2's.
    """

    problem: int
    loss: str
    n: int
    d: int
    batch_size: int
    kappa: float
    method: str
    schedule: str


@dataclass(frozen=True)
class Comparison:
    """Measured against bounds, in the mean norm; every ratio should be at most 1.

    Attributes:
        setting: what was run.
        rms_ratio: largest, over t, of (E‖z_t − z*‖²)^½ over the sharp bound of Thm 4.2 (general).
        mean_ratio: the same for the upper 99.9 % confidence limit of E‖z_t − z*‖.
        closed_ratio: last rms over the closed form, (a) or (b), sharp (nan for inverse-sqrt).
        printed_ratio: last mean over the closed form as printed (nan for inverse-sqrt).
        final: last rms distance. ``bound``: last sharp bound.
        seeds: how many runs this rests on: 25 times those asked for where these left the confidence
            limit above the bound, so that no comparison stays undecided for want of runs.
    """

    setting: Setting
    rms_ratio: float
    mean_ratio: float
    closed_ratio: float
    printed_ratio: float
    final: float
    bound: float
    seeds: int

    def row(self) -> dict[str, Any]:
        """Flat, for a table."""
        own = {k: v for k, v in asdict(self).items() if k != "setting"}
        return {**asdict(self.setting), **own}


def step_sizes(schedule: str, first: float, steps: int) -> Array:
    """η_1 … η_T of one of `SCHEDULES`."""
    if schedule not in SCHEDULES:
        raise BadArgument(f"schedule={schedule!r} must be one of {', '.join(SCHEDULES)}")
    t = np.arange(1, steps + 1)
    if schedule == "exponential":
        return first * ExponentialStep(steps).multipliers()
    return np.asarray(first * t ** (-0.5 if schedule == "inverse-sqrt" else 0.0))


def run_setting(
    problem: ExactProblem,
    batch_size: int,
    method: str,
    etas: Array,
    *,
    start: Array,
    seeds: int,
    rng: np.random.Generator,
) -> tuple[Runs, BoundCurve]:
    """Run one method for many seeds, and Thm 4.2's sharp bound with the errors it made."""
    if method not in METHODS:
        raise BadArgument(f"method={method!r} must be one of {', '.join(METHODS)}")
    if method == "analysis":
        rows = all_batches(problem.n, batch_size)
        steps = unbiased_steps(problem.X, rows)
        runs = simulate(problem, rows, steps, etas, start=start, seeds=seeds, rng=rng)
    else:
        first = int(rng.integers(2**31))
        runs = drive(
            problem, batch_size, INNER[method], etas, start=start, seeds=seeds, first_seed=first
        )
    constants = problem.target_constants(batch_size)
    curve = distance_bound(
        float(runs.distance[0, 0]),
        etas,
        L=constants.smoothness,
        mu=constants.mu,
        sigma=math.sqrt(gradient_noise(problem, batch_size)),
        errors=_rms(runs.projection_error),
    )
    return runs, curve


def survey(
    problems: int,
    *,
    seeds: int = 200,
    steps: int = 150,
    schedules: tuple[str, ...] = SCHEDULES,
    methods: tuple[str, ...] = METHODS,
    seed: int = 0,
) -> list[Comparison]:
    """Compare measured and bounded distances on random problems, every schedule and method.

    Example:
        >>> found = survey(1, seeds=50, steps=20, schedules=("constant",), methods=("sso",))
        >>> found[0].rms_ratio < 1
        True
    """
    return [
        comparison
        for number in range(problems)
        for comparison in _one_problem(number, seeds, steps, schedules, methods, seed)
    ]


def _one_problem(
    number: int,
    seeds: int,
    steps: int,
    schedules: tuple[str, ...],
    methods: tuple[str, ...],
    seed: int,
) -> list[Comparison]:
    rng = np.random.default_rng([seed, number])
    n, d = int(rng.integers(4, 11)), int(rng.integers(1, 4))
    problem = random_problem(rng, n=n, d=d)
    batch_size = int(rng.choice([1, d, max(1, n // 2), n]))
    # from z* itself the full batch does not move at all, and nothing would be compared
    far = [1.0, 5.0] if batch_size == n else [0.0, 1.0, 5.0]
    start = problem.minimiser + rng.normal(size=d) * float(rng.choice(far))
    constants = problem.target_constants(batch_size)
    found = []
    for schedule in schedules:
        etas = step_sizes(schedule, constants.step, steps)
        for method in methods:
            setting = Setting(
                number,
                type(problem.loss).__name__,
                n,
                d,
                batch_size,
                constants.kappa,
                method,
                schedule,
            )
            for count in (seeds, 25 * seeds):
                runs, curve = run_setting(
                    problem, batch_size, method, etas, start=start, seeds=count, rng=rng
                )
                compared = _compared(problem, setting, runs, curve, etas)
                if compared.mean_ratio <= 1:
                    break
            found.append(compared)
    return found


def _compared(
    problem: ExactProblem, setting: Setting, runs: Runs, curve: BoundCurve, etas: Array
) -> Comparison:
    seeds = runs.distance.shape[1]
    mean = runs.distance.mean(axis=1)
    upper = mean + 3.34 * runs.distance.std(axis=1, ddof=1) / math.sqrt(seeds)
    rms = _rms(runs.distance)
    floor = 1e-12 * (1 + float(np.abs(problem.solution).max()))  # rounding, where both are nought
    sharp, printed = _closed_forms(problem, setting, runs, etas)
    return Comparison(
        setting=setting,
        rms_ratio=float((rms[1:] / (curve.total + floor)).max()),
        mean_ratio=float((upper[1:] / (curve.total + floor)).max()),
        closed_ratio=float(rms[-1]) / (sharp + floor),
        printed_ratio=float(mean[-1]) / (printed + floor),
        final=float(rms[-1]),
        bound=float(curve.total[-1]),
        seeds=seeds,
    )


def _closed_forms(
    problem: ExactProblem, setting: Setting, runs: Runs, etas: Array
) -> tuple[float, float]:
    """Thm 4.2 (a) or (b): sharp with measured root mean squares, printed with the largest error."""
    constants = problem.target_constants(setting.batch_size)
    L, mu = constants.smoothness, constants.mu
    sigma = math.sqrt(gradient_noise(problem, setting.batch_size))
    initial, steps = float(runs.distance[0, 0]), len(etas)
    largest = float(runs.projection_error.max())
    rms = _rms(runs.projection_error)
    if setting.schedule == "constant":
        sharp = constant_step_bound(initial, steps, L=L, mu=mu, sigma=sigma, error=float(rms.max()))
        printed = constant_step_bound(
            initial, steps, L=L, mu=mu, sigma=sigma, error=largest, version="printed"
        )
    elif setting.schedule == "exponential":
        decay = ExponentialStep(steps)
        relative = float((rms / decay.multipliers()).max())
        sharp = exponential_step_bound(initial, decay, L=L, mu=mu, sigma=sigma, error=relative)
        printed = exponential_step_bound(
            initial, decay, L=L, mu=mu, sigma=sigma, error=largest, version="printed"
        )
    else:
        return math.nan, math.nan
    return sharp.total, printed.total


@dataclass(frozen=True)
class ProjectionCurve:
    """E ε² against m at one iterate of one problem, and Prop. 4.3's bound.

    Attributes:
        inner_steps: m.
        measured: E_B ε², exactly, over all batches.
        inexact: its part from stopping after m steps, E_B‖z_{t+1} − z̃_{t+1}‖².
        bound: Prop. 4.3.
        kappa_g: of the inner problems.
    """

    inner_steps: tuple[int, ...]
    measured: Array
    inexact: Array
    bound: Array
    kappa_g: float


def projection_curve(
    problem: ExactProblem, batch_size: int, inner_steps: tuple[int, ...], theta: Array, eta: float
) -> ProjectionCurve:
    """Prop. 4.3 against m, every expectation an exact sum over all batches."""
    rows = all_batches(problem.n, batch_size)
    noise = max(objective_noise(problem, rows), 0.0)
    exact = sso_steps(problem.X, rows)
    answers = problem.gradient(problem.X @ theta)[rows]
    measured, inexact, bound = [], [], []
    for m in inner_steps:
        table = sso_steps(problem.X, rows, m)
        measured.append(expected_projection_error(problem, rows, table, theta, eta))
        short = eta * np.einsum("kdb,kb->kd", table - exact, answers) @ problem.X.T
        inexact.append(float(np.mean(short**2, axis=1).mean()))
        bound.append(proposition_4_3(problem, rows, theta, eta, m, sigma_z_squared=noise))
    spectra = np.linalg.eigvalsh(np.einsum("kbi,kbj->kij", problem.X[rows], problem.X[rows]))
    return ProjectionCurve(
        inner_steps,
        np.array(measured),
        np.array(inexact),
        np.array(bound),
        float(spectra.max() / spectra.min()),
    )


def _rms(values: Array) -> Array:
    """Root mean square over seeds."""
    root: Array = np.sqrt((values**2).mean(axis=1))
    return root
