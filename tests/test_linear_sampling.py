"""Which rows a step sees: shuffled epochs or independent batches, and `fit` on either."""

from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import targetopt as to
from targetopt.linear import Batches, Run, backend, fit, sample_order
from targetopt.linear import baselines as rivals
from targetopt.types import BadArgument

BACKENDS = backend.available()


def data(n=40, d=15):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)
    return sp.csr_array(X), np.where(X @ rng.normal(size=d) > 0, 1.0, -1.0)


def drawn(batches, steps):
    return [batches.rows(t) for t in range(steps)]


sizes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 2**40))
def test_epochs_are_the_documented_permutations(size, seed):
    n, b = size
    batches = Batches(n, b, seed)
    per_epoch = batches.steps_per_epoch
    for epoch in (0, 3):
        rows = [batches.rows(epoch * per_epoch + t) for t in range(per_epoch)]
        order = np.arange(n) if b == n else sample_order(n, seed, epoch)
        np.testing.assert_array_equal(np.concatenate(rows), order)
        assert [len(r) for r in rows[:-1]] == [b] * (per_epoch - 1)


@given(sizes, st.integers(0, 2**40), st.sampled_from(["epochs", "independent"]), st.data())
def test_a_stretch_is_its_steps_whichever_came_before(size, seed, sampling, draw):
    n, b = size
    reference = Batches(n, b, seed, sampling)
    batches = Batches(n, b, seed, sampling)
    for _ in range(3):
        step, most = draw.draw(st.integers(0, 3000)), draw.draw(st.integers(1, 60))
        order, ends = batches.stretch(step, most)
        assert 1 <= ends.size <= most
        assert order.size == ends[-1]
        for t, rows in enumerate(np.split(order, ends[:-1])):
            np.testing.assert_array_equal(rows, reference.rows(step + t))


@given(sizes, st.integers(0, 2**40))
def test_an_independent_batch_has_distinct_rows(size, seed):
    n, b = size
    for rows in drawn(Batches(n, b, seed, "independent"), 20):
        assert rows.shape == (b,) == np.unique(rows).shape
        assert 0 <= rows.min() <= rows.max() < n


@pytest.mark.parametrize(("n", "b"), [(7, 1), (6, 3), (5, 4)])
def test_every_independent_batch_is_equally_likely(n, b):
    every = dict.fromkeys(combinations(range(n), b), 0)
    for rows in drawn(Batches(n, b, seed=11, sampling="independent"), 6000):
        every[tuple(sorted(rows.tolist()))] += 1
    assert chisquare(list(every.values())).pvalue > 1e-3


def test_independent_batches_know_nothing_of_the_last():
    """Pairs of successive single draws, all 16 equally likely; within an epoch none could repeat."""
    rows = np.concatenate(drawn(Batches(4, 1, seed=2, sampling="independent"), 8001))
    pairs = np.bincount(4 * rows[:-1] + rows[1:], minlength=16)
    assert chisquare(pairs[:16]).pvalue > 1e-3
    # and across seeds, at a step where a new draw of the generator begins
    across = [Batches(4, 1, seed, "independent").rows(1024)[0] for seed in range(2000)]
    assert chisquare(np.bincount(across)).pvalue > 1e-3


def test_seeds_are_reproducible_and_differ():
    first, again, other = (drawn(Batches(100, 5, seed, "independent"), 300) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize(
    ("rule", "inner"),
    [
        (to.GradientStep(), to.Armijo(max_steps=10)),
        (to.Newton(), to.Exact()),
        (to.FTRL(), to.GradientDescent(step_size=0.02, max_steps=5)),
    ],
    ids=["gradient", "newton", "ftrl"],
)
def test_independent_fit_is_sso_on_the_same_batches(name, batch_size, rule, inner):
    X, y = data()
    model = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    opt = to.SSO(model.parameters(), lr=0.5, rule=rule, inner=inner, weight_decay=1e-2)
    everything, labels = to.Linear(model, X), torch.tensor(y)
    batches = Batches(40, batch_size, seed=6, sampling="independent")
    for t in range(100):
        rows = torch.from_numpy(batches.rows(t))
        oracle = to.LossOracle(to.losses.Logistic(labels[rows]))
        opt.step(everything.rows(rows), oracle, index=rows)
    options = {"rule": rule, "inner": inner, "lr": 0.5, "weight_decay": 1e-2}
    with backend.use(name):
        found = fit(
            X, y, batch_size=batch_size, sampling="independent", steps=100, seed=6, **options
        )
    expected = model.weight.detach().numpy()[0]
    np.testing.assert_allclose(found.theta, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
    assert found.counts.oracle_calls == 100


@pytest.mark.parametrize("baseline", [rivals.SVRG(), rivals.Adam()], ids=["svrg", "adam"])
def test_an_independent_run_in_pieces_is_the_same_run_bit_for_bit(baseline):
    X, y = data()
    options = {"baseline": baseline, "lr": 0.3, "batch_size": 3, "sampling": "independent"}
    whole = fit(X, y, steps=700, **options)
    state = None
    for steps in (5, 0, 400, 295):
        part = fit(X, y, steps=steps, state=state, **options)
        state = part.state
    np.testing.assert_array_equal(part.theta, whole.theta)
    assert part.counts == whole.counts


def test_svrg_takes_a_snapshot_every_epoch_however_batches_are_drawn():
    X, y = data()
    for sampling in ("epochs", "independent"):
        found = fit(X, y, baseline=rivals.SVRG(), lr=0.3, batch_size=8, sampling=sampling, epochs=3)
        assert found.counts.oracle_calls == 3 * (5 + 2 * 5)


@pytest.mark.parametrize("sampling", ["epochs", "independent"])
def test_a_restarted_run_is_a_new_one(sampling):
    X, y = data()
    options = {"rule": to.AdaGrad(), "inner": to.Armijo(max_steps=4), "lr": 0.5, "batch_size": 6}
    run = Run(X, y, seed=9, sampling=sampling, start=np.ones(15), **options)
    for seed in (1, 2, 1):
        run.restart(seed)
        run.advance(30)
        new = fit(
            X, y, seed=seed, sampling=sampling, start=np.ones(15), steps=30, record_at=[], **options
        )
        np.testing.assert_array_equal(run.theta, new.theta)
        assert run.counts == new.counts


def test_bad_arguments_say_what_is_wrong():
    X, y = data()
    with pytest.raises(BadArgument, match=r"sampling='iid' must be 'epochs'.*'independent'"):
        fit(X, y, sampling="iid", epochs=1)
    with pytest.raises(BadArgument, match="batch_size=41"):
        Batches(40, 41)
