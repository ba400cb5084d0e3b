"""The seam to the user's expensive code."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from targetopt.types import TargetPoint


class Oracle(Protocol):
    """Knows the loss. Asked once per outer step; nothing else ever calls the expensive code.

    ``query(z)`` gets the targets ``z_t`` (detached, one row per example) and returns a
    `TargetPoint` with one loss and one gradient per example, in the mean convention: the gradient of
    *this example's* loss, not divided by n. What it returns is copied, and what it is given is a copy: it
    may work in place and reuse its buffers.

    An oracle may say beforehand what its answers will hold, so that a rule which needs more is refused
    before anything is paid for: attributes ``value``, ``curvature``, ``smoothness``, ``revealed`` and
    ``majoriser``, as in `TargetPoint`, where ``None`` stands for "never". Where an attribute does not
    exist, nothing is said and the first answer decides.
    """

    def query(self, z: Tensor) -> TargetPoint: ...
