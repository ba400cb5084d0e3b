"""Linear models at the speed of the machine: z = Xθ with X dense or sparse."""

from targetopt.linear.operators import DenseDesign, Design, SparseDesign, design

__all__ = ["DenseDesign", "Design", "SparseDesign", "design"]
