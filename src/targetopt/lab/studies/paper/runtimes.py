"""The claims of Fig. 3: how long a step takes beside SGD's, gathering included. CPU time, medians over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from targetopt.lab.statistics.verdicts import Judgement, Verdict
from targetopt.lab.store.directory import Run
from targetopt.lab.studies.paper.evidence import (
    SGD,
    SSO,
    Array,
    Case,
    Evidence,
    Methods,
    NotJudged,
    Where,
)
from targetopt.lab.studies.paper.judging import as_data
from targetopt.lab.studies.paper.predicates import Contest


@dataclass(frozen=True)
class On(Where):
    """Panels with these batch sizes, whose problem has these options."""

    options: Mapping[str, str] = field(default_factory=dict)

    def match(self, run: Run) -> bool:
        problem = run.manifest["problem"]
        return super().match(run) and all(problem[k] == v for k, v in self.options.items())


STEP = ("gathering_time", "updating_time")
"""The columns that add up to the time of a round."""


def _asked(methods: Methods, where: Where, times: tuple[Sequence[str], ...]) -> dict[str, Any]:
    """What a claim on times compares, as data: these methods beside SGD, each by the median of these columns' sum."""
    contest = as_data(Contest(methods, (SGD,)))
    return {"contests": [contest], "where": as_data(where), "times": times}


def _median(run: Run, *columns: str) -> float:
    """Of the columns' sum over the rounds; what was recorded before the first has no time."""
    return float(np.median(sum(run.columns[name][1:] for name in columns)))


def step_time(run: Run) -> float:
    """CPU seconds of a round: update and gathering."""
    return _median(run, *STEP)


def gathering_time(run: Run) -> float:
    return _median(run, "gathering_time")


def updating_time(run: Run) -> float:
    return _median(run, "updating_time")


def beside_sgd(evidence: Evidence, methods: Methods, where: Where) -> list[tuple[Case, Array]]:
    """Each case's step time over SGD's on the same panel, seed by seed."""
    found = []
    for case, sgd in evidence.pairs(methods, SGD, where):
        found.append((case, case.measure(step_time) / sgd.measure(step_time)))
    return found


@dataclass(frozen=True)
class Ratio:
    """A claim that a ratio of times lies within bounds, for every seed.

    With an ``m`` it is the time of a step of SSO over that of SGD; without one it is τ, the time of gathering over
    that of one update of SGD.

    Attributes:
        says: the claim.
        gatherer: how states are gathered.
        states: how many a step.
        low, high: the bounds.
        m: inner steps.
        says_of_a_machine: whether it is about the machine it was measured on; then nothing is judged.
    """

    says: str
    gatherer: str
    states: int
    low: float
    high: float
    m: int | None = None
    says_of_a_machine: bool = False
    needs: frozenset[str] = frozenset()

    @property
    def where(self) -> Where:
        return On(batch_sizes=(self.states,), options={"gatherer": self.gatherer})

    def asked(self) -> dict[str, Any]:
        methods = SGD if self.m is None else Methods("sso", "gradient-step", m=self.m)
        times = (STEP, STEP) if self.m else (STEP[:1], STEP[1:])
        bounds = {"low": self.low, "high": self.high, "says_of_a_machine": self.says_of_a_machine}
        return {"kind": "Ratio", **_asked(methods, self.where, times), **bounds, "asks": 0.9}

    @property
    def words(self) -> str:
        return "τ" if self.m is None else "time per step over SGD's"

    def of(self, evidence: Evidence) -> Array:
        """The ratio, seed by seed."""
        if self.m is None:
            [case] = evidence.cases(SGD, self.where)
            return case.measure(gathering_time) / case.measure(updating_time)
        [(_, ratio)] = beside_sgd(evidence, Methods("sso", "gradient-step", m=self.m), self.where)
        return ratio

    def judge(self, evidence: Evidence) -> Verdict:
        values = self.of(evidence)
        numbers: dict[str, float | str] = {
            self.words: float(np.median(values)),
            "least … greatest over seeds": f"{values.min():.3g} … {values.max():.3g}",
        }
        if self.says_of_a_machine:
            test = f"medians over rounds, CPU time; a number of this machine and code; {evidence.scale} per size"
            return Verdict(self.says, "measured here", numbers, len(values), test)
        inside = (self.low <= values) & (values <= self.high)
        verdict: Judgement = (
            "holds" if inside.all() else "does not hold" if not inside.any() else "mixed"
        )
        bounds = f"from {self.low:g} to {self.high:g}" if self.low else f"at most {self.high:g}"
        test = f"medians over rounds, CPU time; {bounds} for every seed; {evidence.scale} per size"
        return Verdict(self.says, verdict, numbers, len(values), test)


@dataclass(frozen=True)
class Falls:
    """A claim that the cost beside SGD falls as more states are gathered per step."""

    says: str
    where: Where
    needs: frozenset[str] = frozenset()

    def asked(self) -> dict[str, Any]:
        return {"kind": "Falls", **_asked(SSO, self.where, (STEP, STEP))}

    def judge(self, evidence: Evidence) -> Verdict:
        by_method: dict[str, dict[int, Array]] = {}
        for case, ratio in beside_sgd(evidence, SSO, self.where):
            by_method.setdefault(f"SSO-{case.method['m']}", {})[int(case.batch_size)] = ratio
        if any(len(sizes) < 2 for sizes in by_method.values()):
            raise NotJudged("it compares numbers of states of which this scale has one only")
        falls = [
            sizes[more] < sizes[less]
            for sizes in by_method.values()
            for less, more in zip(sorted(sizes), sorted(sizes)[1:], strict=False)
        ]
        share = float(np.mean(falls))
        verdict: Judgement = "holds" if share == 1 else "does not hold" if share < 0.5 else "mixed"
        numbers: dict[str, float | str] = {"share": share}
        for name, sizes in by_method.items():
            shown = ", ".join(f"{np.median(sizes[size]):.3g}" for size in sorted(sizes))
            numbers[f"{name}, {', '.join(map(str, sorted(sizes)))} states"] = shown
        test = (
            f"time per step over SGD's lower at the next larger number of states; {evidence.scale}"
        )
        return Verdict(self.says, verdict, numbers, int(np.size(falls)), test)


PAPERS, OURS = "torch", "auto"
"""Gatherers: one environment in a loop, as in the paper; batched simulators."""

RUNTIME_CLAIMS: list[Ratio | Falls] = [
    Ratio(
        "at 10 states per step SSO-100 takes almost 50 times as long as SGD",
        PAPERS, 10, 25.0, 100.0, m=100, says_of_a_machine=True,
    ),
    Ratio(
        "at 1000 states per step SSO-100 takes only about three times as long as SGD",
        PAPERS, 1000, 2.0, 4.5, m=100, says_of_a_machine=True,
    ),
    *(
        Ratio(
            "when data collection is expensive, SSO is as fast as SGD even for relatively large m "
            f"(m = {m}, 1000 states)",
            PAPERS, 1000, 0.0, 1.5, m=m,
        )
        for m in (10, 100)
    ),
    Falls(
        "the larger the number of states, the less the model updates of SSO dominate",
        On(options={"gatherer": PAPERS}),
    ),
    Ratio(
        "τ, the time of gathering over that of one model update, is about 1000",
        PAPERS, 1000, 1000 / 3, 3000.0, says_of_a_machine=True,
    ),
    Ratio(
        "beyond the paper: with batched simulators SSO-100 takes at most 8 times as long as SGD at 1000 states",
        OURS, 1000, 0.0, 8.0, m=100,
    ),
    Ratio(
        "beyond the paper: with batched simulators τ is above 10: gathering costs more than ten inner steps",
        OURS, 1000, 10.0, 1e6,
    ),
]  # fmt: skip
