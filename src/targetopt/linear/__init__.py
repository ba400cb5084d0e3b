"""Linear models at the speed of the machine: z = Xθ with X dense or sparse."""

from targetopt.linear import baselines
from targetopt.linear.driver import Fit, Run, fit
from targetopt.linear.forward import Linear, minimise, supports
from targetopt.linear.operators import DenseDesign, Design, SparseDesign, design
from targetopt.linear.sampling import Batches, Sampling, sample_order

__all__ = [
    "Batches",
    "DenseDesign",
    "Design",
    "Fit",
    "Linear",
    "Run",
    "Sampling",
    "SparseDesign",
    "baselines",
    "design",
    "fit",
    "minimise",
    "sample_order",
    "supports",
]
