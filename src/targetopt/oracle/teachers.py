"""Oracles that are teachers: they return labels, probabilities or the best few log-probabilities.

Their answers do not depend on the targets, so only the inputs are sent, an answer serves every later step,
and a `Cache` keeps it across runs. The loss is known here, so rules that need its curvature or its values
elsewhere can be used with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from targetopt.losses import CrossEntropy, Loss
from targetopt.oracle.columns import Columns
from targetopt.oracle.forms import Form, numbers, tensor
from targetopt.oracle.loss import LossOracle
from targetopt.types import BadAnswer, BadArgument, TargetPoint


def from_labels(loss: Callable[[Tensor], Loss]) -> Form:
    """The teacher returns one label per example: a number, a class, or a vector.

    Args:
        loss: makes the loss from labels: `to.losses.Squared`, `to.losses.Logistic`,
            `to.losses.CrossEntropy` (classes), or a function of yours.

    Example:
        >>> import torch, targetopt as to
        >>> answers = to.teachers.from_labels(to.losses.Squared)
        >>> with to.RemoteOracle(lambda x: x.sum(dim=1), answers=answers) as teacher:
        ...     point = teacher.about(torch.ones(2, 3)).query(torch.tensor([1.0, 3.0]))
        >>> point.gradients
        tensor([-2.,  0.])
    """
    return _Loss("labels", loss)


def from_probabilities(loss: Callable[[Tensor], Loss] = CrossEntropy) -> Form:
    """The teacher returns probabilities over k classes, and the targets are the student's logits.

    The cross-entropy differs from the Kullback–Leibler divergence KL(teacher ‖ student) by the teacher's
    entropy, which does not depend on the student: gradients and minimisers are the same.

    Args:
        loss: makes the loss from probabilities, shape ``(n, k)``.

    Example:
        >>> import torch, targetopt as to
        >>> answers = to.teachers.from_probabilities()
        >>> with to.RemoteOracle(lambda x: [[0.9, 0.1]] * len(x), answers=answers) as teacher:
        ...     point = teacher.about(["a prompt"]).query(torch.zeros(1, 2))
        >>> point.gradients
        tensor([[-0.4000,  0.4000]])
    """
    return _Loss("probabilities", loss, matrix=True)


def from_top_k(classes: int, *, merged: bool = False) -> Form:
    """The teacher returns its k most probable classes (tokens, say) with their log-probabilities.

    What is left of the probability is the teacher's mass on all other classes together. The student's
    mass on them is compared with it as one bucket, see `TailBucket`.

    Args:
        classes: the size of the vocabulary, which is the width of the targets.
        merged: the targets are those of `targetopt.vocabulary.on_support` instead: the logits of the k classes,
            and one for all others. The answer reveals a `Merged` loss, whose ``support`` such a forward needs.

    Example:
        >>> import math, torch, targetopt as to
        >>> def teacher(prompts):
        ...     return [[2]] * len(prompts), [[math.log(0.7)]] * len(prompts)
        >>> with to.RemoteOracle(teacher, answers=to.teachers.from_top_k(4)) as oracle:
        ...     point = oracle.about(["a prompt"]).query(torch.zeros(1, 4))
        >>> point.gradients  # the student has 0.25 each; 0.3 belong to the other three
        tensor([[ 0.1500,  0.1500, -0.4500,  0.1500]])
    """
    return _TopK(classes, merged)


class Merged(CrossEntropy):
    """Cross-entropy over k classes of each example's own and one bucket for all others.

    It is `TailBucket` for targets from which the vocabulary has been merged already
    (`targetopt.vocabulary.on_support`), and convex in those; L = ½.

    Args:
        support: the classes, shape ``(n, k)``.
        probabilities: the teacher's, shape ``(n, k)``, with sums of at most 1; what is left is the tail's.

    Example:
        >>> loss = Merged(torch.tensor([[7]]), torch.tensor([[0.7]]))
        >>> loss.gradient(torch.zeros(1, 2))  # p_student − p_teacher
        tensor([[-0.2000,  0.2000]])
    """

    by_rows: ClassVar[tuple[str, ...]] = ("support", "labels")

    def __init__(self, support: Tensor, probabilities: Tensor) -> None:
        checked = TailBucket(support, probabilities)
        self.support = checked.best
        super().__init__(torch.cat([checked.probabilities, checked.tail.unsqueeze(1)], dim=1))

    def rows(self, index: Tensor) -> Merged:
        return Merged(self.support[index], self.labels[index, :-1])


class TailBucket(Loss):
    """Cross-entropy with a teacher of whom only the k best classes are known; L = ½.

    With q = softmax(z), S the k classes and a tail of probability p_S̄ = 1 − Σ_S p_c ::

        ℓ(z) = − Σ_{c ∈ S} p_c log q_c − p_S̄ log Σ_{c ∉ S} q_c

    which is the cross-entropy after all classes outside S are merged into one. The gradient is
    q_c − p_c inside S and q_c − p_S̄ q_c / q_S̄ outside. It is not convex where the tail has mass.

    Args:
        best: the classes, shape ``(n, k)``, each once in a row.
        probabilities: the teacher's, shape ``(n, k)``, with sums of at most 1.
    """

    smoothness = 0.5
    by_rows: ClassVar[tuple[str, ...]] = ("best", "probabilities", "tail")

    def __init__(self, best: Tensor, probabilities: Tensor) -> None:
        if best.shape != probabilities.shape or best.ndim != 2:
            raise BadArgument(
                f"TailBucket: classes and probabilities must have one shape (n, k); got "
                f"{tuple(best.shape)} and {tuple(probabilities.shape)}"
            )
        self.best = best.long()
        mass = probabilities.sum(dim=1, keepdim=True)
        if bool((mass > 1 + 1e-3).any()) or bool((probabilities < 0).any()):
            row = int(mass.argmax())
            raise BadArgument(
                f"TailBucket: probabilities must be ≥ 0 with sums of at most 1; row {row} has the sum "
                f"{float(mass[row]):.6g}. Are these logits instead of log-probabilities?"
            )
        self.probabilities = probabilities / mass.clamp(min=1)  # rounding may lead beyond 1
        self.tail = (1 - self.probabilities.sum(dim=1)).clamp(min=0)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log q, whether a class is in the tail, and log q_S̄."""
        log_q = torch.log_softmax(z, dim=1)
        outside = torch.ones_like(z, dtype=torch.bool).scatter(1, self.best, False)
        kept = log_q.masked_fill(~outside, -torch.inf)
        return log_q, outside, torch.logsumexp(kept, dim=1)

    def value(self, z: Tensor) -> Tensor:
        log_q, _, log_tail = self._parts(z)
        p = self.probabilities.to(z)
        head = (p * log_q.gather(1, self.best)).sum(dim=1)
        tail = self.tail.to(z)
        return -head - torch.where(tail > 0, tail * log_tail, torch.zeros_like(tail))

    def gradient(self, z: Tensor) -> Tensor:
        log_q, outside, log_tail = self._parts(z)
        q = log_q.exp()
        share = torch.where(outside, (log_q - log_tail.unsqueeze(1)).exp(), torch.zeros_like(q))
        taught = torch.zeros_like(q).scatter(1, self.best, self.probabilities.to(z))
        return q - taught - self.tail.to(z).unsqueeze(1) * share

    def rows(self, index: Tensor) -> TailBucket:
        return TailBucket(self.best[index], self.probabilities[index])


class _Loss:
    """One column of what the loss is made from."""

    needs_targets = False

    def __init__(
        self, column: str, loss: Callable[[Tensor], Loss], *, matrix: bool = False
    ) -> None:
        if not callable(loss):
            raise BadArgument(
                f"teachers: loss={loss!r} must make a loss from {column}, as to.losses.Squared does"
            )
        self.columns: tuple[str, ...] = (column,)
        self.loss = loss
        self.matrix = matrix

    def checked(self, columns: Columns, rows: int, asked: Columns) -> Columns:
        (name,) = self.columns
        extent = np.ndim(_plain(columns[name]))
        shape = (rows, None) if self.matrix else (rows, *[None] * max(0, extent - 1))
        values = numbers(name, columns[name], shape)
        try:
            self.loss(torch.as_tensor(values))
        except BadArgument as error:
            raise BadAnswer(str(error)) from error
        return {name: values}

    def point(self, columns: Columns, z: Tensor) -> TargetPoint:
        return LossOracle(self.loss(tensor(columns[self.columns[0]], z))).query(z)


class _TopK:
    columns: tuple[str, ...] = ("classes", "log_probabilities")
    needs_targets = False

    def __init__(self, classes: int, merged: bool) -> None:
        self.classes = classes
        self.merged = merged

    def checked(self, columns: Columns, rows: int, asked: Columns) -> Columns:
        best = numbers("classes", columns["classes"], (rows, None))
        logs = numbers("log_probabilities", columns["log_probabilities"], best.shape, np.float64)
        logs = np.nan_to_num(logs, nan=np.nan, neginf=-1e4)  # a probability of nought
        if best.dtype.kind not in "iu" or best.min() < 0 or best.max() >= self.classes:
            raise BadAnswer(f"classes must be whole numbers from 0 to {self.classes - 1}")
        ordered = np.sort(best, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            raise BadAnswer("classes must not name a class twice for one example")
        if best.shape[1] >= self.classes:
            raise BadAnswer(
                f"classes names {best.shape[1]} of {self.classes}; with all of them use from_probabilities"
            )
        if (np.exp(logs).sum(axis=1) > 1 + 1e-3).any() or (logs > 1e-6).any():
            raise BadAnswer("log_probabilities add up to more than 1; are they logits?")
        return {"classes": best, "log_probabilities": logs}

    def point(self, columns: Columns, z: Tensor) -> TargetPoint:
        best = tensor(columns["classes"], z)
        probabilities = tensor(columns["log_probabilities"], z).exp()
        if not self.merged:
            return LossOracle(TailBucket(best, probabilities)).query(z)
        if z.ndim != 2 or z.shape[1] != best.shape[1] + 1:
            raise BadAnswer(
                f"the teacher answered with {best.shape[1]} classes, so merged targets must have {best.shape[1] + 1} "
                f"columns; got the shape {tuple(z.shape)}. Make them with targetopt.vocabulary.on_support."
            )
        return LossOracle(Merged(best.long(), probabilities)).query(z)


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values
