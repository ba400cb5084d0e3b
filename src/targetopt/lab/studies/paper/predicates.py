"""Tests of claims: each scores cases (panel × method) × seeds, 1 for yes, ½ for a tie, 0 for no."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.store.directory import Run
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
    final_suboptimality,
    share_of_rises,
)

VISIBLE = 1.01
"""Losses nearer than one per cent tie: no reader of a log-log figure tells them apart."""
ON_PAR = 2.0
"""\"On par\" is at most twice the loss: nearer than two neighbouring grid lines of a log axis.

Where the optimum is above zero that asks for little; verdicts show suboptimalities beside it."""

COUNTS = ("oracle_calls", "inner_steps", "forward_calls", "backward_calls")
"""What a run has done, besides asking for losses."""


@dataclass(frozen=True)
class Scores:
    """``values[seed, case]``, what each case is, and where there are losses to compare, their ratios.

    ``further`` are numbers that a verdict shows beside its own.
    """

    values: Array
    cases: list[str]
    batch_sizes: list[int | str]
    ratios: Array | None = None
    compared: str = "losses"
    further: Mapping[str, float | str] = field(default_factory=dict)


Pair = tuple[Case, list[Case]]
"""A case and those it is compared with."""


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
    """The final loss is below that of every rival, by more than 1 %."""

    contests: tuple[Contest, ...]
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        return _compared(_all_pairs(self.contests, evidence, self.where), _won)

    def describe(self) -> str:
        return "final loss lower by more than 1 % (within 1 %: half)"


@dataclass(frozen=True)
class OnPar(Compared):
    """The final loss is at most ``factor`` times that of every rival; two diverged runs tie."""

    contests: tuple[Contest, ...]
    factor: float = ON_PAR
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        def near(ours: Array, theirs: Array) -> Array:
            both_diverged = np.isinf(ours) & np.isinf(theirs)
            return np.where(both_diverged, 0.5, ours <= self.factor * theirs)

        return _compared(_all_pairs(self.contests, evidence, self.where), near)

    def describe(self) -> str:
        return f"final loss at most {self.factor:g} times the rival's"


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
        worst = _worst_ratios(pairs, self._ratio)
        scored = _scores([case for case, _ in pairs], [(r < 1) + 0.5 * (r == 1) for r in worst])
        return replace(scored, ratios=worst.T, compared="costs")

    def _ratio(self, ours: Run, theirs: Run) -> float:
        goal = final_loss(theirs)
        return _ratio(*(cost_of_loss(run, goal, self.tau) for run in (ours, theirs)))

    def describe(self) -> str:
        return (
            f"the rival's final loss reached at a lower oracle calls × {self.tau:g} + inner steps than "
            "the rival's own"
        )


@dataclass(frozen=True)
class NoDearer(Compared):
    """None of the counts of work at the end of the run is visibly above that of any rival."""

    contests: tuple[Contest, ...]

    def scores(self, evidence: Evidence) -> Scores:
        pairs = _all_pairs(self.contests, evidence, EVERYWHERE)
        worst = _worst_ratios(pairs, self._ratio)
        # Of two that diverged neither has done the work: a tie, as elsewhere.
        ended = [case.measure(lambda run: float(not diverged(run))) for case, _ in pairs]
        columns = [
            np.where((r == 1) & (e == 0), 0.5, r <= VISIBLE)
            for r, e in zip(worst, ended, strict=True)
        ]
        return replace(
            _scores([case for case, _ in pairs], columns), ratios=worst.T, compared="counts"
        )

    def _ratio(self, ours: Run, theirs: Run) -> float:
        return max(
            _ratio(*(float(run.columns[count][-1]) for run in (ours, theirs))) for count in COUNTS
        )

    def describe(self) -> str:
        return (
            "oracle calls, inner steps, forward and backward passes of the whole run, each at most "
            f"{VISIBLE:g} times the rival's"
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
        return _scores([case for case, _ in pairs], columns)

    def describe(self) -> str:
        return "fewer recorded epochs that end higher than the one before (equally many: half)"


@dataclass(frozen=True)
class MoreStepsHelp(Alone):
    """From each m to the next larger one the final loss falls by more than 1 %."""

    methods: Methods
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        return _compared(more_steps(self.methods, evidence, self.where), _won)

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
        return _scores(cases, [case.measure(self._reached) for case in cases])

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


class _Score(Protocol):
    def __call__(self, ours: Array, theirs: Array) -> Array: ...


def _won(ours: Array, theirs: Array) -> Array:
    """1 where ours is visibly lower, 0 where theirs is, ½ otherwise; two diverged runs tie."""
    won, lost = ours < theirs / VISIBLE, theirs < ours / VISIBLE
    return np.asarray(0.5 + 0.5 * won - 0.5 * lost)


def _all_pairs(contests: tuple[Contest, ...], evidence: Evidence, where: Where) -> list[Pair]:
    return [pair for each in contests for pair in each.pairs(evidence, where)]


def _compared(pairs: Sequence[Pair], score: _Score) -> Scores:
    columns, ratios = [], []
    for pair in pairs:
        ours, theirs = _with_best_rival(pair, final_loss)
        columns.append(score(ours, theirs))
        ratios.append(_ratios(ours, theirs))
    return replace(
        _scores([case for case, _ in pairs], columns),
        ratios=np.array(ratios).T,
        further=_suboptimalities(pairs),
    )


def _suboptimalities(pairs: Sequence[Pair]) -> dict[str, float | str]:
    """The median ratio of suboptimalities, over the cases whose infimum is known; none if none is."""
    known = [p for p in pairs if all(case.knows("suboptimality") for case in (p[0], *p[1]))]
    if not known:
        return {}
    ratios = np.array([_ratios(*_with_best_rival(pair, final_suboptimality)) for pair in known])
    where = "" if len(known) == len(pairs) else f" ({len(known)} of {len(pairs)} cases)"
    middle = float(statistics.quantile(ratios.ravel(), 0.5))
    return {f"median ratio of suboptimalities{where}": middle}


def _with_best_rival(pair: Pair, of: Callable[[Run], float]) -> tuple[Array, Array]:
    """A case's number and the lowest of its rivals', for each seed."""
    case, others = pair
    return case.measure(of), np.min([other.measure(of) for other in others], axis=0)


def _worst_ratios(pairs: Sequence[Pair], ratio: Callable[[Run, Run], float]) -> Array:
    """``[case, seed]``: the largest ratio to a rival; 0, 1 or infinite if the rival, both or we diverged."""

    def of(ours: Run, theirs: Run) -> float:
        if diverged(ours) or diverged(theirs):
            return _ratio(*(np.inf if diverged(run) else 1.0 for run in (ours, theirs)))
        return ratio(ours, theirs)

    return np.array(
        [
            [
                max(of(case.seeds[seed], other.seeds[seed]) for other in others)
                for seed in sorted(case.seeds)
            ]
            for case, others in pairs
        ]
    )


def _scores(cases: Sequence[Case], columns: Sequence[Array]) -> Scores:
    labels, sizes = [case.label for case in cases], [case.batch_size for case in cases]
    return Scores(np.stack(columns, axis=1), labels, sizes)


def _ratios(ours: Array, theirs: Array) -> list[float]:
    return [_ratio(a, b) for a, b in zip(ours, theirs, strict=True)]


def _ratio(ours: float, theirs: float) -> float:
    """ours/theirs, with 1 where both are 0 or both infinite."""
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs > 0 else np.inf
