"""Linear models at the speed of the machine: z = Xθ with X dense or sparse."""

from targetopt.linear import baselines
from targetopt.linear.driver import Fit, Run, fit, sample_order
from targetopt.linear.forward import Linear, minimise, supports
from targetopt.linear.operators import DenseDesign, Design, SparseDesign, design

__all__ = [
    "DenseDesign",
    "Design",
    "Fit",
    "Linear",
    "Run",
    "SparseDesign",
    "baselines",
    "design",
    "fit",
    "minimise",
    "sample_order",
    "supports",
]
