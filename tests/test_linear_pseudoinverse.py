"""The pseudo-inverse by pivoted Cholesky, against numpy's by eigenvalues."""

import runpy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the compiled kernels need the extra [numba]")

from targetopt.linear.kernels.compiler import jit
from targetopt.linear.kernels.inner import pseudoinverse


@pytest.fixture(
    autouse=True,
    params=["as written", pytest.param("compiled", marks=pytest.mark.slow)],
    scope="module",
)
def _ways(request):
    """Compiled by itself it takes longer than all else here; every exact solve of other tests has it compiled."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "as written":
            for name in ("jit", "loop"):
                patch.setattr(jit, name, lambda function: function)
            written = runpy.run_path(pseudoinverse.__file__)
            for name in ("factorise", "apply"):
                patch.setattr(pseudoinverse, name, written[name])
        yield


def apply(factor, right):
    return pseudoinverse.apply(factor, right)


def factorise(matrix):
    return pseudoinverse.factorise(matrix)


def semidefinite(n, rank, seed, condition=1.0):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    values = np.zeros(n)
    values[:rank] = np.geomspace(1.0, 1.0 / condition, rank)
    return (basis * values) @ basis.T


@settings(deadline=None)
@given(
    n=st.integers(1, 20),
    rank=st.integers(0, 20),
    seed=st.integers(0, 10**6),
    condition=st.sampled_from([1.0, 1e3, 1e6]),
)
def test_gives_the_shortest_solution_whatever_the_rank(n, rank, seed, condition):
    matrix = semidefinite(n, min(rank, n), seed, condition)
    right = matrix @ np.random.default_rng(seed + 1).normal(size=n)
    found = apply(factorise(matrix), right)
    expected = np.linalg.pinv(matrix, rcond=1e-9, hermitian=True) @ right
    np.testing.assert_allclose(
        found, expected, atol=1e-15 + 1e-13 * condition * np.abs(expected).max()
    )


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 30))
def test_indicator_columns_are_no_trouble(seed, rows):
    """Each block of columns adds up to one, as in data that were categories: the rank tells itself."""
    rng = np.random.default_rng(seed)
    X = np.hstack([np.eye(4)[rng.integers(4, size=rows)] for _ in range(3)])
    matrix = X.T @ X / rows
    factor = factorise(matrix)
    assert factor.inverse.size == 0
    if factor.inner.size:
        assert factor.lower.shape == (12, np.linalg.matrix_rank(X))
    right = matrix @ rng.normal(size=12)
    expected = np.linalg.pinv(matrix, rcond=1e-9, hermitian=True) @ right
    np.testing.assert_allclose(apply(factor, right), expected, rtol=0, atol=1e-10)


def test_where_pivots_do_not_tell_the_rank_eigenvalues_do():
    matrix = semidefinite(12, 12, 0, condition=1e12)
    factor = factorise(matrix)
    assert factor.inverse.size == 12
    wanted = np.random.default_rng(0).normal(size=12)
    right = matrix @ wanted
    np.testing.assert_allclose(matrix @ apply(factor, right), right, atol=1e-12)


def test_nothing_has_nothing_for_a_pseudo_inverse():
    np.testing.assert_array_equal(apply(factorise(np.zeros((3, 3))), np.ones(3)), np.zeros(3))


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_what_is_not_finite_is_passed_on(spoiled):
    matrix = np.eye(3)
    matrix[1, 2] = matrix[2, 1] = spoiled
    assert np.isnan(apply(factorise(matrix), np.ones(3))).all()
