"""One inner problem of a linear model, and products with sparse data, with numpy and scipy alone."""

from targetopt.linear.coordinates.choice import FORMS
from targetopt.linear.coordinates.csr import (
    csr_gram_dual,
    csr_gram_primal,
    csr_matvec,
    csr_rmatvec,
    csr_take,
)
from targetopt.linear.coordinates.solution import REASONS, Result, Solution
from targetopt.linear.coordinates.solvers import SOLVERS, solve_inner, solves

__all__ = [
    "FORMS",
    "REASONS",
    "SOLVERS",
    "Result",
    "Solution",
    "csr_gram_dual",
    "csr_gram_primal",
    "csr_matvec",
    "csr_rmatvec",
    "csr_take",
    "solve_inner",
    "solves",
]
