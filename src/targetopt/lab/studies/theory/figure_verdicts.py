"""What the two theory figures show, claim by claim: inequalities with both sides measured, and a verdict on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.studies.theory.appendix import INEQUALITIES
from targetopt.lab.studies.theory.figure_data import BoundsData, CounterexampleData
from targetopt.lab.studies.theory.survey import Comparison
from targetopt.theory import counterexample
from targetopt.theory.exact_problem import Array

FILE = "inequalities.parquet"
BELOW = {"kind": "Below"}
WITHIN = 0.02
"""By how much a measured slope may differ from the one that was foretold."""


@dataclass(frozen=True)
class Inequality:
    """One case of a claim: ``left`` ≤ ``right`` is what it says, ``at`` a step, a number of steps or a horizon."""

    case: str
    left: float
    right: float
    at: float = math.nan


@dataclass(frozen=True)
class Judged:
    """A verdict with what it was decided by."""

    verdict: Verdict
    rows: list[Inequality] = field(default_factory=list)


def written(judged: Iterable[Judged]) -> bytes:
    """All inequalities as a table, in double precision, so that anybody can decide the claims again."""
    rows = [(each.verdict.claim, row) for each in judged for row in each.rows]
    columns: dict[str, Any] = {"claim": [claim for claim, _ in rows]}
    for name in ("case", "at", "left", "right"):
        columns[name] = [getattr(row, name) for _, row in rows]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, compression="zstd", compression_level=19)
    return bytes(buffer.getvalue())


def judge_bounds(data: BoundsData, seeds: int) -> list[Judged]:
    found = data.comparisons
    exponential = [c for c in found if c.setting.schedule == "exponential"]
    constant = [c for c in found if c.setting.schedule == "constant"]
    refuted = counterexample.refute_exponential(5, 10_000)
    papers = [o for o in data.outcomes if not INEQUALITIES[o.name].ours]
    broken = [o for o in papers if o.printed_failures]
    still = sum(o.corrected_failures for o in data.outcomes)
    ms = np.array(data.full.inner_steps)
    late = (ms > 4 * data.full.kappa_g) & (data.full.inexact > 1e-24 * data.full.inexact[0])
    slope = float(np.polyfit(ms[late], 0.5 * np.log(data.full.inexact[late]), 1)[0])
    foretold = math.log1p(-1 / data.full.kappa_g)
    rms, zeta = data.interpolation["rms"], data.interpolation["zeta"]
    return [
        _judged(
            "Thm 4.2 with its corrected error term bounds the measured distance to z*",
            [
                Inequality(f"{_words(c)}: {name}", ratio, 1.0)
                for c in found
                for name, ratio in (
                    ("largest root mean square / bound", c.rms_ratio),
                    ("largest upper limit of the mean / bound", c.mean_ratio),
                )
            ],
            {
                "largest rms / bound": max(c.rms_ratio for c in found),
                "largest upper 99.9 % limit of the mean / bound": max(c.mean_ratio for c in found),
                "problems": float(len({c.setting.problem for c in found})),
                "seeds": float(seeds),
            },
            len(found),
            "at every step of every setting, root mean square and upper 99.9 % limit of the mean below the "
            "bound (mean norm)",
        ),
        _judged(
            "Thm 4.2 (a) holds as printed (with κ = (n/b)·L/μ)",
            [Inequality(f"{_words(c)}: mean / bound", c.printed_ratio, 1.0) for c in constant],
            {"largest mean / bound": max(c.printed_ratio for c in constant)},
            len(constant),
            "last mean distance below the printed bound",
        ),
        _judged(
            "Thm 4.2 (b) holds as printed",
            [
                Inequality("five copies of the examples", refuted.distance, refuted.printed, 1e4),
                *(
                    Inequality(f"{_words(c)}: mean / bound", c.printed_ratio, 1.0)
                    for c in exponential
                ),
            ],
            {
                "distance (exact), 5 copies of Prop. 4.4's examples, T = 10⁴": refuted.distance,
                "bound as printed": refuted.printed,
                "our bound": refuted.sharp,
                "random problems above it": float(sum(c.printed_ratio > 1 for c in exponential)),
            },
            len(exponential),
            "closed forms of both sides",
        ),
        _judged(
            "Lemma D.8: errors of constant size stay O(ε) under exponential steps",
            [Inequality("κ = 10", total, printed, T) for T, total, _, printed in data.forgetting],
            {"C_T at the largest T": data.forgetting[-1, 1], "printed": data.forgetting[-1, 3]},
            len(data.forgetting),
            "the sum itself, κ = 10",
        ),
        _judged(
            "Prop. 4.3 bounds E ε² for every m",
            _along(
                "half of the rows",
                data.projection.measured,
                data.projection.bound,
                data.projection.inner_steps,
            ),
            {
                "largest E ε² / bound": float(
                    (data.projection.measured / data.projection.bound).max()
                )
            },
            len(data.projection.inner_steps),
            "exact expectation over all batches",
        ),
        _judged(
            "the error of inexact inner steps falls like exp(−m/κ_g)",
            _along("½ ln ε² against m", 0.5 * np.log(data.full.inexact[late]), foretold, ms[late]),
            {"slope of ln ε": slope, "ln(1 − 1/κ_g)": foretold},
            int(late.sum()),
            "least squares on m > 4κ_g, within 2 %",
            {"kind": "Slope", "slope": foretold, "within": WITHIN},
        ),
        _judged(
            "interpolation: SSO converges linearly",
            [
                *_along("root mean square", rms[1:], data.interpolation["bound"]),
                Inequality("last root mean square", rms[-1], 1e-3 * rms[0]),
            ],
            {"last rms / first": float(rms[-1] / rms[0])},
            seeds,
            "120 steps, below the bound",
        ),
        _judged(
            "interpolation: ζ_t² = 0 for every t (§4.1.2)",
            _along("ζ_t² against 10⁻¹² of its largest", zeta, 1e-12 * zeta.max()),
            {"ζ_1²": float(zeta[0]), "last ζ_t²": float(zeta[-1])},
            len(zeta),
            "closed form; it vanishes with the gap only",
        ),
        _judged(
            "Lemma C.1 needs no convex ℓ: the smallest gradient of full-batch SSO stays below its bound",
            [
                Inequality(f"problem {run.problem}, m = {run.inner_steps}", left, right, t + 1)
                for run in data.stationarity
                for t, left, right in [_worst(run.measured, run.bound)]
            ],
            {
                "largest min ‖∇h‖² / bound": max(
                    float((run.measured / run.bound).max()) for run in data.stationarity
                ),
                "least curvature of ℓ on the way": min(
                    run.least_curvature for run in data.stationarity
                ),
                "steps that rise": float(sum(run.rises for run in data.stationarity)),
            },
            len(data.stationarity),
            "Geman and McClure's loss, η = 1/L, m = 1, 5, 20 steps of 1/β, at every T; h* is taken to be the least "
            "value seen, which makes the bound smaller",
        ),
        _judged(
            "the paper's inequalities hold as printed on random instances",
            [Inequality(f"{o.name}: instances that fail", o.printed_failures, 0.0) for o in papers],
            {
                "statements tried": float(len(papers)),
                "false as printed": float(len(broken)),
                "failures as corrected": float(still),
                "which": "; ".join(o.name for o in broken),
            },
            sum(o.instances for o in papers),
            "random instances under the assumptions as printed",
        ),
    ]


def judge_counterexample(data: CounterexampleData) -> list[Judged]:
    least = min(data.start, 0.375)
    verdicts = []
    for name, ends in data.exact.items():
        last = max(ends)
        bias = data.biases[name, "sso"][last]
        verdicts.append(
            _judged(
                f"Prop. 4.4: E(θ_T − θ*) ≥ min(θ_1, ⅜) with α_t {name}",
                [
                    Inequality("least bias, upper end of the interval", least, bias.high, last),
                    Inequality("least bias, exact mean", least - 1e-12, ends[last], last),
                    Inequality("lower end of the interval, exact mean", bias.low, ends[last], last),
                ],
                {
                    "mean": bias.mean,
                    "99.9 % interval from": bias.low,
                    "to": bias.high,
                    "exact": ends[last],
                    "min(θ_1, ⅜)": least,
                },
                bias.runs,
                f"T = {last}; the interval contains the exact mean, which is at least min(θ_1, ⅜)",
            )
        )
    for variant, words in (("analysis", "q̃"), ("independent", "independent batches")):
        ends_of = data.biases["exponential", variant]
        shortest, longest = ends_of[min(ends_of)], ends_of[max(ends_of)]
        verdicts.append(
            _judged(
                f"{words}: no bias on the same example, and convergence",
                [
                    Inequality("lower end of the interval", longest.low, 1e-3, max(ends_of)),
                    Inequality("upper end of the interval", -1e-3, longest.high, max(ends_of)),
                    Inequality(
                        "rms, a fifth of that of the shortest", longest.rms, 0.2 * shortest.rms
                    ),
                ],
                {"mean": longest.mean, "rms": longest.rms, "rms at the shortest T": shortest.rms},
                longest.runs,
                f"exponential steps, T = {max(ends_of)}: interval of the mean meets ±0.001",
            )
        )
    worst = max(data.refutations, key=lambda r: r.distance / r.printed)
    verdicts.append(
        _judged(
            "Thm 4.2 (b) as printed is consistent with Prop. 4.4",
            [
                Inequality("distance, bound as printed", r.distance, r.printed, r.steps)
                for r in data.refutations
            ],
            {"T": float(worst.steps), "distance": worst.distance, "printed": worst.printed},
            len(data.refutations),
            "closed forms on five copies of the two examples",
        )
    )
    return verdicts


def _words(comparison: Comparison) -> str:
    setting = comparison.setting
    return (
        f"problem {setting.problem} ({setting.loss}, n = {setting.n}, d = {setting.d}), b = {setting.batch_size}, "
        f"{setting.method}, {setting.schedule} steps"
    )


def _along(
    case: str, left: Array, right: Array | float, at: Iterable[float] | None = None
) -> list[Inequality]:
    """An inequality for each of the numbers."""
    places = range(1, len(left) + 1) if at is None else at
    rights = np.broadcast_to(right, left.shape)
    return [
        Inequality(case, float(a), float(b), float(t))
        for t, a, b in zip(places, left, rights, strict=True)
    ]


def _worst(left: Array, right: Array) -> tuple[int, float, float]:
    """Where the left side is largest beside the right one, and both there."""
    t = int((left / right).argmax())
    return t, float(left[t]), float(right[t])


def _judged(
    claim: str,
    rows: Sequence[Inequality],
    numbers: Mapping[str, float | str],
    n: int,
    test: str,
    asked: Mapping[str, Any] = BELOW,
) -> Judged:
    """Decided on the rows: each holds, or the slope of their left sides is the one foretold."""
    plain = {k: v if isinstance(v, str) else float(v) for k, v in numbers.items()}
    if asked["kind"] == "Slope":
        slope = np.polyfit([row.at for row in rows], [row.left for row in rows], 1)[0]
        holds = bool(abs(slope / asked["slope"] - 1) <= asked["within"])
    else:
        holds = all(row.left <= row.right for row in rows)
    verdict = Verdict(claim, "holds" if holds else "does not hold", plain, n, test, asked)
    return Judged(verdict, list(rows))
