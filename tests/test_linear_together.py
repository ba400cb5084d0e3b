"""Runs on one design share what they gather of it; each is the run it would be by itself, bit for bit."""

import threading

import numpy as np
import pytest
import scipy.sparse as sp

import targetopt as to
from targetopt.linear import Run, backend
from targetopt.linear.design import design

pytest.importorskip("numba")

from targetopt.linear.kernels.data import gathered, pieces
from targetopt.linear.kernels.data.batch import matrix_of

METHODS = {
    "a step": {"inner": to.Armijo(max_steps=1)},
    "steps": {"inner": to.Armijo(max_steps=20)},
    "many steps": {"inner": to.Armijo(max_steps=100), "rule": to.LineSearch()},
    "L-BFGS": {"inner": to.LBFGS(max_steps=5), "rule": to.AdaGradNorm()},
    "exact": {"inner": to.Exact()},
    "weights": {"inner": to.Armijo(max_steps=20), "rule": to.AdaGrad()},
    "Newton": {"inner": to.Armijo(max_steps=20), "rule": to.Newton()},
    "FTRL": {"inner": to.Armijo(max_steps=20), "rule": to.FTRL()},
    "squares": {"inner": to.Armijo(max_steps=20), "loss": to.losses.Squared},
}


def data(kind):
    rng = np.random.default_rng(3)
    if kind == "dense":
        X = rng.normal(size=(130, 7))
    elif kind == "narrow":
        X = sp.random_array((130, 12), density=0.4, rng=rng, format="csr")
    else:
        X = sp.random_array((130, 900), density=0.02, rng=rng, format="csr")
    return X, np.sign(rng.normal(size=130))


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("batch_size", [8, 33, None])
@pytest.mark.parametrize("kind", ["dense", "narrow", "wide"])
def test_a_run_among_others_is_the_run_alone(kind, batch_size, weight_decay):
    X, y = data(kind)
    options = {"batch_size": batch_size, "seed": 5, "weight_decay": weight_decay}
    shared = design(X)
    together = {name: Run(shared, y, **options, **method) for name, method in METHODS.items()}
    per_epoch = together["steps"].steps_per_epoch
    for steps in (1, 2, per_epoch, per_epoch + 1):
        for run in together.values():
            assert run.advance(steps)
    for name, method in METHODS.items():
        alone = Run(design(X), y, **options, **method)
        assert alone.advance(2 * per_epoch + 4)
        np.testing.assert_array_equal(alone.theta, together[name].theta, err_msg=name)
        assert alone.counts == together[name].counts


def test_a_draw_is_gathered_once_for_all(monkeypatch):
    X, y = data("wide")
    gathered = []

    def gather(matrix, order, *rest):
        gathered.append(order.size)
        return real(matrix, order, *rest)

    real = pieces.gather
    monkeypatch.setattr(pieces, "gather", gather)
    shared = design(X)
    runs = [Run(shared, y, batch_size=10, inner=to.Armijo(max_steps=m)) for m in (5, 10, 20)]
    with backend.use("numba"):
        for _ in range(2):
            for run in runs:
                run.advance(13)
    assert gathered == [130, 130]


def test_runs_in_threads_do_not_touch_each_others_batches():
    X, y = data("wide")
    shared, found = design(X), {}

    def work(seed):
        run = Run(shared, y, batch_size=10, seed=seed, inner=to.Armijo(max_steps=20))
        run.advance(13 * 30)
        found[seed] = run.theta

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        run = Run(design(X), y, batch_size=10, seed=seed, inner=to.Armijo(max_steps=20))
        run.advance(13 * 30)
        np.testing.assert_array_equal(run.theta, found[seed])


@pytest.mark.parametrize("columns", [1, 2, 7, 40, 300])
def test_the_columns_of_a_batch_are_numbered_in_their_order(columns):
    """Batches with fewer columns than rows: local numbers ascend with the columns, and the rows are the rows."""
    rng = np.random.default_rng(columns)
    X = sp.random_array((3000, columns), density=min(1.0, 3 / columns), rng=rng, format="csr")
    order = rng.permutation(3000)[:2400]
    ends = np.array([1500, 2400])
    kept = gathered.gather(matrix_of(design(X)), order, ends, True, np.empty(0), 0)
    for t, rows in enumerate(np.split(order, [1500])):
        batch = gathered.view(kept, t)
        touched = np.unique(X[rows].indices)
        np.testing.assert_array_equal(batch.active, touched)
        own = sp.csr_array((batch.data, batch.indices, batch.indptr), (rows.size, touched.size))
        np.testing.assert_array_equal(own.toarray(), X[rows].toarray()[:, touched])
