"""bench.statistics and bench.alignment against answers worked out by hand, brute force, scipy, and its own promises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import binom, mannwhitneyu, trim_mean

from targetopt.lab.statistics import aggregates as S
from targetopt.lab.statistics.alignment import aggregate_curves, align
from targetopt.types import BadArgument

inf, nan = math.inf, math.nan

finite = st.floats(-1e6, 1e6)
tables = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=finite)
columns = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, inf]), min_size=1, max_size=7)

# Two tasks, four seeds; the second task's last seed diverged.
WORKED = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [6.0, nan]])


# --- aggregates ----------------------------------------------------------------------------------


def value_of(values, statistic, **options):
    return float(S.bootstrap(values, statistic, resamples=10, **options).value)


def test_worked_example_without_divergence():
    table = WORKED[:3]
    assert value_of(table, S.mean) == 11.0  # ½ (2 + 20)
    assert value_of(table, S.median) == 11.0  # of the task means 2 and 20
    # sorted 1 2 3 10 20 30; ⌊6/4⌋ = 1 off each end: (2 + 3 + 10 + 20)/4
    assert value_of(table, S.iqm) == 8.75
    # position 0.25·5 = 1.25 between 2 and 3
    assert value_of(table, S.run_quantile(0.25)) == 2.25
    # misses of target 2: 0 0 1 in task one, 8 18 28 in task two: ½ (1/3 + 18)
    assert value_of(table, S.optimality_gap(2.0)) == pytest.approx((1 / 3 + 18) / 2, rel=1e-15)


def test_worked_example_with_a_diverged_run():
    assert value_of(WORKED, S.mean) == inf
    assert value_of(WORKED, S.median) == inf  # of 3 and inf: an infinite neighbour has weight ½
    # sorted 1 2 3 6 10 20 30 inf; 2 off each end: (3 + 6 + 10 + 20)/4
    assert value_of(WORKED, S.iqm) == 9.75
    assert value_of(WORKED, S.optimality_gap(2.0)) == inf
    assert value_of(WORKED, S.run_quantile(1.0)) == inf
    assert value_of(WORKED, S.run_quantile(6 / 7)) == 30.0


def test_where_higher_is_better_a_diverged_run_is_minus_infinity():
    returns = [5.0, 1.0, nan, 3.0]
    assert value_of(returns, S.mean, better="higher") == -inf
    assert value_of(returns, S.iqm, better="higher") == 2.0  # −inf 1 3 5 without the ends
    gap = S.optimality_gap(4.0, better="higher")
    assert value_of([5.0, 1.0, 3.0], gap, better="higher") == pytest.approx(4 / 3)


def test_median_of_a_single_task_is_the_median_of_its_runs():
    assert value_of([1.0, 2.0, 60.0], S.median) == 2.0


@given(tables)
@settings(deadline=None)
def test_iqm_is_scipys_trimmed_mean(table):
    expected = trim_mean(table.ravel(), 0.25)
    np.testing.assert_allclose(S.iqm(table), expected, rtol=1e-12, atol=1e-9)


@given(arrays(np.float64, st.integers(1, 12), elements=finite), st.floats(0, 1))
@example(np.array([0.0] + 11 * [409419.0]), 2.220446049250313e-16)
@example(np.array([0.0, 409419.0]), 9e-10)
@settings(deadline=None)
def test_quantile_of_finite_numbers_is_numpys(values, q):
    np.testing.assert_allclose(S.quantile(values, q), np.quantile(values, q), rtol=1e-9, atol=1e-9)


@given(columns, st.integers(0, 16).map(lambda k: k / 16))
@settings(deadline=None)
def test_quantile_with_infinities_is_the_limit_of_large_numbers(values, q):
    """q(n − 1) is exact in binary, so an infinite neighbour has no weight or at least 1/16."""
    data = np.array(values)
    limit = np.quantile(np.where(data == inf, 1e250, data), q)
    found = float(S.quantile(data, q))
    assert found == (inf if limit > 1e9 else pytest.approx(limit, abs=1e-12))


def test_a_rounding_error_gives_no_weight_to_infinity():
    values = np.array([1.0] * 8 + [inf] * 18)
    assert 0.28 * 25 > 7
    assert S.quantile(values, 0.28) == 1.0


@given(tables, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_aggregates_do_not_depend_on_the_order_of_runs_or_tasks(table, random):
    runs, tasks = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(runs)
    random.shuffle(tasks)
    shuffled = table[np.ix_(runs, tasks)]
    for statistic in (S.mean, S.median, S.iqm, S.run_quantile(0.3), S.optimality_gap(1.0)):
        np.testing.assert_allclose(
            statistic(shuffled), statistic(table), rtol=1e-9, atol=1e-6, err_msg=str(statistic)
        )


# --- bootstrap -----------------------------------------------------------------------------------


def test_the_interval_is_the_percentile_interval_of_all_resamples():
    """Three runs have 27 equally likely resamples: the exact bootstrap distribution."""
    runs = np.array([0.0, 1.0, 5.0])
    exact = [np.mean(draw) for draw in itertools.product(runs, repeat=3)]
    low, high = np.quantile(exact, [0.1, 0.9], method="inverted_cdf")
    found = S.bootstrap(runs, S.mean, confidence=0.8, resamples=20_000)
    assert (float(found.low), float(found.high)) == pytest.approx((low, high), abs=1e-12)


def test_strata_are_kept():
    """Each task is resampled within itself: tasks without spread have an interval without width."""
    table = np.array([[1.0, 100.0, 7.0]] * 4)
    found = S.bootstrap(table, S.mean)
    assert found.low == found.value == found.high == 36.0


def test_points_of_a_curve_share_their_draw():
    base = np.random.default_rng(0).random((6, 2))
    curve = np.stack([base, 2 * base, base + 1])
    found = S.bootstrap(curve, S.mean, seed=3)
    alone = S.bootstrap(base, S.mean, seed=3)
    np.testing.assert_allclose(found.low, [alone.low, 2 * alone.low, alone.low + 1], rtol=1e-12)
    np.testing.assert_allclose(found.high, [alone.high, 2 * alone.high, alone.high + 1])


def test_long_curves_are_cut_into_blocks_without_changing_the_answer(monkeypatch):
    values = np.random.default_rng(1).random((7, 5, 3))
    whole = S.bootstrap(values, resamples=50)
    monkeypatch.setattr(S, "_BLOCK", 50 * 5 * 3 * 2)
    blocks = S.bootstrap(values, resamples=50)
    np.testing.assert_array_equal(whole.low, blocks.low)
    np.testing.assert_array_equal(whole.high, blocks.high)


def test_the_seed_decides_the_interval():
    runs = np.random.default_rng(2).random(9)
    first, again, other = (S.bootstrap(runs, seed=s, resamples=200) for s in (5, 5, 6))
    assert (first.low, first.high) == (again.low, again.high)
    assert (first.low, first.high) != (other.low, other.high)
    generator = S.bootstrap(runs, seed=np.random.default_rng(5), resamples=200)
    assert (first.low, first.high) == (generator.low, generator.high)


def test_one_run_has_no_interval():
    found = S.bootstrap(np.array([[1.0, 3.0]]), S.mean)
    assert found.value == 2.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.has_interval
    assert S.bootstrap([1.0, 3.0]).has_interval


def test_a_diverged_run_widens_the_interval_to_infinity_and_is_not_dropped():
    runs = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, nan]
    found = S.bootstrap(runs)
    assert found.runs == 8
    assert math.isfinite(found.value)
    assert found.value > S.bootstrap(runs[:-1]).value
    assert found.high == inf


@pytest.mark.parametrize("statistic", [S.mean, S.iqm])
def test_coverage_on_a_known_distribution(statistic):
    """30 normal runs: a 90 % interval holds the true centre in about 90 % of 600 experiments.

    The percentile interval is known to be a little narrow (about 2 points at this size); the
    bounds are those of a binomial test at 1e-4 around 0.86 and 0.92.
    """
    rng = np.random.default_rng(11)
    hits = 0
    for i in range(600):
        found = S.bootstrap(
            rng.normal(3.0, 2.0, 30), statistic, confidence=0.9, resamples=400, seed=i
        )
        hits += bool(found.low <= 3.0 <= found.high)
    assert binom.ppf(1e-4, 600, 0.86) <= hits <= binom.ppf(1 - 1e-4, 600, 0.92)


# --- performance profiles ------------------------------------------------------------------------


def test_profile_worked_example():
    profile = S.performance_profile(WORKED, [0.5, 1.0, 6.0, 25.0, 1e9])
    # task one reaches 0, 1/4, 1, 1, 1; task two 0, 0, 0, 1/2, 3/4 (its last run never)
    np.testing.assert_array_equal(profile.value, [0, 0.125, 0.5, 0.75, 0.875])
    np.testing.assert_array_equal(profile.grid, [0.5, 1.0, 6.0, 25.0, 1e9])
    assert (profile.low <= profile.value).all()
    assert (profile.value <= profile.high).all()


def test_profile_where_higher_is_better():
    profile = S.performance_profile([1.0, 2.0, 3.0, nan], [0.0, 2.0, 4.0], better="higher")
    np.testing.assert_array_equal(profile.value, [0.75, 0.5, 0.0])


@given(tables, st.lists(finite, min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_profiles_rise_and_are_brute_force_fractions(table, thresholds):
    levels = np.sort(thresholds)
    profile = S.performance_profile(table, levels, resamples=5)
    brute = [np.mean([np.mean([x <= level for x in task]) for task in table.T]) for level in levels]
    np.testing.assert_allclose(profile.value, brute, atol=1e-12)
    assert (np.diff(profile.value) >= -1e-12).all()


# --- probability of improvement ------------------------------------------------------------------


@given(columns, columns)
@settings(max_examples=50, deadline=None)
def test_probability_of_improvement_is_brute_force(x, y):
    wins = [1.0 if a < b else 0.5 if a == b else 0.0 for a in x for b in y]
    found = S.probability_of_improvement(x, y, resamples=5)
    assert float(found.value) == pytest.approx(np.mean(wins), abs=1e-12)
    reverse = S.probability_of_improvement(y, x, resamples=5)
    assert float(found.value + reverse.value) == pytest.approx(1.0, abs=1e-12)
    assert found.runs == min(len(x), len(y))


def test_probability_of_improvement_averages_tasks_and_agrees_with_mann_whitney():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(6, 3)), rng.normal(0.5, size=(9, 3))
    u = [mannwhitneyu(y[:, t], x[:, t]).statistic / 54 for t in range(3)]
    found = S.probability_of_improvement(x, y)
    assert float(found.value) == pytest.approx(np.mean(u), abs=1e-12)
    assert found.low < found.value < found.high
    higher = S.probability_of_improvement(-x, -y, better="higher")
    assert (found.value, found.low, found.high) == (higher.value, higher.low, higher.high)


def test_improvement_interval_is_that_of_resampling_both():
    """The weights used are those of drawing runs: compare with explicit draws."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(5, 2)), rng.normal(0.7, size=(7, 2))
    found = S.probability_of_improvement(x, y, resamples=8000)
    samples = np.zeros(8000)
    for task in range(2):
        xs, ys = rng.choice(x[:, task], (8000, 5)), rng.choice(y[:, task], (8000, 7))
        samples += (xs[:, :, None] < ys[:, None]).mean(axis=(1, 2)) / 2
    np.testing.assert_allclose(
        [found.low, found.high], np.quantile(samples, [0.025, 0.975]), atol=0.02
    )


def test_improvement_of_one_run_has_no_interval_and_two_diverged_runs_tie():
    found = S.probability_of_improvement([nan], [inf, nan])
    assert found.value == 0.5
    assert not found.has_interval
    assert math.isnan(found.low)


# --- curves --------------------------------------------------------------------------------------


def test_align_takes_the_last_record_up_to_each_point():
    grid, values = align(
        [[0, 10, 20], [0, 5, 5, 30]],
        [[3.0, 2.0, 1.0], [9.0, 8.0, 7.0, 6.0]],
        [0, 5, 9.99, 10, 25, 100],
    )
    np.testing.assert_array_equal(grid, [0, 5, 9.99, 10, 25, 100])
    np.testing.assert_array_equal(values[:, 0], [3, 3, 3, 2, 1, 1])
    np.testing.assert_array_equal(values[:, 1], [9, 7, 7, 7, 7, 6])


def test_default_grid_begins_where_every_run_has_a_record():
    grid, values = align([[0.0, 1.0], [0.5, 2.0]], [[4.0, 3.0], [6.0, 5.0]])
    np.testing.assert_array_equal(grid, [0.5, 1.0, 2.0])
    np.testing.assert_array_equal(values, [[4, 6], [3, 6], [3, 5]])


def test_diverged_runs_are_infinite_from_where_they_broke():
    xs, ys = [[0, 1, 2], [0, 1], [0, 1]], [[3.0, 2.0, 1.0], [3.0, nan], [3.0, 9.0]]
    _, values = align(xs, ys, [0, 1, 2], diverged=[False, True, True])
    np.testing.assert_array_equal(values, [[3, 3, 3], [2, inf, 9], [1, inf, inf]])
    _, returns = align(xs, ys, [0, 1, 2], diverged=[False, True, True], better="higher")
    np.testing.assert_array_equal(returns[2], [1, -inf, -inf])


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_align_is_brute_force(lists):
    xs = [np.sort([0, *positions]) for positions in lists]
    ys = [np.arange(len(x), dtype=float) * (run + 1) for run, x in enumerate(xs)]
    grid, values = align(xs, ys)
    for point, row in zip(grid, values, strict=True):
        for x, y, value in zip(xs, ys, row, strict=True):
            assert value == [b for a, b in zip(x, y, strict=True) if a <= point][-1]


def test_aggregate_curves_is_align_then_bootstrap():
    rng = np.random.default_rng(5)
    xs = [np.arange(20)] * 5
    ys = [np.exp(-np.arange(20) / 5) * rng.uniform(0.5, 2) for _ in xs]
    curve = aggregate_curves(xs, ys, statistic=S.median, seed=1)
    np.testing.assert_allclose(curve.value, np.median(ys, axis=0), rtol=1e-12)
    assert curve.grid.shape == curve.low.shape == (20,)
    assert (curve.low <= curve.value).all()
    assert (curve.value <= curve.high).all()
    single = aggregate_curves(xs[:1], ys[:1])
    np.testing.assert_array_equal(single.value, ys[0])
    assert np.isnan(single.low).all()


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: S.bootstrap([[1.0, 2.0], [3.0]]), "rectangular"),
        (lambda: S.bootstrap([]), "at least one run"),
        (lambda: S.bootstrap(3.0), "at least one run"),
        (lambda: S.bootstrap([1.0, -inf]), "holds -inf"),
        (lambda: S.bootstrap([1.0, inf], better="higher"), "holds inf"),
        (lambda: S.bootstrap([1.0], better="smaller"), "'lower' or 'higher'"),
        (lambda: S.bootstrap([1.0, 2.0], confidence=95), "confidence=95"),
        (lambda: S.bootstrap([1.0, 2.0], resamples=0), "resamples=0"),
        (lambda: S.run_quantile(25), "q=25"),
        (lambda: S.optimality_gap(inf), "target=inf"),
        (lambda: S.performance_profile(np.ones((2, 2, 2)), [1.0]), "(runs, tasks)"),
        (lambda: S.performance_profile([1.0], []), "thresholds"),
        (lambda: S.performance_profile([1.0], [nan]), "thresholds"),
        (lambda: S.probability_of_improvement(np.ones((2, 2)), np.ones((2, 3))), "same tasks"),
        (lambda: align([], []), "one or more"),
        (lambda: align([[0]], [[1.0], [2.0]]), "same runs"),
        (lambda: align([[0, 1]], [[1.0]]), "run 0"),
        (lambda: align([[1, 0]], [[1.0, 1.0]]), "never decrease"),
        (lambda: align([[0, nan]], [[1.0, 1.0]]), "finite"),
        (lambda: align([[0], [3]], [[1.0], [1.0]], [1, 4]), "before run 1 recorded"),
        (lambda: align([[0]], [[1.0]], [2, 1]), "increasing"),
        (lambda: align([[0]], [[1.0]], diverged=[True, False]), "each of 1 runs"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(BadArgument, match=message.replace("(", r"\(").replace(")", r"\)")):
        call()
