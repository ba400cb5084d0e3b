"""From losses and costs to scores: each case (panel × method) × seed is 1 for yes, ½ for a tie, 0 for no."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.store.directory import Run
from targetopt.lab.studies.paper.evidence import (
    Array,
    Case,
    diverged,
    final_gradient,
    final_loss,
    final_margin,
    final_suboptimality,
)

VISIBLE = 1.01
"""Losses nearer than one per cent tie: no reader of a log-log figure tells them apart."""


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
    problems: Sequence[str] = ()


Pair = tuple[Case, list[Case]]
"""A case and those it is compared with."""


class _Score(Protocol):
    def __call__(self, ours: Array, theirs: Array) -> Array: ...


_Pick = Callable[[list[Array]], Array]
"""Which of several rivals' numbers counts, seed by seed."""


def lowest(values: list[Array]) -> Array:
    return np.asarray(np.min(values, axis=0))


def highest(values: list[Array]) -> Array:
    return np.asarray(np.max(values, axis=0))


def won(ours: Array, theirs: Array) -> Array:
    """1 where ours is visibly lower, 0 where theirs is, ½ otherwise; two diverged runs tie."""
    won, lost = ours < theirs / VISIBLE, theirs < ours / VISIBLE
    return np.asarray(0.5 + 0.5 * won - 0.5 * lost)


def by_a_factor(factor: float) -> _Score:
    """1 where ours is lower by that factor, else 0; two diverged runs tie."""

    def lower(ours: Array, theirs: Array) -> Array:
        both = np.isinf(ours) & np.isinf(theirs)
        return np.where(both, 0.5, np.asarray(ours * factor <= theirs, dtype=float))

    return lower


def cheaper(ratios: Array) -> Array:
    return np.asarray((ratios < 1) + 0.5 * (ratios == 1))


def compared(pairs: Sequence[Pair], score: _Score, pick: _Pick = lowest) -> Scores:
    columns, ratios, by_mean = [], [], []
    for pair in pairs:
        ours, theirs = _with_rivals(pair, final_loss, pick)
        columns.append(score(ours, theirs))
        ratios.append(_ratios(ours, theirs))
        case, others = pair
        rivals = pick([np.atleast_1d(other.measure(final_loss).mean()) for other in others])
        by_mean.append(float(score(np.atleast_1d(case.measure(final_loss).mean()), rivals)[0]))
    return replace(
        scored([case for case, _ in pairs], columns),
        ratios=np.array(ratios).T,
        further={
            "share of the cases by means over seeds": float(np.mean(by_mean)),
            **_suboptimalities(pairs, pick),
            **_gradients(pairs, pick),
            **_margins(pairs),
        },
    )


def _gradients(pairs: Sequence[Pair], pick: _Pick) -> dict[str, float | str]:
    """The median ratio of gradient norms where the infimum lies at infinity, and losses measure how far one went."""
    known = [
        p for p in pairs if p[0].separable and all(c.knows("grad_norm") for c in (p[0], *p[1]))
    ]
    if not known:
        return {}
    ratios = np.array([_ratios(*_with_rivals(pair, final_gradient, pick)) for pair in known])
    middle = float(statistics.quantile(ratios.ravel(), 0.5))
    return {f"median ratio of gradient norms on separable data ({len(known)} cases)": middle}


def _margins(pairs: Sequence[Pair]) -> dict[str, float | str]:
    """The median margins there, which do not depend on how far one went; of the rivals that of the largest."""
    known = [p for p in pairs if all(case.knows("margin") for case in (p[0], *p[1]))]
    if not known:
        return {}
    both = np.array([_with_rivals(pair, final_margin, highest) for pair in known])
    ours, theirs = (float(statistics.quantile(both[:, k].ravel(), 0.5)) for k in (0, 1))
    name = f"median margin on separable data, ours and the best rival's ({len(known)} cases)"
    return {name: f"{ours:.3g}, {theirs:.3g}"}


def _suboptimalities(pairs: Sequence[Pair], pick: _Pick) -> dict[str, float | str]:
    """The median ratio of suboptimalities, over the cases whose infimum is known; none if none is."""
    known = [p for p in pairs if all(case.knows("suboptimality") for case in (p[0], *p[1]))]
    if not known:
        return {}
    ratios = np.array([_ratios(*_with_rivals(pair, final_suboptimality, pick)) for pair in known])
    where = "" if len(known) == len(pairs) else f" ({len(known)} of {len(pairs)} cases)"
    middle = float(statistics.quantile(ratios.ravel(), 0.5))
    return {f"median ratio of suboptimalities{where}": middle}


def _with_rivals(pair: Pair, of: Callable[[Run], float], pick: _Pick) -> tuple[Array, Array]:
    """A case's number and that of the rival that counts, for each seed."""
    case, others = pair
    return case.measure(of), pick([other.measure(of) for other in others])


def worst_ratios(pairs: Sequence[Pair], ratio_of: Callable[[Run, Run], float]) -> Array:
    """``[case, seed]``: the largest ratio to a rival; 0, 1 or infinite if the rival, both or we diverged."""

    def of(ours: Run, theirs: Run) -> float:
        if diverged(ours) or diverged(theirs):
            return ratio(*(np.inf if diverged(run) else 1.0 for run in (ours, theirs)))
        return ratio_of(ours, theirs)

    return np.array(
        [
            [
                max(of(case.seeds[seed], other.seeds[seed]) for other in others)
                for seed in sorted(case.seeds)
            ]
            for case, others in pairs
        ]
    )


def scored(cases: Sequence[Case], columns: Sequence[Array]) -> Scores:
    labels, sizes = [case.label for case in cases], [case.batch_size for case in cases]
    named = [case.problem_label for case in cases]
    return Scores(np.stack(columns, axis=1), labels, sizes, problems=named)


def _ratios(ours: Array, theirs: Array) -> list[float]:
    return [ratio(a, b) for a, b in zip(ours, theirs, strict=True)]


def ratio(ours: float, theirs: float) -> float:
    """ours/theirs, with 1 where both are 0 or both infinite."""
    if ours == theirs:
        return 1.0
    return ours / theirs if theirs > 0 else np.inf
