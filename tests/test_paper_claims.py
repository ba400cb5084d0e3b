"""Claims judged on constructed results whose answers are known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.store.directory import Run, Store
from targetopt.lab.studies.paper import claims, figures
from targetopt.lab.studies.paper.evidence import (
    ADAM,
    SGD,
    SLS,
    SSO,
    SSO_NEWTON,
    TUNED,
    Evidence,
    Methods,
    NotJudged,
    Where,
    cost_of_loss,
)
from targetopt.lab.studies.paper.judging import (
    ALWAYS,
    MOSTLY,
    PLAINLY,
    SOME,
    judge,
    judge_difference,
)
from targetopt.lab.studies.paper.predicates import (
    SIGNIFICANT,
    Beats,
    Cheaper,
    Gains,
    MoreStepsHelp,
    NoDearer,
    OnPar,
    Reaches,
    ReachesOnSeveral,
    RisesLess,
    contest,
    counterparts,
)

Finals = dict[str, list[float]]
"""Label of a method ("sgd", "sso 10") → its final loss for each seed; nan is a diverged run."""


def results(
    out: Path,
    finals: Finals,
    *,
    figure: str = "fig",
    batch: int | str = 25,
    problem: str = "mushrooms",
    curves: dict[str, list[float]] | None = None,
    status: str = "done",
    infimum: float | None = None,
    inner_steps: dict[str, int] | None = None,
) -> Path:
    """Add runs to ``out/figure`` as a runner would have left them; returns ``out``.

    ``inner_steps`` are those of a record, by label: one where nothing is said.
    """
    store = Store(out / figure)
    store.prepare()
    plan = store.plan()
    for label, values in finals.items():
        name, _, m = label.partition(" ")
        method: dict[str, Any] = {"name": name}
        if m:
            method |= {"rule": "gradient-step", "m": int(m)}
        for seed, value in enumerate(values):
            config = {
                "problem": {"name": problem},
                "method": method,
                "batch_size": batch,
                "epochs": 2,
                "seed": seed,
            }
            key = hashlib.sha256(json.dumps([figure, config]).encode()).hexdigest()[:16]
            losses = (curves or {}).get(label, [1.0, value, value])
            manifest = {
                "id": key,
                "attempt": 1,
                "reason": "",
                "time_limit": 1.0,
                "status": "diverged" if value != value else status,
                "problem": {"name": problem, "label": problem},
                "method": {**method, "label": label},
                "config": config,
                **{k: config[k] for k in ("seed", "batch_size", "epochs")},
            }
            counts = ("oracle_calls", "value_calls", "forward_calls", "backward_calls")
            rows = [
                {
                    "step": k,
                    **dict.fromkeys(counts, k),
                    "inner_steps": k * (inner_steps or {}).get(label, 1),
                    "epoch": float(k),
                    "wall_time": 0.0,
                    "loss": loss,
                    "grad_norm": loss,
                    **({} if infimum is None else {"suboptimality": loss - infimum}),
                }
                for k, loss in enumerate(losses)
                if loss == loss
            ]
            store.save(manifest, rows)
            entry = {"id": key, "problem": problem, "method": label}
            plan.append({**entry, "batch_size": batch, "seed": seed})
    (store.directory / "plan.json").write_text(json.dumps(plan))
    return out


def evidence(out: Path) -> Evidence:
    return Evidence(out, "fig")


def test_beats_counts_wins_ties_and_losses(tmp_path: Path) -> None:
    out = results(
        tmp_path, {"sso 1": [0.5, 0.5, 0.5], "sso 10": [1.0, 0.995, 2.0], "sgd": [1.0] * 3}
    )
    verdict = judge("c", Beats(contest(SSO, SGD)), PLAINLY, evidence(out))
    assert verdict.numbers["share"] == pytest.approx((3 + 0.5 + 0.5 + 0) / 6)
    assert verdict.verdict == "mixed"
    assert verdict.n == 6
    assert verdict.numbers["cases: yes, even, no"] == "1, 0, 1"
    assert str(verdict.numbers["worst case"]).startswith("sso 10 on mushrooms")
    assert "2 epochs, 3 seeds" in verdict.test


@pytest.mark.parametrize(
    ("ours", "asks", "expected"),
    [
        ([0.5, 0.5, 0.5], ALWAYS, "holds"),
        ([0.5, 0.5, 1.0], ALWAYS, "false as stated"),
        ([2.0, 2.0, 2.0], ALWAYS, "false as stated"),
        ([2.0, 2.0, 0.5], SOME, "mixed"),
        ([2.0, 2.0, 2.0], SOME, "does not hold"),
        ([0.5, 0.5, 1.0], SOME, "holds"),
        ([0.5, 0.5, 1.0], MOSTLY, "mixed"),  # the interval reaches down to ½
        ([1.0, 1.0, 1.0], MOSTLY, "mixed"),
        ([2.0, 2.0, 2.0], MOSTLY, "does not hold"),
        ([0.5, float("nan"), 0.5], PLAINLY, "mixed"),
        ([float("nan")] * 3, PLAINLY, "does not hold"),
        ([0.5], PLAINLY, "holds"),
    ],
)
def test_verdicts_follow_the_interval(
    tmp_path: Path, ours: list[float], asks: float, expected: str
) -> None:
    out = results(tmp_path, {"sso 1": ours, "sgd": [1.0] * len(ours)})
    verdict = judge("c", Beats(contest(SSO, SGD)), asks, evidence(out))
    assert verdict.verdict == expected
    assert ("one seed" in str(verdict.numbers["95 % interval over seeds"])) == (len(ours) == 1)


def test_a_share_over_many_panels_needs_its_whole_interval_above_what_is_asked(
    tmp_path: Path,
) -> None:
    for position in range(20):
        lost = 2.0 if position == 0 else 0.5
        results(
            tmp_path,
            {"sso 1": [0.5, 0.5, lost], "sgd": [1.0] * 3},
            problem=f"p{position}",
        )
    verdict = judge("c", Beats(contest(SSO, SGD)), PLAINLY, evidence(tmp_path))
    assert verdict.numbers["share"] == pytest.approx(59 / 60)
    assert verdict.verdict == "holds"
    everywhere = judge("c", Beats(contest(SSO, SGD)), ALWAYS, evidence(tmp_path))
    assert everywhere.verdict == "false as stated"
    assert everywhere.numbers["true with every seed in"] == "19 of 20 cases"
    assert "p0 0.667, p1 1" in str(everywhere.numbers["share on each"])


def test_seeds_are_drawn_once_for_all_cases(tmp_path: Path) -> None:
    """The cases win and lose together, so many of them say no more than one of them does."""
    for position in range(20):
        results(tmp_path, {"sso 1": [0.5, 0.5, 2.0], "sgd": [1.0] * 3}, problem=f"p{position}")
    verdict = judge("c", Beats(contest(SSO, SGD)), MOSTLY, evidence(tmp_path))
    assert verdict.numbers["95 % interval over seeds"] == "0 … 1"
    assert verdict.verdict == "mixed"
    assert "seeds drawn once for all cases" in verdict.test


def test_few_seeds_are_drawn_in_every_way() -> None:
    """A draw of one seed alone has a probability of 1/27 at three seeds, of 1/256 at four."""
    values = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    three = statistics.paired_bootstrap(values, statistics.mean)
    assert (three.low, three.value, three.high) == (0.0, 0.5, 1.0)
    four = statistics.paired_bootstrap([0.0, 0.0, 0.0, 1.0], statistics.mean)
    # P(no 1) = 0.316 and P(at most two 1) = 0.949, P(at most three) = 0.996
    assert (four.low, four.high) == (0.0, 0.75)


def test_many_seeds_are_drawn_at_random_but_always_in_the_same_way() -> None:
    values = np.random.default_rng(0).random((30, 4))
    one, again = (statistics.paired_bootstrap(values, statistics.mean) for _ in range(2))
    assert (one.low, one.high) == (again.low, again.high)
    error = values.mean(axis=1).std() / 30**0.5
    assert (one.high - one.low) / error == pytest.approx(2 * 1.96, rel=0.1)
    assert not statistics.paired_bootstrap(values[:1]).has_interval


@pytest.mark.parametrize(
    ("ours", "theirs", "score", "ratio"),
    [(0.5, "nan", 1.0, 0.0), ("nan", 0.5, 0.0, inf), ("nan", "nan", 0.5, 1.0)],
)
def test_a_diverged_run_loses_and_two_tie(
    tmp_path: Path, ours: float, theirs: float, score: float, ratio: float
) -> None:
    # the curves say that whoever diverges had been at every goal before
    out = results(
        tmp_path,
        {"sso 20": [float(ours)], "sgd": [float(theirs)]},
        curves={"sso 20": [1.0, 0.1, 0.5], "sgd": [1.0, 0.1, 0.5]},
    )
    both = contest(SSO, SGD)
    for predicate in (Beats(both), OnPar(both), Cheaper(both, 10.0), NoDearer(both)):
        numbers = judge("c", predicate, MOSTLY, evidence(out)).numbers
        (found,) = (v for k, v in numbers.items() if k.startswith("median ratio"))
        assert (numbers["share"], found) == (score, ratio), predicate


def test_on_par_in_loss_need_not_be_on_par_in_suboptimality(tmp_path: Path) -> None:
    results(tmp_path, {"sso 1": [1.5], "sgd": [1.01]}, problem="p", infimum=1.0)
    on_par = OnPar(contest(SSO, SGD))
    verdict = judge("c", on_par, ALWAYS, evidence(tmp_path))
    assert verdict.verdict == "holds"
    assert verdict.numbers["median ratio of suboptimalities"] == pytest.approx(50.0)
    results(tmp_path, {"sso 1": [1.0], "sgd": [1.0]}, problem="without an infimum")
    numbers = judge("c", on_par, ALWAYS, evidence(tmp_path)).numbers
    assert numbers["median ratio of suboptimalities (1 of 2 cases)"] == pytest.approx(50.0)


def test_suboptimalities_below_what_the_infimum_is_known_to_are_equal(tmp_path: Path) -> None:
    results(tmp_path, {"sso 1": [1.0 - 1e-15], "sgd": [1.0 + 1e-14]}, infimum=1.0)
    numbers = judge("c", OnPar(contest(SSO, SGD)), ALWAYS, evidence(tmp_path)).numbers
    assert numbers["median ratio of suboptimalities"] == 1.0


def test_every_rival_has_to_be_beaten(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 1": [0.5, 0.5], "sls": [1.0, 0.4], "adam": [0.4, 1.0]})
    verdict = judge("c", Beats(contest(SSO, SLS, ADAM)), MOSTLY, evidence(out))
    assert (verdict.verdict, verdict.numbers["share"]) == ("does not hold", 0.0)
    verdict = judge("c", OnPar(contest(SSO, SLS, ADAM)), ALWAYS, evidence(out))
    assert verdict.verdict == "holds"
    assert verdict.numbers["median ratio of losses"] == pytest.approx(1.25)


def test_either_rival_is_enough_where_the_words_say_or(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 1": [1.0, 1.0], "sls": [0.1, 0.9], "adam": [0.9, 0.1]})
    both = judge("c", OnPar(contest(SSO, SLS, ADAM)), PLAINLY, evidence(out))
    one = judge("c", OnPar(contest(SSO, SLS, ADAM), either=True), PLAINLY, evidence(out))
    assert (both.verdict, one.verdict) == ("does not hold", "holds")


def test_significantly_is_a_factor_of_two(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 1": [0.5, 0.5], "sso 10": [0.51, 0.99], "sgd": [1.0, 1.0]})
    much = Beats(contest(SSO, SGD), factor=SIGNIFICANT)
    assert judge("c", much, MOSTLY, evidence(out)).numbers["share"] == 0.5
    no_gain = Gains(contest(replace(SSO, m=10), replace(SSO, m=1)), SIGNIFICANT, less=True)
    assert judge("c", no_gain, PLAINLY, evidence(out)).verdict == "holds"


def test_the_mean_over_seeds_is_told_beside_the_runs(tmp_path: Path) -> None:
    """One seed far off turns the mean, which the paper draws, and leaves two of three runs ahead."""
    out = results(tmp_path, {"sso 1": [0.5, 0.5, 9.0], "sgd": [1.0] * 3})
    numbers = judge("c", Beats(contest(SSO, SGD)), MOSTLY, evidence(out)).numbers
    assert numbers["share"] == pytest.approx(2 / 3)
    assert numbers["share of the cases by means over seeds"] == 0.0


def test_methods_with_a_floor_are_other_methods() -> None:
    def run(**options: object) -> Run:
        method = {"name": "sso", "rule": "newton", "m": 20, **options}
        return Run({"method": method, "panels": ["main"]}, {})

    assert [SSO_NEWTON.match(run()), SSO_NEWTON.match(run(floor=1e-5))] == [True, False]
    floored = replace(SSO_NEWTON, floor=1e-5)
    assert [floored.match(run()), floored.match(run(floor=1e-5))] == [False, True]


def test_values_without_gradients_have_a_price(tmp_path: Path) -> None:
    """Every record of these runs has asked for one gradient and one value."""
    curves = {"sso 20": [1.0, 0.4, 0.2], "sgd": [1.0, 0.8, 0.5]}
    out = results(tmp_path, {"sso 20": [0.2], "sgd": [0.5]}, curves=curves)
    run = next(iter(evidence(out).cases(SGD)[0].seeds.values()))
    assert cost_of_loss(run, 0.5, 10.0) == 2 * (1.5 * 10) + 2
    assert cost_of_loss(run, 0.5, 10.0, value_price=0.0) == 2 * 10 + 2


@given(
    ours=st.lists(st.floats(1e-6, 1e6) | st.just(float("inf")), min_size=3, max_size=3),
    theirs=st.lists(st.floats(1e-6, 1e6) | st.just(float("inf")), min_size=3, max_size=3),
)
@settings(deadline=None)  # it writes files
def test_beating_is_antisymmetric(
    tmp_path_factory: pytest.TempPathFactory, ours: list[float], theirs: list[float]
) -> None:
    def diverged_if_infinite(values: list[float]) -> list[float]:
        return [float("nan") if value == float("inf") else value for value in values]

    out = tmp_path_factory.mktemp("pair")
    results(out, {"sls": diverged_if_infinite(ours), "sgd": diverged_if_infinite(theirs)})
    one = judge("c", Beats(contest(SLS, SGD)), MOSTLY, evidence(out)).numbers["share"]
    other = judge("c", Beats(contest(SGD, SLS)), MOSTLY, evidence(out)).numbers["share"]
    assert isinstance(one, float)
    assert one + float(other) == pytest.approx(1.0)


def test_more_steps_help_compares_neighbouring_m(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 100": [0.3], "sso 1": [1.0], "sso 20": [0.6], "sso 10": [0.5]})
    verdict = judge("c", MoreStepsHelp(SSO), MOSTLY, evidence(out))
    assert verdict.numbers["share"] == pytest.approx(2 / 3)  # 1→10 and 20→100, but not 10→20
    assert verdict.n == 3


def test_shares_are_compared_between_batch_sizes(tmp_path: Path) -> None:
    results(tmp_path, {"sso 1": [1.0, 1.0], "sso 10": [0.5, 0.5]}, batch="full")
    results(tmp_path, {"sso 1": [1.0, 1.0], "sso 10": [2.0, 0.5]}, batch=25)
    helps, seen = MoreStepsHelp(SSO), evidence(tmp_path)
    verdict = judge_difference("c", helps, (625, "full"), seen)
    assert verdict.numbers["difference"] == pytest.approx(0.5)
    assert verdict.verdict == "mixed"  # one of two seeds has no difference at all
    with pytest.raises(NotJudged, match="batch sizes"):
        judge_difference("c", helps, (25, "full"), seen)


def test_reaching_a_gradient_norm_is_asked_of_the_chosen_problem(tmp_path: Path) -> None:
    results(tmp_path, {"sso 20": [1e-7, 1e-5]}, problem="synthetic-mushrooms")
    results(tmp_path, {"sso 20": [1.0, 1.0]}, problem="ijcnn1")
    on_mushrooms = Reaches(Methods("sso", m=20), 1e-6, Where(problem="mushrooms"))
    verdict = judge("c", on_mushrooms, ALWAYS, evidence(tmp_path))
    assert (verdict.numbers["share"], verdict.verdict, verdict.n) == (0.5, "false as stated", 2)


def test_reaching_it_on_several_data_sets_and_batch_sizes_counts_both(tmp_path: Path) -> None:
    several = ReachesOnSeveral(SSO, 1e-6)
    results(tmp_path, {"sso 1": [1e-7, 1e-7], "sso 20": [1.0, 1.0]}, batch=25)
    with pytest.raises(NotJudged, match="one data set"):
        judge("c", several, ALWAYS, evidence(tmp_path))
    results(tmp_path, {"sso 1": [1.0, 1e-7]}, batch=625)
    results(tmp_path, {"sso 1": [1.0, 1.0]}, batch=625, problem="rcv1")
    verdict = judge("c", several, ALWAYS, evidence(tmp_path))
    assert verdict.verdict == "false as stated"
    assert verdict.numbers["share"] == 0.25  # the batch sizes, with the second seed
    assert verdict.numbers["data sets, seed by seed"] == "1, 1 of 2"
    assert verdict.numbers["batch sizes, seed by seed"] == "1, 2 of 2"
    results(tmp_path, {"sso 20": [1e-8, 1e-8]}, batch=625, problem="rcv1")
    assert judge("c", several, ALWAYS, evidence(tmp_path)).verdict == "holds"


def test_no_further_cost_compares_all_counts(tmp_path: Path) -> None:
    finals: Finals = {"sso 1": [1.0, 1.0], "sso 10": [1.0, 1.0]}
    results(tmp_path, finals, inner_steps={"sso 1": 10, "sso 10": 12})
    results(tmp_path, finals, figure="other", inner_steps={"sso 1": 10, "sso 10": 10})
    no_dearer = NoDearer(counterparts("other", SSO))
    verdict = judge("c", no_dearer, PLAINLY, evidence(tmp_path))
    assert verdict.numbers["share"] == 0.5
    assert verdict.numbers["median ratio of counts"] == pytest.approx(1.1)
    assert str(verdict.numbers["worst case"]).startswith("sso 10")


def test_rises_are_compared_with_the_counterpart_at_the_same_m(tmp_path: Path) -> None:
    finals: Finals = {"sso 1": [1.0, 1.0], "sso 10": [1.0, 1.0]}
    falls, rises = [3.0, 2.0, 1.0], [3.0, 2.0, 2.5]
    results(tmp_path, finals, curves={"sso 1": falls, "sso 10": rises})
    results(tmp_path, finals, curves={"sso 1": rises, "sso 10": rises}, figure="other")
    verdict = judge("c", RisesLess(counterparts("other", SSO)), MOSTLY, evidence(tmp_path))
    assert verdict.numbers["share"] == pytest.approx(0.75)
    assert verdict.n == 4


def test_costs_are_those_of_reaching_the_rival_s_loss(tmp_path: Path) -> None:
    """One oracle call and one inner step a record: SGD ends after two, SSO was there after one."""
    curves = {"sso 20": [1.0, 0.4, 0.2], "sgd": [1.0, 0.8, 0.5]}
    out = results(tmp_path, {"sso 20": [0.2], "sgd": [0.5]}, curves=curves)
    ours = judge("c", Cheaper(contest(SSO, SGD), 10.0), PLAINLY, evidence(out))
    assert (ours.verdict, ours.numbers["median ratio of costs"]) == ("holds", 0.5)
    theirs = judge("c", Cheaper(contest(SGD, replace(SSO, m=20)), 10.0), PLAINLY, evidence(out))
    assert (theirs.verdict, theirs.numbers["median ratio of costs"]) == ("does not hold", inf)
    assert theirs.n == 1


def test_a_rival_with_its_own_m_is_compared_with_every_m(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 10": [0.5], "sso 100": [0.6]})
    hundred = replace(SSO, m=100)
    verdict = judge("c", Beats(contest(replace(SSO, m=10), hundred)), PLAINLY, evidence(out))
    assert (verdict.verdict, verdict.n) == ("holds", 1)


def test_what_cannot_be_judged_says_why(tmp_path: Path) -> None:
    out = results(tmp_path, {"sso 1": [0.5], "sgd": [1.0]})
    beats = Beats(counterparts("figA-sgd-constant-squared", SSO))
    with pytest.raises(NotJudged, match="needs the results of figA-sgd-constant-squared"):
        judge("c", beats, MOSTLY, evidence(out))
    with pytest.raises(NotJudged, match="has no adam"):
        judge("c", Beats(contest(SSO, ADAM)), MOSTLY, evidence(out))
    results(out, {"adam": [1.0]}, status="failed")
    with pytest.raises(NotJudged, match="1 of the 3 runs of fig have not ended well"):
        judge("c", Beats(contest(SSO, SGD)), MOSTLY, evidence(out))


def test_every_figure_has_claims_and_needs_come_first() -> None:
    with_runs = [name for name in figures.names() if not name.startswith("theory")]
    assert sorted(claims.EVERY) == sorted(with_runs)
    order = claims.in_order(figures.names())
    assert sorted(order) == sorted(figures.names())
    for name, of_figure in claims.CLAIMS.items():
        for claim in of_figure:
            for needed in claim.needs:
                assert order.index(needed) < order.index(name)


def test_prices_are_asked_of_the_tuned_counterpart_and_of_sls_and_adam_too() -> None:
    """Where SSO loses at τ = 1 is there, so a verdict must be."""
    for name in ("fig2-rcv1", "figA-sgd-constant-squared", "figA-sls-logistic"):
        cheaper = [c for c in claims.CLAIMS[name] if isinstance(c.predicate, Cheaper)]
        at_one = [c.predicate for c in cheaper if c.predicate.tau == 1]
        assert all(c.says.startswith(claims.BEYOND) for c in cheaper)
        rivals = [[(r.name, r.panel) for r in p.contests[0].rivals] for p in at_one]
        own = "sls" if "sls" in name else "sgd"
        assert [(own, TUNED)] in rivals
        others = ["adam"] if own == "sls" else ["sls", "adam"]
        assert others in [[rival for rival, _ in each] for each in rivals]


def test_words_that_are_not_tested_are_not_claimed() -> None:
    newton = claims.CLAIMS["figA-newton-logistic"]
    assert not any("significantly" in claim.says for claim in newton)
    assert [c for c in newton if "no additional cost" in c.says and c.needs]
    assert any(isinstance(c.predicate, ReachesOnSeveral) for c in newton)
