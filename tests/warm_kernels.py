"""Have all kernels compiled together, by one process that imports the package once: no test then waits for one.

Those that Python calls are asked for with the types that their callers give them. A kernel that is not among these, or
has other types, is compiled by the first test that calls it.
"""

import numpy as np

from targetopt.linear.kernels import tangents
from targetopt.linear.kernels.arguments import Stretch
from targetopt.linear.kernels.compiler.jit import Pointer, compiled, prepare, request
from targetopt.linear.kernels.data import csr
from targetopt.linear.kernels.data.batch import NO_MATRIX
from targetopt.linear.kernels.data.gathered import gathering
from targetopt.linear.kernels.inner import solve
from targetopt.linear.kernels.inner.solvers import NOTHING
from targetopt.linear.kernels.rules import NO_CRITERION, NO_STATE
from targetopt.linear.kernels.runs import baselines, engine, memory, sso


def all_kernels():
    """The longest first."""
    index, columns, numbers, table = (
        np.empty(0, np.int64),
        np.empty(0, np.int32),
        np.empty(0),
        np.empty((0, 0)),
    )
    rows, stretch = (index, columns, numbers), Stretch(index, index, 0, numbers)
    memory_spec = memory.MemorySpec(True, 0.0, 0.0, 0.0, 0, True, table, numbers)
    memory_state = memory.MemoryState(numbers, table, table, index)
    return [
        sso.running(),
        *(each.request for each in compiled if isinstance(each, Pointer)),
        request(memory.run, NO_MATRIX, NO_CRITERION, memory_spec, stretch, memory_state, table),
        request(baselines.run, NO_MATRIX, NO_CRITERION, engine._PLAIN, 0.0, stretch, NO_STATE),
        request(solve._solve, NO_MATRIX, *[numbers] * 4, 0.0, NOTHING, 0.0, 0, index),
        gathering(),
        request(csr.gram_dual, *rows, 0),
        request(csr.gram_primal, *rows, numbers, 0),
        request(csr.take, *rows, index),
        request(csr._matvec, *rows, numbers, numbers),
        request(csr._add_rmatvec, *rows, numbers, numbers),
        request(
            tangents.renew_slopes, columns, *rows[1:], numbers, numbers, index, numbers, numbers
        ),
    ]


if __name__ == "__main__":
    prepare(*all_kernels())
