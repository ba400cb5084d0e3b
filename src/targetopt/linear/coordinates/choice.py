"""Which form of the inner problem costs least: a Gram matrix of the rows, of the columns, or none.

One definition for numpy and for kernels, which compile `choose_form` as it stands.
"""

from __future__ import annotations

DUAL, PRIMAL, MATVEC = 0, 1, 2
FORMS = ("dual", "primal", "matvec")

# Nanoseconds of one multiply-add, measured: in a dense symmetric product, in a dense Gram matrix,
# through an index list, and in a scattered Gram update. Only their ratios matter.
DENSE_NS, BLAS_NS, SPARSE_NS, SCATTER_NS = 0.15, 0.08, 0.7, 0.8
# Gradient steps need about so many times the root of their number of products with the Hessian, if
# they are made in their Krylov space.
KRYLOV_SHARE = 4.0


def choose_form(
    rows: int, width: int, nnz: int, meetings: float, sparse: bool, steps: int, exact: bool
) -> int:
    """The cheapest form for ``steps`` inner steps or an exact solve, by counting multiply-adds.

    ``meetings`` is Σ_c n_c² over the columns, n_c non-zeros in column c: what XXᵀ costs if X is sparse.
    Only the smaller Gram matrix is a candidate, so memory stays O(nnz + min(rows, width)²).
    """
    if sparse:
        dual = SCATTER_NS * (0.5 * meetings + 3.0 * nnz)
        primal = SCATTER_NS * nnz * (0.5 * nnz / rows + 1)
        product = SPARSE_NS * nnz
    else:
        dual = BLAS_NS * rows * rows * width
        primal = BLAS_NS * rows * width * width
        product = DENSE_NS * nnz
    small = min(rows, width)
    if exact:  # a factorisation, against conjugate gradients that need a few times the rank
        gram = DENSE_NS * small * small * (small / 3 + 4)
        matvec = 6 * product * small
    else:
        products = min(KRYLOV_SHARE * steps**0.5, float(steps), float(small))
        gram = DENSE_NS * small * small * products
        matvec = 2 * product * products
    gram += dual if rows <= width else primal
    if matvec <= gram:
        return MATVEC
    return DUAL if rows <= width else PRIMAL
