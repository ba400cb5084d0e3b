"""Everything a run may import, so that worker processes are forked from one that has it already.

``torch._dynamo`` is here because torch imports it, for seconds, when the first optimiser is made.
"""

import torch._dynamo

import targetopt.bench.session
import targetopt.bench.work

__all__ = ["targetopt", "torch"]
