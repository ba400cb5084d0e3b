"""What an answer tells of the last step: whether it is about the same rows, and whether fresh rows agree."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.types import State, TargetPoint, differing_rows

GAIN = 0.3
"""β: how far one answer may move log η. Fixed on ijcnn1 and mushrooms (seed 0), where 0.3 and 1 were tried."""

WEIGHED_GAIN = 1.0
"""β for weighed agreement, which moves η less. Fixed on the problems of the control with a seed that is not shown
there; 0.3, 1 and 2 were tried."""

MEMORY = 16
"""Over so many answers, roughly, the usual size of the evidence is averaged."""

SPAN = 1e12
"""η stays within this factor of its first value, whatever the answers say."""


def same_rows(point: TargetPoint, asked: Tensor | None, index: Tensor | None) -> bool:
    """Whether this answer is about the rows of the last one, so that the two losses can be compared.

    With ``index=`` that is known. Without it, ``point.earlier`` tells: evaluated where the last step
    began, the same rows give the targets that the oracle was asked about then.

    Args:
        point: the oracle's answer.
        asked: the targets of the last answer; None if there was none.
        index: the data rows of the last answer, if they were given.
    """
    return present().all(_same_here(point, asked, index))


def _same_here(point: TargetPoint, asked: Tensor | None, index: Tensor | None) -> bool:
    if asked is None or point.earlier is None or asked.shape != point.targets.shape:
        return False
    if index is not None or point.index is not None:
        return index is not None and point.index is not None and torch.equal(index, point.index)
    return not differing_rows(point.earlier, asked)


class Evidence(NamedTuple):
    """What fresh rows say of the last step.

    Attributes:
        slope: ⟨g, δ⟩, where δ is how the step moved the targets of rows that it has not seen; weight decay counts
            in it.
        size: ‖g‖‖δ‖, the largest that the slope can be.
    """

    slope: float
    size: float

    @property
    def agreement(self) -> float:
        """−slope/size, between −1 and 1; 0 if there is nothing to compare.

        Above 0, these rows want to go on in the direction in which they were moved, so the step was too short for
        them; below 0, it has gone too far. On rows that are drawn independently of the last batch the slope is an
        unbiased sample of how the expected loss changes with η.
        """
        return self.beside(0.0)

    def beside(self, usual: float) -> float:
        """The agreement, where evidence that is smaller than ``usual`` counts by its share of that only.

        Once a model fits most rows, most batches have hardly any gradient left, and all of them agree with any step;
        the few rows that a step has spoilt are what decides, and they have nearly all of the gradient.
        """
        if not 0.0 < self.size < math.inf:
            return 0.0
        return min(max(-self.slope / max(self.size, usual), -1.0), 1.0)

    def averaged(self, usual: float | None) -> float:
        """The usual size of the evidence after this one."""
        if not 0.0 < self.size < math.inf:
            return usual or 0.0
        return self.size if not usual else usual + (self.size - usual) / MEMORY


def evidence(point: TargetPoint, penalty_before: float = 0.0) -> Evidence:
    """How rows that the last step has not seen took it: one forward pass, no oracle call."""
    if point.earlier is None:
        return Evidence(0.0, 0.0)
    mean = present().mean
    moved, gradients = (point.targets - point.earlier).double(), point.gradients.double()
    squares = float(mean(gradients.square())) * float(mean(moved.square()))
    slope = float(mean(gradients * moved)) + point.penalty - penalty_before
    return Evidence(slope, math.sqrt(squares) if 0.0 < squares < math.inf else 0.0)


def adapted(eta: float, agrees: float, first: float, gain: float = GAIN) -> float:
    """η · exp(β · agreement), within `SPAN` of the first η.

    >>> adapted(2.0, 0.0, first=1.0)
    2.0
    """
    return min(max(eta * math.exp(gain * agrees), first / SPAN), first * SPAN)


def first_step(point: TargetPoint) -> float:
    """|ℓ|/‖g‖²: the η at which the linear model of the loss reaches zero; 1 where that is not defined."""
    squared, loss = point.gradient_norm_squared, abs(float(point.loss))
    return loss / squared if squared > 0 and loss > 0 else 1.0


def anchored(point: TargetPoint) -> State:
    """What a rule keeps of this answer to compare the next one with it."""
    kept: State = {"targets": point.targets, "penalty": point.penalty}
    return kept if point.index is None else {**kept, "index": point.index}
