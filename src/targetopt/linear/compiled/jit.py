"""How every kernel is compiled.

``cache=True`` keeps the machine code on disk: a process compiles nothing that an earlier one did.
Sums may be reordered (that is what vectorises a dot product), but nan and inf keep their meaning: a
run that diverges must be seen to diverge.
"""

from numba import njit

jit = njit(cache=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", nogil=True)
