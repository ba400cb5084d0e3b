"""Plain kernels: numpy and scipy only. The readable statement of what the compiled ones do."""

from targetopt.linear.plain.baselines import run_baseline
from targetopt.linear.plain.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)
from targetopt.linear.plain.inner import solve_inner
from targetopt.linear.plain.sso import run_sso

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
