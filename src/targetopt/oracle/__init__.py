"""Oracles: the only code that ever calls what is expensive."""

from targetopt.oracle.answer import CountedValue, as_oracle, checked
from targetopt.oracle.base import Oracle
from targetopt.oracle.gradient import GradientOracle
from targetopt.oracle.loss import LossOracle, as_answer

__all__ = [
    "CountedValue",
    "GradientOracle",
    "LossOracle",
    "Oracle",
    "as_answer",
    "as_oracle",
    "checked",
]
