"""What the two theory figures show, claim by claim."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.studies.theory.appendix import INEQUALITIES
from targetopt.lab.studies.theory.figure_data import BoundsData, CounterexampleData
from targetopt.theory import counterexample


def judge_bounds(data: BoundsData, seeds: int) -> list[Verdict]:
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
    rms, zeta = data.interpolation["rms"], data.interpolation["zeta"]
    return [
        _verdict(
            "Thm 4.2 with its corrected error term bounds the measured distance to z*",
            max(c.rms_ratio for c in found) <= 1 and max(c.mean_ratio for c in found) <= 1,
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
        _verdict(
            "Thm 4.2 (a) holds as printed (with κ = (n/b)·L/μ)",
            max(c.printed_ratio for c in constant) <= 1,
            {"largest mean / bound": max(c.printed_ratio for c in constant)},
            len(constant),
            "last mean distance below the printed bound",
        ),
        _verdict(
            "Thm 4.2 (b) holds as printed",
            refuted.distance <= refuted.printed,
            {
                "distance (exact), 5 copies of Prop. 4.4's examples, T = 10⁴": refuted.distance,
                "bound as printed": refuted.printed,
                "our bound": refuted.sharp,
                "random problems above it": float(sum(c.printed_ratio > 1 for c in exponential)),
            },
            len(exponential),
            "closed forms of both sides",
        ),
        _verdict(
            "Lemma D.8: errors of constant size stay O(ε) under exponential steps",
            bool((data.forgetting[:, 1] <= data.forgetting[:, 3]).all()),
            {"C_T at the largest T": data.forgetting[-1, 1], "printed": data.forgetting[-1, 3]},
            len(data.forgetting),
            "the sum itself, κ = 10",
        ),
        _verdict(
            "Prop. 4.3 bounds E ε² for every m",
            bool((data.projection.measured <= data.projection.bound).all()),
            {
                "largest E ε² / bound": float(
                    (data.projection.measured / data.projection.bound).max()
                )
            },
            len(data.projection.inner_steps),
            "exact expectation over all batches",
        ),
        _verdict(
            "the error of inexact inner steps falls like exp(−m/κ_g)",
            math.isclose(slope, math.log1p(-1 / data.full.kappa_g), rel_tol=0.02),
            {"slope of ln ε": slope, "ln(1 − 1/κ_g)": math.log1p(-1 / data.full.kappa_g)},
            int(late.sum()),
            "least squares on m > 4κ_g, within 2 %",
        ),
        _verdict(
            "interpolation: SSO converges linearly",
            bool(rms[-1] < 1e-3 * rms[0] and (rms[1:] <= data.interpolation["bound"]).all()),
            {"last rms / first": float(rms[-1] / rms[0])},
            seeds,
            "120 steps, below the bound",
        ),
        _verdict(
            "interpolation: ζ_t² = 0 for every t (§4.1.2)",
            bool(zeta[0] <= 1e-12 * zeta.max()),
            {"ζ_1²": float(zeta[0]), "last ζ_t²": float(zeta[-1])},
            len(zeta),
            "closed form; it vanishes with the gap only",
        ),
        _verdict(
            "Lemma C.1 needs no convex ℓ: the smallest gradient of full-batch SSO stays below its bound",
            all((run.measured <= run.bound).all() for run in data.stationarity),
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
        _verdict(
            "the paper's inequalities hold as printed on random instances",
            not broken,
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


def judge_counterexample(data: CounterexampleData) -> list[Verdict]:
    least = min(data.start, 0.375)
    verdicts = []
    for name, ends in data.exact.items():
        last = max(ends)
        bias = data.biases[name, "sso"][last]
        verdicts.append(
            _verdict(
                f"Prop. 4.4: E(θ_T − θ*) ≥ min(θ_1, ⅜) with α_t {name}",
                bias.high >= least and ends[last] >= least - 1e-12 and bias.low <= ends[last],
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
            _verdict(
                f"{words}: no bias on the same example, and convergence",
                longest.low <= 1e-3 and longest.high >= -1e-3 and longest.rms < 0.2 * shortest.rms,
                {"mean": longest.mean, "rms": longest.rms, "rms at the shortest T": shortest.rms},
                longest.runs,
                f"exponential steps, T = {max(ends_of)}: interval of the mean meets ±0.001",
            )
        )
    worst = max(data.refutations, key=lambda r: r.distance / r.printed)
    verdicts.append(
        _verdict(
            "Thm 4.2 (b) as printed is consistent with Prop. 4.4",
            all(r.distance <= r.printed for r in data.refutations),
            {"T": float(worst.steps), "distance": worst.distance, "printed": worst.printed},
            len(data.refutations),
            "closed forms on five copies of the two examples",
        )
    )
    return verdicts


def _verdict(
    claim: str, holds: bool, numbers: Mapping[str, float | str], n: int, test: str
) -> Verdict:
    plain = {k: v if isinstance(v, str) else float(v) for k, v in numbers.items()}
    return Verdict(claim, "holds" if holds else "does not hold", plain, n, test)
