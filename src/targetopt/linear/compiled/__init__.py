"""Compiled kernels (numba): same functions as ``targetopt.linear.plain``, fused and in place."""

from targetopt.linear.compiled.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)
from targetopt.linear.compiled.inner import solve_inner
from targetopt.linear.compiled.jit import discard_stale_cache
from targetopt.linear.compiled.runs import run_baseline, run_sso

discard_stale_cache()

__all__ = [
    "csr_gram_dual",
    "csr_gram_primal",
    "csr_matvec",
    "csr_rmatvec",
    "csr_take",
    "run_baseline",
    "run_sso",
    "solve_inner",
]
