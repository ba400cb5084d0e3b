"""L_θ against a dense eigenvalue solver, and the errors of its inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from sklearn.datasets import load_digits

from targetopt import losses
from targetopt.baselines import batch_smoothness, linear_smoothness, theoretical_step
from targetopt.types import BadArgument


def reference(X, L, bias=False, weight_decay=0.0):
    X = np.asarray(X, dtype=np.float64)
    if bias:
        X = np.hstack([X, np.ones((len(X), 1))])
    return L * np.linalg.eigvalsh(X.T @ X)[-1] / len(X) + weight_decay


entries = st.floats(-100, 100).map(lambda v: 0.0 if abs(v) < 1e-3 else v)
matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=entries)
formats = [np.asarray, scipy.sparse.csr_array, scipy.sparse.csc_matrix, torch.tensor]


@given(matrices, st.sampled_from([0.25, 1.0]), st.booleans(), st.sampled_from([0.0, 0.5]))
@settings(deadline=None)
def test_small_matrices_in_every_format(X, L, bias, weight_decay):
    expected = reference(X, L, bias, weight_decay)
    for convert in formats:
        found = linear_smoothness(convert(X), L, bias=bias, weight_decay=weight_decay)
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("shape", [(900, 300), (300, 900), (400, 400)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_large_matrices_where_lanczos_is_used(shape, bias, sparse):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.05)
    data = scipy.sparse.csr_array(X) if sparse else X
    found = linear_smoothness(data, 0.25, bias=bias, weight_decay=0.01)
    assert found == pytest.approx(reference(X, 0.25, bias, 0.01), rel=1e-9)


@pytest.mark.parametrize("gap", [1e-2, 1e-5, 0.0])
def test_close_eigenvalues(gap):
    rng = np.random.default_rng(1)
    u = np.linalg.qr(rng.standard_normal((500, 300)))[0]
    v = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    singular = np.concatenate([[1.0, math.sqrt(1 - gap)], np.linspace(0.9, 0.01, 298)])
    found = linear_smoothness((u * singular) @ v.T, 1.0)
    assert found == pytest.approx(1 / 500, rel=1e-6)


def test_rows_that_are_all_equal():
    """Rank one: all rows equal; λ_max = n‖x‖²."""
    X = np.ones((600, 300))
    assert linear_smoothness(X, 1.0) == pytest.approx(300.0, rel=1e-10)


def test_a_sparse_matrix_is_never_made_dense():
    """50 000 × 200 000 would take 80 GB."""
    rng = np.random.default_rng(2)
    n, d = 50_000, 200_000
    columns = rng.permutation(d)[:n]
    values = rng.uniform(0.1, 1.0, n)
    values[7] = 3.0
    X = scipy.sparse.csr_array((values, (np.arange(n), columns)), shape=(n, d))
    assert linear_smoothness(X, 1.0) == pytest.approx(9.0 / n, rel=1e-9)


def test_it_bounds_the_curvature_of_the_real_loss_and_is_attained_by_the_squared_one():
    X = torch.tensor(load_digits().data[:200] / 16.0)
    y = torch.where(torch.arange(200) % 2 == 0, 1.0, -1.0).double()

    def largest(loss):
        def objective(w):
            return loss.value(X @ w).mean() + 0.05 * w.square().sum()

        w = 0.1 * torch.ones(64, dtype=torch.float64)
        return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(objective, w))[-1])

    squared = linear_smoothness(X, losses.Squared.smoothness, weight_decay=0.1)
    assert largest(losses.Squared(y)) == pytest.approx(squared, rel=1e-9)
    logistic = linear_smoothness(X, losses.Logistic.smoothness, weight_decay=0.1)
    assert largest(losses.Logistic(y)) <= logistic


def test_batches():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 6))
    batches = np.split(rng.permutation(40), 5)
    for data in (X, scipy.sparse.csr_array(X), torch.tensor(X)):
        found = batch_smoothness(data, 0.25, batches, bias=True, weight_decay=0.1)
        expected = [reference(X[rows], 0.25, True, 0.1) for rows in batches]
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    # λ_max of an average is at most the largest λ_max
    assert found.max() >= linear_smoothness(X, 0.25, bias=True, weight_decay=0.1)


@given(matrices)
@settings(max_examples=25, deadline=None)
def test_duplicating_every_example_changes_nothing(X):
    twice = linear_smoothness(np.vstack([X, X]), 1.0)
    assert twice == pytest.approx(linear_smoothness(X, 1.0), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e140])
def test_squares_neither_overflow_nor_vanish(scale):
    X = np.random.default_rng(4).standard_normal((300, 280))
    expected = linear_smoothness(X, 1.0) * scale * scale
    assert linear_smoothness(scale * X, 1.0) == pytest.approx(expected, rel=1e-9)


def test_integer_and_single_precision_data():
    X = np.random.default_rng(5).integers(0, 3, (30, 4))
    for kind in (np.int8, np.bool_, np.float32, np.uint16):
        data = X.astype(kind)
        assert linear_smoothness(data, 1.0) == pytest.approx(reference(data, 1.0), rel=1e-12)


def test_zero_data_are_flat_and_have_no_theoretical_step():
    assert linear_smoothness(np.zeros((3, 2)), 1.0) == 0.0
    assert linear_smoothness(scipy.sparse.csr_array((3, 2)), 1.0, weight_decay=0.5) == 0.5
    assert theoretical_step(linear_smoothness(np.zeros((3, 2)), 1.0, bias=True)) == 0.5
    with pytest.raises(BadArgument, match=r"smoothness=0\.0"):
        theoretical_step(0.0)


def test_sgd_with_the_theoretical_step_descends_and_four_times_it_does_not():
    X = np.random.default_rng(6).standard_normal((50, 5))
    data = torch.tensor(X)
    step = theoretical_step(linear_smoothness(X, 1.0))

    def end(lr):
        w = torch.ones(5, dtype=torch.float64, requires_grad=True)
        opt = torch.optim.SGD([w], lr)
        for _ in range(100):
            opt.zero_grad()
            (0.5 * (data @ w).square().mean()).backward()
            opt.step()
        return float(w.detach().norm())

    assert end(step) < 1e-6
    assert end(4.1 * step) > 10  # 4 steps of 1/(2L) are 2/L, the edge of stability


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_smoothness(np.zeros((0, 3)), 1.0), r"got \(0, 3\)"),
        (lambda: linear_smoothness(np.zeros((3, 0)), 1.0), r"got \(3, 0\)"),
        (lambda: linear_smoothness(np.zeros(3), 1.0), r"got \(3,\)"),
        (lambda: linear_smoothness(np.array([["a"]]), 1.0), "real numbers"),
        (lambda: linear_smoothness(np.ones((2, 2)) * 1j, 1.0), "real numbers"),
        (lambda: linear_smoothness([[1.0], [math.nan]], 1.0), r"rows \[1\]"),
        (
            lambda: linear_smoothness(scipy.sparse.csr_array([[0, 1], [0, 0], [math.inf, 1]]), 1.0),
            r"rows \[2\]",
        ),
        (lambda: linear_smoothness(np.full((2, 2), 1e200), 1.0), "overflows"),
        (lambda: linear_smoothness(np.eye(2), None), "baselines.SLS"),
        (lambda: linear_smoothness(np.eye(2), 0.0), r"loss_smoothness=0\.0"),
        (lambda: linear_smoothness(np.eye(2), 1.0, weight_decay=-1), "weight_decay=-1"),
        (lambda: batch_smoothness(np.eye(2), 1.0, []), "batches is empty"),
        (lambda: batch_smoothness(np.eye(2), 1.0, [[]]), "non-empty"),
        (lambda: batch_smoothness(np.eye(2), 1.0, [[0, 2]]), "row 2"),
        (lambda: batch_smoothness(np.eye(2), 1.0, [[-1]]), "row -1"),
        (lambda: batch_smoothness(np.eye(2), 1.0, [[0.5]]), "row numbers"),
        (lambda: theoretical_step(math.inf), "smoothness=inf"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(BadArgument, match=message):
        call()
