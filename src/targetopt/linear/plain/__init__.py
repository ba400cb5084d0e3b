"""Plain kernels: numpy and scipy only. The readable statement of what the compiled ones do."""

from targetopt.linear.plain.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)

__all__ = ["csr_gram_dual", "csr_gram_primal", "csr_matvec", "csr_rmatvec", "csr_take"]
