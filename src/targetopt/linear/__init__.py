"""Linear models at the speed of the machine: z = Xθ with X dense or sparse."""

from targetopt.linear import baselines
from targetopt.linear.design import DenseDesign, Design, SparseDesign, design
from targetopt.linear.engines import has_kernels
from targetopt.linear.fit import Fit, Run, fit
from targetopt.linear.forward import Linear
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
    "has_kernels",
    "sample_order",
]
