"""What a kernel computes does not depend on where in memory its arrays lie.

A compiler that may reorder sums goes over a loop in another way where it cannot be sure that what the loop writes
is not what it reads; it asks so when the loop runs, by addresses, and arrays that lie close together are taken for
such. A loop that both writes and sums would therefore have other last bits from one allocation to the next.
"""

import numpy as np
import pytest

pytest.importorskip("numba")

from targetopt.linear.coordinates.choice import DUAL, MATVEC, PRIMAL
from targetopt.linear.kernels.data.batch import Batch, add_rmatvec, matvec
from targetopt.linear.kernels.inner import krylov, pseudoinverse, quadratic

PLACEMENTS = 60
SIZES = [4, 6, 12, 16, 17, 20, 24, 31, 75]
WIDE = 64


def placed(arrays, gaps, order):
    """Copies of these arrays in one block, in this order, with gaps of so many numbers between them."""
    block = np.zeros(sum(each.size for each in arrays) + sum(gaps))
    copies, at = [None] * len(arrays), 0
    for which, gap in zip(order, gaps, strict=True):
        here = block[at + gap : at + gap + arrays[which].size]
        here[:] = arrays[which].ravel()
        copies[which], at = here.reshape(arrays[which].shape), at + gap + here.size
    return copies


def bits_everywhere(kernel, *arrays):
    """The bits of what a kernel returns and leaves, wherever its arrays lie: a set, of one element if all is well."""
    rng, found = np.random.default_rng(1), set()
    for _ in range(PLACEMENTS):
        gaps = rng.integers(0, 3, len(arrays)) * rng.integers(0, 9, len(arrays))
        for some in (gaps, np.full(len(arrays), WIDE)):
            copies = placed(arrays, some, rng.permutation(len(arrays)))
            returned = kernel(*copies)
            kept = b"".join(each.tobytes() for each in copies)
            found.add(np.array(0.0 if returned is None else returned).tobytes() + kept)
    return found


def batch_of(rows, width, rng):
    none = np.empty(0, np.int32)
    dense = rng.normal(size=(rows, width))
    return Batch(np.empty(0, np.int64), none, np.empty(0), dense, none, True, rows, width)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("form", [DUAL, PRIMAL, MATVEC], ids=["dual", "primal", "matvec"])
@pytest.mark.parametrize("n", SIZES)
def test_a_direction_is_probed_alike_everywhere(n, form, decay):
    rng = np.random.default_rng(n)
    X = batch_of(n, n, rng)
    gram = X.dense @ X.dense.T if form == DUAL else X.dense.T @ X.dense
    length = 1.0 + float(
        np.trace(gram)
    )  # as ‖θ‖² of some θ with these targets, so that all is definite

    def problem(metric, targets):
        own = (metric, targets, targets, np.ones(n), 0.5, length, decay)
        products = np.zeros(2, np.int64)
        return quadratic.Problem(X, form, gram, np.trace(gram), *own, np.empty(n), products)

    def probe(metric, targets, x, p, image):
        return quadratic.probe(problem(metric, targets), x, p, image)

    def covector(metric, targets, x, out):
        quadratic.covector(problem(metric, targets), x, out)

    given = rng.random(n) + 1.0, rng.normal(size=n), rng.normal(size=n + 1)
    assert len(bits_everywhere(probe, *given, np.zeros(n), np.zeros(n + 1))) == 1
    assert len(bits_everywhere(covector, *given, np.zeros(n + 1))) == 1


@pytest.mark.parametrize("n", SIZES)
def test_steps_in_a_basis_are_the_same_everywhere(n):
    rng = np.random.default_rng(n)
    normal, lanes = rng.normal, -(-n // krylov.LANES) * krylov.LANES

    def product(diagonal, beside, c, out):
        return krylov._product(lanes, diagonal, beside, c, out)

    def step(image, c, moved):
        return krylov._step(lanes, 0.3, 0.01, image, c, moved)

    def orthogonalise(V):
        return krylov._orthogonalise(V, 6, 0.1, 1.0)

    sizes = [normal(size=lanes), normal(size=lanes + 1), normal(size=lanes + 2)]
    assert len(bits_everywhere(product, *sizes, np.zeros(lanes))) == 1
    assert len(bits_everywhere(step, sizes[0], sizes[2], normal(size=lanes))) == 1
    assert len(bits_everywhere(orthogonalise, normal(size=(8, n)))) == 1


@pytest.mark.parametrize("n", SIZES)
def test_products_and_factors_are_the_same_everywhere(n):
    rng = np.random.default_rng(n)
    X = batch_of(9, n, rng)
    gram, vector, rows = X.dense.T @ X.dense + np.eye(n), rng.normal(size=n), rng.normal(size=9)

    def times(theta, out):
        matvec(X, theta, out)

    def back(u, out):
        add_rmatvec(X, u, out)

    def deficient(lower, inner, right):
        factor = pseudoinverse.Factor(np.arange(n), lower, inner, np.empty((0, 0)), np.empty(0))
        return pseudoinverse.apply(factor, right)

    low = np.linalg.cholesky(gram)[:, : n - 1].copy()
    inner = np.linalg.cholesky(low.T @ low)
    assert len(bits_everywhere(quadratic.symmetric_product, gram, vector, np.zeros(n))) == 1
    assert len(bits_everywhere(times, vector, np.zeros(9))) == 1
    assert len(bits_everywhere(back, rows, vector)) == 1
    assert len(bits_everywhere(pseudoinverse._cholesky, gram)) == 1
    assert len(bits_everywhere(pseudoinverse._solve, inner, vector[1:])) == 1
    assert len(bits_everywhere(deficient, low, inner, vector)) == 1
