"""What solving one inner problem gave, in numbers that compiled code can return too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.inner.stopping import DECREASE, EXACT, GRADIENT, LINE_SEARCH, MAX_STEPS

BY_MAX_STEPS, BY_GRADIENT, BY_DECREASE, BY_LINE_SEARCH, BY_EXACT = 0, 1, 2, 3, 4
REASONS = (MAX_STEPS, GRADIENT, DECREASE, LINE_SEARCH, EXACT)


class Result(NamedTuple):
    """What a solver did; ``step`` is the step size to carry to the next outer step (nan: none)."""

    steps: int
    decrease: float
    reason: int
    step: float


class Solution(NamedTuple):
    """The parameters that were found, how, and with how many products with X and Xᵀ."""

    theta: NDArray[np.float64]
    result: Result
    form: int
    forward_calls: int
    backward_calls: int
