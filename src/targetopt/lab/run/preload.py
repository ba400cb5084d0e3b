"""Everything a run may import, so that worker processes are forked from one that has it already.

``torch._dynamo`` is here because torch imports it, for seconds, when the first optimiser is made.
"""

import torch._dynamo

import targetopt.lab.run.imitation
import targetopt.lab.run.job

__all__ = ["targetopt", "torch"]
