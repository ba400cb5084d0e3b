"""The report's first words: who needed how many oracle calls, and from which price on that pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from targetopt.lab.report import answer
from targetopt.lab.report.lines import Results, group
from targetopt.lab.store.directory import Run


def made(
    method: str, losses: list[float], inner: int, problem: str = "P", seed: int = 0, **options: Any
) -> Run:
    """A run that spends ``inner`` inner steps for each oracle call."""
    steps = np.arange(len(losses))
    manifest = {
        "id": f"{method}{problem}{seed}",
        "status": "done",
        "seed": seed,
        "batch_size": 8,
        "method": {"name": "sso" if inner > 1 else "sgd", "label": method, **options},
        "problem": {"name": problem, "label": problem},
    }
    counts = {
        "step": steps,
        "oracle_calls": steps,
        "inner_steps": inner * steps,
        "value_calls": 0 * steps,
    }
    columns = {**counts, "epoch": steps, "wall_time": steps * 1.0, "loss": np.array(losses)}
    return Run(manifest, columns)


def results(*runs: Run) -> Results:
    return group(Path("nowhere"), list(runs))


def test_calls_and_the_price_from_which_they_pay_are_exact() -> None:
    # SSO is there after 2 calls with 20 inner steps, SGD after 6 with 6: 2τ + 20 < 6τ + 6 from τ = 3.5 on.
    both = results(
        made("SSO", [4, 3, 1, 1, 1, 1, 1], inner=10),
        made("SGD", [4, 3.5, 3, 2.5, 2, 1.5, 1], inner=1),
    )
    [panel] = both.panels
    assert answer.spent(panel, "loss") == [answer.Spent(0, 2.0, 20.0), answer.Spent(1, 6.0, 6.0)]
    needed, price = answer.sentences(both)
    assert needed == (
        "On P, batch 8, SSO needed 2 oracle calls to reach a loss of 1, and the best of its rivals, "
        "SGD, needed 6."
    )
    told = float(price.partition("more than about ")[2].partition(" inner")[0])
    assert 3.5 / 10**0.1 < told < 3.5 * 10**0.1  # prices are tried ten to the decade
    assert price.endswith(
        "when oracle calls are as cheap as inner steps, SGD is the better choice."
    )


def test_a_winner_at_every_price_is_called_that() -> None:
    both = results(made("A", [4, 1, 1], inner=1), made("B", [4, 2, 1], inner=1, lr=3))
    assert "whatever an oracle call costs" in answer.sentences(both)[-1]


def test_whoever_never_gets_there_is_counted() -> None:
    alone = results(
        made("SSO", [4, 1, 1], inner=5),
        made("SSO2", [4, 2, 1], inner=5, m=5),
        made("SGD", [4, 4, 4], inner=1),
    )
    words = answer.sentences(alone)[0]
    assert "which none of its rivals reached (1 of 3 methods did not get there)." in words


def test_where_sso_is_behind_it_is_called_by_its_name() -> None:
    behind, lost = (
        results(
            made("Adam", [4, 1, 1, 1], inner=1),
            made("SGD", [4, 3, 1, 1], inner=1, lr=3),
            made("SSO", losses, inner=5),
        )
        for losses in ([4, 4, 4, 1], [4, 4, 4, 4])
    )
    assert "Adam needed 1 oracle calls to reach a loss of 1, and SSO needed 3." in " ".join(
        answer.sentences(behind)
    )
    assert answer.sentences(lost)[0].endswith("which SSO did not reach.")


def test_many_panels_are_counted_instead_of_listed() -> None:
    runs = [
        made(name, losses, inner, problem=problem)
        for problem in ("P", "Q", "R")
        for name, losses, inner in (("SSO", [4, 1, 1], 9), ("SGD", [4, 2, 1], 1))
    ]
    first, _ = answer.sentences(results(*runs))
    assert first.startswith("SSO needed the fewest oracle calls on 3 of 3 pairs")


def test_nothing_finite_says_nothing() -> None:
    assert answer.sentences(results(made("SGD", [np.nan, np.nan], inner=1))) == []


@pytest.mark.parametrize("count", [5, 9])
def test_a_chart_opens_with_at_most_six_lines_and_the_best_are_among_them(count: int) -> None:
    # The later a method is named, the sooner it is there.
    runs = [
        made(f"M{k}", [4.0] * (count - k) + [1.0] * (k + 1), inner=2, m=k) for k in range(count)
    ]
    shown = answer.shown_first(results(*runs))
    assert shown == list(range(count))[-answer.SHOWN :]
