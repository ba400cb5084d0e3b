"""Designs: every product against dense numpy, on both backends, for every kind of input."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from targetopt.linear import backend, design
from targetopt.types import BadArgument

BACKENDS = backend.available()


def random_matrix(seed, n, d, density):
    """Zero rows and columns, duplicate rows, and (often) deficient rank, by construction."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    A[rng.random(n) < 0.2] = 0.0
    A[:, rng.random(d) < 0.2] = 0.0
    return A[rng.integers(n, size=n)]


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    d=st.integers(1, 12),
    k=st.integers(1, 3),
    density=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_products_equal_numpy(name, seed, n, d, k, density):
    A = random_matrix(seed, n, d, density)
    rng = np.random.default_rng(seed + 1)
    theta, u, w = rng.normal(size=(d, k)), rng.normal(size=(n, k)), rng.normal(size=n)
    index = rng.integers(n, size=rng.integers(1, 2 * n + 1))
    for matrix in (A, sp.csr_array(A), sp.csc_array(A), sp.coo_matrix(A)):
        with backend.use(name):
            X = design(matrix)
            assert X.shape == (n, d)
            np.testing.assert_allclose(X.matvec(theta), A @ theta, atol=1e-13)
            np.testing.assert_allclose(X.matvec(theta[:, 0]), A @ theta[:, 0], atol=1e-13)
            np.testing.assert_allclose(X.rmatvec(u), A.T @ u, atol=1e-13)
            np.testing.assert_allclose(X.rmatvec(u[:, 0]), A.T @ u[:, 0], atol=1e-13)
            np.testing.assert_allclose(X.gram_dual(), A @ A.T, atol=1e-13)
            np.testing.assert_allclose(X.gram_primal(), A.T @ A, atol=1e-13)
            np.testing.assert_allclose(X.gram_primal(w), A.T @ (w[:, None] * A), atol=1e-13)
            np.testing.assert_allclose(X.row_norms_squared(), (A**2).sum(axis=1), atol=1e-13)
            part = X.rows(index)
            np.testing.assert_allclose(part.matvec(theta), A[index] @ theta, atol=1e-13)
            augmented = np.hstack([A, np.ones((n, 1))])
            np.testing.assert_allclose(
                X.with_bias().gram_primal(w), augmented.T @ (w[:, None] * augmented), atol=1e-13
            )


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_any_dtype_unsorted_and_duplicate_entries(name, index_dtype, dtype):
    data = np.array([1, 1, 1, 1], dtype=dtype)
    columns = np.array([2, 0, 2, 1], dtype=index_dtype)
    indptr = np.array([0, 3, 3, 4], dtype=index_dtype)
    X = sp.csr_array((data, columns, indptr), shape=(3, 3))
    dense = X.toarray().astype(float)
    before = X.indices.copy()
    with backend.use(name):
        np.testing.assert_array_equal(design(X).gram_dual(), dense @ dense.T)
    np.testing.assert_array_equal(X.indices, before)  # the caller's matrix is untouched


def test_non_contiguous_and_torch_inputs():
    A = np.random.default_rng(0).normal(size=(6, 8))
    theta = np.arange(4.0)
    expected = A[::2, ::2] @ theta
    np.testing.assert_allclose(design(A[::2, ::2]).matvec(theta), expected)
    np.testing.assert_allclose(design(torch.tensor(A)[::2, ::2]).matvec(theta), expected)
    np.testing.assert_allclose(design(np.asfortranarray(A)).matvec(np.arange(8.0)), A @ range(8))
    sliced = sp.csr_array(A)[::2]
    np.testing.assert_allclose(design(sliced).matvec(np.arange(8.0)[::1]), A[::2] @ range(8))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array, sp.csc_array, torch.tensor])
def test_not_finite_names_the_rows(bad, convert):
    A = np.ones((5, 2))
    A[3, 1] = bad
    with pytest.raises(BadArgument, match=r"rows \[3\]"):
        design(convert(A))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((0, 3)), "at least one example"),
        (np.zeros((3, 0)), "at least one example"),
        (sp.csr_array((0, 3)), "at least one example"),
        (np.zeros(3), "two axes"),
        (np.array([["a"]]), "real numbers"),
        (np.ones((2, 2), dtype=complex), "real numbers"),
        (sp.csr_array(np.ones((2, 2), dtype=complex)), "real numbers"),
        (sp.csr_array((1, 2**32), dtype=float), "columns"),
        (torch.eye(2).to_sparse_coo(), "scipy CSR"),
        ([[1.0], [1.0, 2.0]], "real numbers"),
    ],
)
def test_bad_designs_say_what_is_wrong(X, message):
    with pytest.raises(BadArgument, match=message):
        design(X)


def test_broken_sparse_structure_is_an_error_not_a_crash():
    X = sp.csr_array(np.eye(3))
    X.indices = np.array([0, 7, 2], dtype=np.int32)
    with pytest.raises(BadArgument, match="broken"):
        design(X)


@pytest.mark.parametrize("index", [[3], [-4], [], [[0]], [0.5], np.array([True])])
def test_bad_row_numbers(index):
    with pytest.raises(BadArgument, match="index"):
        design(np.eye(3)).rows(index)


def test_masks_and_negative_rows():
    X = design(sp.csr_array(np.diag([1.0, 2.0, 3.0])))
    ones = np.ones(3)
    np.testing.assert_array_equal(X.rows([True, False, True]).matvec(ones), [1, 3])
    np.testing.assert_array_equal(X.rows(torch.tensor([-1, 0])).matvec(ones), [3, 1])


def test_environment_variable_chooses_and_is_checked(monkeypatch):
    monkeypatch.setenv("TARGETOPT_KERNELS", "numpy")
    assert backend.name() == "numpy"
    monkeypatch.setenv("TARGETOPT_KERNELS", "fortran")
    with pytest.raises(BadArgument, match="fortran"):
        backend.name()
