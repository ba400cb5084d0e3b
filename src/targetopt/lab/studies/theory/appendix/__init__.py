"""Every inequality of the paper's appendix, tried on random instances: ``check_all()``."""

from targetopt.lab.studies.theory.appendix import deterministic, projection, scalar, stochastic
from targetopt.lab.studies.theory.appendix.registry import (
    INEQUALITIES,
    Case,
    Inequality,
    Outcome,
    check,
    check_all,
)

__all__ = [
    "INEQUALITIES",
    "Case",
    "Inequality",
    "Outcome",
    "check",
    "check_all",
    "deterministic",
    "projection",
    "scalar",
    "stochastic",
]
