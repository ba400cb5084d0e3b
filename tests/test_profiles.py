"""Performance profiles: answers worked out by hand, what Dolan and Moré promise, and what is left out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from report_directory import PROBLEMS, add_rows
from targetopt.lab.report import lines
from targetopt.lab.statistics.profiles import Profile, profile, shares_of
from targetopt.lab.store.directory import Store

costs = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda shape: arrays(
        np.float64, shape, elements=st.sampled_from([1.0, 2.0, 3.0, 8.0, math.inf])
    )
)


@given(costs)
def test_shares_rise_from_the_cheapest_to_all_who_got_there(table: np.ndarray) -> None:
    factors, shares = shares_of(list(table))
    assert factors[0] == 1.0
    assert (np.diff(factors) > 0).all()
    assert (np.diff(shares, axis=1) >= 0).all()
    # Every run that reached the level is within the largest factor.
    np.testing.assert_allclose(np.array(shares)[:, -1], np.isfinite(table).mean(axis=(0, 2)))
    if np.isfinite(
        table
    ).all():  # On every panel half of the cheapest method's runs are within its median
        assert sum(share[0] for share in shares) >= 0.5 - 1e-12


@given(costs, st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_unit_of_cost_does_not_matter(table: np.ndarray, unit: float) -> None:
    factors, shares = shares_of(list(table))
    scaled_factors, scaled = shares_of([panel * unit**k for k, panel in enumerate(table)])
    np.testing.assert_array_equal(factors, scaled_factors)
    np.testing.assert_array_equal(shares, scaled)


def reach(
    store: Store, label: str, at: int, inner: int, panel: int, seed: int = 0, **more: str
) -> None:
    """A run whose loss is 1 up to call `at`, and 0.5 from there on."""
    rows = [
        {"step": t, "oracle_calls": t, "inner_steps": inner * t, "loss": 1.0 if t < at else 0.5}
        for t in range(9)
    ]
    problem = {**PROBLEMS[0], "label": f"problem {panel}", "weight_decay": panel}
    add_rows(store, rows, label=label, seed=seed, problem=problem, inner=inner, **more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.prepare()
    return store


def found(store: Store, labels: str, tau: float) -> Profile | None:
    """The profile of methods named by letters; shares are by letter, too."""
    results = lines.gather(store.directory)
    number = {method.label: i for i, method in enumerate(results.methods)}
    whole = profile(results, [number[label] for label in labels], "loss", tau)
    if whole is not None:
        assert list(whole.shares) == [number[label] for label in labels]
    return whole


def test_inner_steps_count_less_the_dearer_the_oracle(store: Store) -> None:
    for panel in range(2):
        reach(store, "M", at=2, inner=20, panel=panel)  # many inner steps
        reach(store, "N", at=8, inner=0, panel=panel)  # none
    cheap = found(store, "MN", 1.0)  # costs 2·1 + 40 and 8·1
    dear = found(store, "MN", 100.0)  # costs 2·100 + 40 and 8·100
    assert cheap is not None
    assert dear is not None
    assert cheap.panels == dear.panels == 2
    np.testing.assert_allclose(cheap.factors, [1.0, 42 / 8])
    np.testing.assert_allclose(dear.factors, [1.0, 800 / 240])
    np.testing.assert_array_equal(list(cheap.shares.values()), [[0, 1], [1, 1]])
    np.testing.assert_array_equal(list(dear.shares.values()), [[1, 1], [0, 1]])


def test_panels_that_lack_a_method_or_a_seed_are_left_out(store: Store) -> None:
    for panel in range(3):
        for seed in range(2):
            reach(store, "A", at=2, inner=0, panel=panel, seed=seed)
            if (panel, seed) != (2, 1):  # still running
                reach(store, "B", at=4, inner=1, panel=panel, seed=seed)
    reach(store, "C", at=4, inner=2, panel=0)
    whole = found(store, "AB", 1.0)
    assert whole is not None
    assert whole.panels == 2
    assert found(store, "AC", 1.0) is None


def test_a_level_reached_at_the_start_costs_one_call(store: Store) -> None:
    for panel in range(2):
        reach(store, "A", at=0, inner=0, panel=panel)
        reach(store, "B", at=3, inner=1, panel=panel)
    whole = found(store, "AB", 10.0)
    assert whole is not None
    np.testing.assert_allclose(whole.factors, [1.0, 33 / 10])
