"""Tests of claims: each scores cases (panel × method) × seeds, 1 for yes, ½ for a tie, 0 for no."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from targetopt.lab.store.directory import VALUE_PRICE, Run
from targetopt.lab.studies.paper.evidence import (
    EVERYWHERE,
    Array,
    Case,
    Evidence,
    Methods,
    NotJudged,
    Where,
    cost_of_loss,
    diverged,
    final_loss,
    share_of_rises,
)
from targetopt.lab.studies.paper.scoring import (
    VISIBLE,
    Pair,
    Scores,
    by_a_factor,
    cheaper,
    compared,
    highest,
    lowest,
    ratio,
    scored,
    won,
    worst_ratios,
)

SIGNIFICANT = 2.0
"""\"Significantly\" is a factor of two in the loss, as "drastically" is in the imitation study."""
ON_PAR = 2.0
"""\"On par\" is at most twice the loss: nearer than two neighbouring grid lines of a log axis.

Where the optimum is above zero that asks for little; verdicts show suboptimalities beside it."""

COUNTS = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")
"""What a run has done, besides asking for losses."""


class Predicate(Protocol):
    """What a claim says of one case, as something that can be computed."""

    def scores(self, evidence: Evidence) -> Scores: ...

    def describe(self) -> str:
        """When a case counts, in words."""

    @property
    def needs(self) -> set[str]:
        """Other figures whose runs it compares with."""


class Alone:
    """A predicate on the runs of its own figure."""

    @property
    def needs(self) -> set[str]:
        return set()


class Compared:
    """A predicate on contests."""

    contests: tuple[Contest, ...]

    @property
    def needs(self) -> set[str]:
        rivals = (rival for each in self.contests for rival in each.rivals)
        return {rival.figure for rival in rivals if rival.figure is not None}


@dataclass(frozen=True)
class Contest:
    """Each of ``methods`` against the best of ``rivals`` on its panel, seed by seed."""

    methods: Methods
    rivals: tuple[Methods, ...]

    def pairs(self, evidence: Evidence, where: Where) -> list[Pair]:
        beside: dict[str, Pair] = {}
        for rival in self.rivals:
            for case, other in evidence.pairs(self.methods, rival, where):
                beside.setdefault(case.label, (case, []))[1].append(other)
        if not beside:
            raise NotJudged("what it compares was not run on the same panels at the same scale")
        return list(beside.values())


def contest(methods: Methods, *rivals: Methods) -> tuple[Contest, ...]:
    return (Contest(methods, rivals),)


def counterparts(figure: str, *methods: Methods) -> tuple[Contest, ...]:
    """Each of the methods against itself in another figure."""
    return tuple(Contest(each, (each.of(figure),)) for each in methods)


def more_steps(methods: Methods, evidence: Evidence, where: Where) -> list[Pair]:
    """On each panel, every m beside the next smaller one."""
    panels: dict[str, list[Case]] = {}
    for case in evidence.cases(methods, where):
        panels.setdefault(case.panel, []).append(case)
    pairs: list[Pair] = []
    for cases in panels.values():
        ordered = sorted(cases, key=lambda case: int(str(case.method["m"])))
        pairs += [(more, [less]) for less, more in itertools.pairwise(ordered)]
    if not pairs:
        raise NotJudged("there is one m only")
    return pairs


@dataclass(frozen=True)
class Beats(Compared):
    """The final loss is below that of every rival, by more than 1 %, or by ``factor`` if that is more."""

    contests: tuple[Contest, ...]
    where: Where = EVERYWHERE
    factor: float = VISIBLE

    def scores(self, evidence: Evidence) -> Scores:
        pairs = _all_pairs(self.contests, evidence, self.where)
        return compared(pairs, won if self.factor == VISIBLE else by_a_factor(self.factor))

    def describe(self) -> str:
        if self.factor == VISIBLE:
            return "final loss lower by more than 1 % (within 1 %: half)"
        return f"final loss lower by a factor of {self.factor:g} or more"


@dataclass(frozen=True)
class OnPar(Compared):
    """The final loss is at most ``factor`` times that of every rival; two diverged runs tie.

    With ``either`` it is enough that it is so for one of the rivals, as "SLS or Adam" says.
    """

    contests: tuple[Contest, ...]
    factor: float = ON_PAR
    where: Where = EVERYWHERE
    either: bool = False

    def scores(self, evidence: Evidence) -> Scores:
        def near(ours: Array, theirs: Array) -> Array:
            both_diverged = np.isinf(ours) & np.isinf(theirs)
            return np.where(both_diverged, 0.5, ours <= self.factor * theirs)

        pick = highest if self.either else lowest
        return compared(_all_pairs(self.contests, evidence, self.where), near, pick)

    def describe(self) -> str:
        whose = "that of one of the rivals" if self.either else "the rival's"
        return f"final loss at most {self.factor:g} times {whose}"


@dataclass(frozen=True)
class Cheaper(Compared):
    """Every rival's final loss is reached at a lower modelled cost than the rival needed for it.

    A run that diverged has no final loss to reach, and has reached none: it loses to one that did not.
    """

    contests: tuple[Contest, ...]
    tau: float
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        pairs = _all_pairs(self.contests, evidence, self.where)
        priced = {price: worst_ratios(pairs, self._ratio(price)) for price in (VALUE_PRICE, 0, 1)}
        worst = priced[VALUE_PRICE]
        found = scored([case for case, _ in pairs], [cheaper(r) for r in worst])
        further: dict[str, float | str] = {
            "share if values without gradients were free": float(cheaper(priced[0]).mean()),
            "share if one cost a whole call": float(cheaper(priced[1]).mean()),
        }
        return replace(found, ratios=worst.T, compared="costs", further=further)

    def _ratio(self, value_price: float) -> Callable[[Run, Run], float]:
        def of(ours: Run, theirs: Run) -> float:
            goal = final_loss(theirs)
            costs = (cost_of_loss(run, goal, self.tau, value_price) for run in (ours, theirs))
            return ratio(*costs)

        return of

    def describe(self) -> str:
        return (
            f"the rival's final loss reached at a lower (oracle calls + {VALUE_PRICE:g} values) × {self.tau:g} "
            "+ inner steps than the rival's own"
        )


@dataclass(frozen=True)
class NoDearer(Compared):
    """None of the counts of work at the end of the run is visibly above that of any rival."""

    contests: tuple[Contest, ...]

    def scores(self, evidence: Evidence) -> Scores:
        pairs = _all_pairs(self.contests, evidence, EVERYWHERE)
        worst = worst_ratios(pairs, self._ratio)
        # Of two that diverged neither has done the work: a tie, as elsewhere.
        ended = [case.measure(lambda run: float(not diverged(run))) for case, _ in pairs]
        columns = [
            np.where((r == 1) & (e == 0), 0.5, r <= VISIBLE)
            for r, e in zip(worst, ended, strict=True)
        ]
        return replace(
            scored([case for case, _ in pairs], columns), ratios=worst.T, compared="counts"
        )

    def _ratio(self, ours: Run, theirs: Run) -> float:
        known = [name for name in COUNTS if name in ours.columns and name in theirs.columns]
        return max(
            ratio(*(float(run.columns[count][-1]) for run in (ours, theirs))) for count in known
        )

    def describe(self) -> str:
        return (
            "oracle calls, inner steps and, where they are published, forward and backward passes of the "
            f"whole run, each at most {VISIBLE:g} times the rival's"
        )


@dataclass(frozen=True)
class RisesLess(Compared):
    """Fewer recorded epochs end with a higher loss than the one before, than with the rivals."""

    contests: tuple[Contest, ...]

    def scores(self, evidence: Evidence) -> Scores:
        pairs = _all_pairs(self.contests, evidence, EVERYWHERE)
        columns = []
        for case, others in pairs:
            ours = case.measure(share_of_rises)
            theirs = np.min([other.measure(share_of_rises) for other in others], axis=0)
            columns.append((ours < theirs) + 0.5 * (ours == theirs))
        return scored([case for case, _ in pairs], columns)

    def describe(self) -> str:
        return "fewer recorded epochs that end higher than the one before (equally many: half)"


@dataclass(frozen=True)
class MoreStepsHelp(Alone):
    """From each m to the next larger one the final loss falls by more than 1 %."""

    methods: Methods
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        return compared(more_steps(self.methods, evidence, self.where), won)

    def describe(self) -> str:
        return "final loss lower by more than 1 % at the next larger m (within 1 %: half)"


@dataclass(frozen=True)
class Reaches(Alone):
    """The gradient norm falls below ``level`` at some recorded step."""

    methods: Methods
    level: float
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        cases = evidence.cases(self.methods, self.where)
        return scored(cases, [case.measure(self._reached) for case in cases])

    def _reached(self, run: Run) -> float:
        return float((run.columns["grad_norm"] < self.level).any())

    def describe(self) -> str:
        return f"‖∇h‖ < {self.level:g} before the last epoch ends"


SEVERAL = 2
"""How many are "multiple"."""


@dataclass(frozen=True)
class ReachesOnSeveral(Alone):
    """The gradient norm falls below ``level``, with some ``m``, on several data sets and batch sizes.

    The two counts are the cases.
    """

    methods: Methods
    level: float

    def scores(self, evidence: Evidence) -> Scores:
        reached = Reaches(self.methods, self.level).scores(evidence).values > 0
        cases = evidence.cases(self.methods)
        kinds = {
            "data sets": [case.problem for case in cases],
            "batch sizes": [str(case.batch_size) for case in cases],
        }
        columns, counted = [], {}
        for kind, names in kinds.items():
            run = len(set(names))
            if run < SEVERAL:
                raise NotJudged(
                    f"it speaks of multiple {kind}; there is one {kind.removesuffix('s')}"
                )
            counts = [len(set(itertools.compress(names, of_seed))) for of_seed in reached]
            columns.append([float(count >= SEVERAL) for count in counts])
            counted[f"{kind}, seed by seed"] = f"{', '.join(map(str, counts))} of {run}"
        everywhere: list[int | str] = ["all"] * len(kinds)
        return Scores(np.array(columns).T, list(kinds), everywhere, further=counted)

    def describe(self) -> str:
        return (
            f"‖∇h‖ < {self.level:g} before the last epoch ends with some m, on {SEVERAL} or more data "
            f"sets (one case) and at {SEVERAL} or more batch sizes (the other)"
        )


@dataclass(frozen=True)
class Gains(Compared):
    """With many inner steps the final loss is lower by ``factor``; with ``less`` set, it is not.

    The paper's §4.1.2: where noise dominates, large m "might not result in substantial improvements".
    """

    contests: tuple[Contest, ...]
    factor: float
    less: bool = False
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        def gained(ours: Array, theirs: Array) -> Array:
            much = by_a_factor(self.factor)(ours, theirs)
            return 1.0 - much if self.less else much

        return compared(_all_pairs(self.contests, evidence, self.where), gained)

    def describe(self) -> str:
        word = "not lower" if self.less else "lower"
        return f"final loss {word} by a factor of {self.factor:g}"


def _all_pairs(contests: tuple[Contest, ...], evidence: Evidence, where: Where) -> list[Pair]:
    return [pair for each in contests for pair in each.pairs(evidence, where)]
