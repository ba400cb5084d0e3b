"""From scores to verdicts: a claim, the share of cases it asks for, and how its interval decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import numpy as np

from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.statistics.verdicts import Judgement, Verdict
from targetopt.lab.studies.paper.evidence import Array, Evidence, NotJudged
from targetopt.lab.studies.paper.predicates import Predicate
from targetopt.lab.studies.paper.scoring import Scores

BEYOND = "beyond the paper: "
"""How the claims begin that are ours and not the paper's."""

ALWAYS, PLAINLY, MOSTLY, SOME = 1.0, 0.9, 0.5, 0.0
"""The share of cases a claim asks for: "across both m and batch size", a plain statement, "generally", "can"."""


class Judged(Protocol):
    """A sentence that can be judged on the runs of its figure."""

    @property
    def says(self) -> str: ...

    @property
    def needs(self) -> AbstractSet[str]:
        """Other figures whose runs it is compared with."""

    def judge(self, evidence: Evidence) -> Verdict:
        """The verdict; :class:`NotJudged` where the runs do not allow one."""

    def asked(self) -> Mapping[str, Any]:
        """The test as plain data."""


@dataclass(frozen=True)
class Claim:
    """A sentence on one figure, and the test it is put to.

    Attributes:
        says: the claim.
        predicate: what has to be so in a case.
        asks: in which share of the cases.
        quieter: instead of that: the share must be larger at these batch sizes than at the others.
    """

    says: str
    predicate: Predicate
    asks: float = PLAINLY
    quieter: tuple[int | str, ...] = ()

    @property
    def needs(self) -> set[str]:
        return self.predicate.needs

    def judge(self, evidence: Evidence) -> Verdict:
        if self.quieter:
            return judge_difference(self.says, self.predicate, self.quieter, evidence)
        return judge(self.says, self.predicate, self.asks, evidence)

    def asked(self) -> dict[str, Any]:
        demanded = {"quieter": list(self.quieter)} if self.quieter else {"asks": self.asks}
        return {**as_data(self.predicate), **demanded}


def as_data(item: Any) -> Any:
    """A test as plain JSON values; the name of its kind is under ``kind``.

    >>> as_data((1, "full"))
    [1, 'full']
    """
    if is_dataclass(item) and not isinstance(item, type):
        content = {each.name: as_data(getattr(item, each.name)) for each in fields(item)}
        known = {key: value for key, value in content.items() if value not in (None, [], {})}
        return {"kind": type(item).__name__, **known}
    if isinstance(item, Mapping):
        return {key: as_data(value) for key, value in item.items()}
    if isinstance(item, tuple | list | frozenset):
        return [as_data(value) for value in item]
    return item


def verdict_on(claim: Judged, evidence: Evidence) -> Verdict:
    """The verdict on a claim, which may be that it cannot be judged, with the reason."""
    try:
        return replace(claim.judge(evidence), asked=claim.asked())
    except NotJudged as reason:
        return Verdict(claim.says, "not judged", test=str(reason))


DRAWN = "bootstrap, seeds drawn once for all cases; the data sets are what they are"
"""Where the interval of a verdict comes from."""
INTERVAL = "95 % interval over seeds"


def judge(claim: str, predicate: Predicate, asks: float, evidence: Evidence) -> Verdict:
    """A claim that a share of cases, ``asks``, satisfies ``predicate``.

    Holds if the whole 95 % interval of the share (bootstrap over seeds, drawn once for all cases,
    which share starts, batches and rivals) is above ``asks``; does not hold if all of it is below ½;
    mixed otherwise. With one seed there is no interval, and the share itself decides. A sentence about all cases
    that has a counter-example is false as stated, and in how many cases it is true is said.
    """
    scores = predicate.scores(evidence)
    share, low, high = _interval(scores.values, statistics.mean)
    holds = low > asks or low == 1.0
    refuted = high == 0 if asks == SOME else high < 0.5
    fails: Judgement = "does not hold" if refuted else "mixed"
    verdict: Judgement = "holds" if holds else "false as stated" if asks == ALWAYS else fails
    per_case = scores.values.mean(axis=0)
    worst = int(per_case.argmin())
    numbers: dict[str, float | str] = {
        "share": share,
        INTERVAL: f"{low:.3g} … {high:.3g}" if len(scores.values) > 1 else "one seed: none",
        "cases: yes, even, no": f"{(per_case > 0.5).sum()}, {(per_case == 0.5).sum()}, "
        f"{(per_case < 0.5).sum()}",
    }
    if verdict == "false as stated":
        always = int((scores.values > 0.5).all(axis=0).sum())
        numbers["true with every seed in"] = f"{always} of {len(scores.cases)} cases"
    if len(set(scores.problems)) > 1:
        numbers["share on each"] = _on_each(scores)
    if scores.ratios is not None:
        middle = float(statistics.quantile(scores.ratios.ravel(), 0.5))
        numbers[f"median ratio of {scores.compared}"] = middle
        worst = int(np.median(scores.ratios, axis=0).argmax())
    numbers |= scores.further
    if per_case[worst] < 1:
        numbers["worst case"] = scores.cases[worst]
    test = (
        f"{predicate.describe()}; share of {len(scores.cases)} cases × {len(scores.values)} seeds "
        f"{'all' if asks == 1 else f'above {asks:g}'} ({DRAWN}); {evidence.scale}"
    )
    return Verdict(claim, verdict, numbers, scores.values.size, test)


def judge_difference(
    claim: str, predicate: Predicate, quiet: Sequence[int | str], evidence: Evidence
) -> Verdict:
    """A claim that the share is larger on the batch sizes ``quiet`` than on the others."""
    scores = predicate.scores(evidence)
    chosen = np.isin(np.array([str(size) for size in scores.batch_sizes]), [str(q) for q in quiet])
    if chosen.all() or not chosen.any():
        raise NotJudged("it compares batch sizes of which this scale has one kind only")

    def difference(values: Array) -> Array:
        return statistics.mean(values[..., chosen]) - statistics.mean(values[..., ~chosen])

    value, low, high = _interval(scores.values, difference)
    verdict: Judgement = "holds" if low > 0 else "does not hold" if high < 0 else "mixed"
    numbers: dict[str, float | str] = {
        f"share at batch {' and '.join(map(str, quiet))}": float(scores.values[:, chosen].mean()),
        "share at the others": float(scores.values[:, ~chosen].mean()),
        "difference": value,
        INTERVAL: f"{low:.3g} … {high:.3g}" if len(scores.values) > 1 else "one seed: none",
    }
    test = f"{predicate.describe()}; difference of shares above 0 ({DRAWN}); {evidence.scale}"
    return Verdict(claim, verdict, numbers, scores.values.size, test)


def _on_each(scores: Scores) -> str:
    """The share on each data set by itself: there are few, and nothing is claimed about others."""
    problems = np.array(scores.problems)
    shares = {name: scores.values[:, problems == name].mean() for name in dict.fromkeys(problems)}
    return ", ".join(f"{name} {share:.3g}" for name, share in shares.items())


def _interval(values: Array, statistic: statistics.Statistic) -> tuple[float, float, float]:
    found = statistics.paired_bootstrap(values, statistic, better="higher")
    value = float(found.value)
    return (value, float(found.low), float(found.high)) if found.has_interval else (value,) * 3
