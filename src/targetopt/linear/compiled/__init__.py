"""Compiled kernels (numba): same functions as ``targetopt.linear.plain``, fused and in place."""

from targetopt.linear.compiled.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)

__all__ = ["csr_gram_dual", "csr_gram_primal", "csr_matvec", "csr_rmatvec", "csr_take"]
