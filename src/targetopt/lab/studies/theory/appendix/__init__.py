"""Every inequality of the paper's appendix, tried on random instances: ``check_all()``."""

from targetopt.lab.studies.theory.appendix import deterministic, projection, scalar, stochastic
from targetopt.lab.studies.theory.appendix.registry import (
    INEQUALITIES,
    Case,
    Checked,
    Inequality,
    check,
    check_all,
)

__all__ = [
    "INEQUALITIES",
    "Case",
    "Checked",
    "Inequality",
    "check",
    "check_all",
    "deterministic",
    "projection",
    "scalar",
    "stochastic",
]
