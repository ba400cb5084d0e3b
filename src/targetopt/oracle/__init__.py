"""Oracles: the only code that ever calls what is expensive."""

from targetopt.oracle.answer import CountedValue, as_oracle, as_point, check_ids, checked
from targetopt.oracle.base import Oracle
from targetopt.oracle.gradient import GradientOracle
from targetopt.oracle.loss import LossOracle, as_answer
from targetopt.oracle.scalar import ScalarOracle

__all__ = [
    "CountedValue",
    "GradientOracle",
    "LossOracle",
    "Oracle",
    "ScalarOracle",
    "as_answer",
    "as_oracle",
    "as_point",
    "check_ids",
    "checked",
]
