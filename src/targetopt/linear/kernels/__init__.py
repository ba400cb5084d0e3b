"""Compiled kernels (numba): what ``targetopt.linear.coordinates`` does, fused and in place, and whole runs.

Importing this compiles nothing: each kernel is compiled when it is first asked for.
"""

from targetopt.linear.kernels.data.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)
from targetopt.linear.kernels.inner.solve import solve_inner
from targetopt.linear.kernels.rules import rule_kernel
from targetopt.linear.kernels.runs.engine import engine, has

__all__ = [
    "csr_gram_dual",
    "csr_gram_primal",
    "csr_matvec",
    "csr_rmatvec",
    "csr_take",
    "engine",
    "has",
    "rule_kernel",
    "solve_inner",
]
