"""Distillation: a student learns what a teacher thinks of images, and every question to the teacher is paid for.

The teacher is a forest of extremely randomised trees that has seen other images. What it sells decides what a
method can do with an answer:

    probabilities   its probability of every class: the loss of these images is then known everywhere
    top-k           the k most probable classes and their probabilities: known everywhere, too
    gradient        the student's loss and its gradient at the present logits, nothing else
    score           the student's loss alone: gradients are estimated from a few perturbed questions

The loss is the cross-entropy between teacher and student, less the teacher's entropy where that is known, so that 0
is a perfect copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Problem, as_rows, rng_of, seeded
from targetopt.lab.problems.digits.images import CLASSES, Digits, digits, network
from targetopt.lab.problems.registry import register
from targetopt.losses import CrossEntropy, Loss
from targetopt.oracle import GradientOracle, LossOracle, Oracle
from targetopt.oracle.teachers import TailBucket
from targetopt.types import BadArgument, Forward, positive_int

Size = Literal["smoke", "quick", "full"]
Sells = Literal["probabilities", "top-k", "gradient", "score"]
HELD_OUT = 400
TOP = 3
STEP = 1e-4
"""How far apart the two scores of a direction are, in logits."""


class Distillation(Problem):
    """A network copies a teacher; questions are about images, and all images are the objective."""

    expensive = True

    def __init__(
        self, data: Digits, taught: Tensor, sells: Sells, width: int, directions: int
    ) -> None:
        self.label = f"distillation, {sells}"
        self.data = data
        self.width = width
        self.sells = sells
        self.directions = directions
        self.taught = taught
        self.hidden: Loss = CrossEntropy(taught)
        if sells == "top-k":
            likely = taught.topk(TOP, dim=1)
            self.hidden = TailBucket(likely.indices, likely.values)
        self.loss = self.hidden if sells in ("probabilities", "top-k") else None
        self._sure = float(self.hidden.value((taught + 1e-300).log()).mean())

    @property
    def n(self) -> int:
        return len(self.taught)

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: network(self.data.pixels, self.width))

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        images = self.data.images if index is None else self.data.images[as_rows(index)]
        return lambda: model(images)

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        loss = self.hidden if index is None else self.hidden.rows(as_rows(index))
        if self.loss is not None:
            return LossOracle(loss)
        if self.sells == "gradient":
            return GradientOracle(lambda z: (loss.value(z), loss.gradient(z)))
        return GradientOracle(ByScores(loss, self.directions).answer)

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        z = model(self.data.images)
        right = model(self.data.held_out_images).argmax(dim=1) == self.data.held_out_classes
        return {
            "loss": float(self.hidden.value(z).mean()),
            "divergence": float(self.hidden.value(z).mean()) - self._sure,
            "accuracy": float(right.double().mean()),
        }


@dataclass(frozen=True)
class ByScores:
    """Gradients from scores alone: differences along a few orthogonal directions of each row's logits.

    With k logits and r directions u, g ≈ (k/r) Σ_u ((ℓ(z + δu) − ℓ(z − δu)) / 2δ) u, which is right on average
    over directions, and exact (to δ²) for r = k. The same question has the same directions.
    """

    loss: Loss
    directions: int

    def answer(self, z: Tensor) -> tuple[Tensor, Tensor]:
        rng = rng_of(z.numpy())
        width = z.shape[1]
        gradients = torch.zeros_like(z)
        turned = torch.from_numpy(np.linalg.qr(rng.normal(size=(len(z), width, width)))[0])
        for k in range(self.directions):
            u = turned[:, :, k]
            rise = self.loss.value(z + STEP * u) - self.loss.value(z - STEP * u)
            gradients += (rise / (2.0 * STEP))[:, None] * u
        return self.loss.value(z), gradients * (width / self.directions)


@lru_cache(maxsize=4)
def _taught(n: int, seed: int) -> Tensor:
    """What the teacher thinks of the images: its votes, with a little of every class."""
    from sklearn.ensemble import ExtraTreesClassifier

    data = digits(n, HELD_OUT, seed)
    teacher = ExtraTreesClassifier(n_estimators=60, random_state=seed, n_jobs=1)
    teacher.fit(data.spare_images.numpy(), data.spare_classes.numpy())
    votes = torch.from_numpy(teacher.predict_proba(data.images.numpy()))
    return 0.98 * votes + 0.02 / CLASSES


@register(
    "distillation",
    "a student copies a teacher that sells probabilities, top-k, gradients or scores",
)
def distillation(
    size: Size = "quick", sells: Sells = "probabilities", directions: int = 4, seed: int = 0
) -> Distillation:
    if sells not in ("probabilities", "top-k", "gradient", "score"):
        raise BadArgument(
            f"sells={sells!r} must be 'probabilities', 'top-k', 'gradient' or 'score'"
        )
    positive_int("directions", directions)
    if directions > CLASSES:
        raise BadArgument(
            f"directions={directions!r} must be at most {CLASSES}, one for each logit"
        )
    n, width = {"smoke": (100, 16), "quick": (400, 32), "full": (800, 64)}[size]
    data = digits(n, HELD_OUT, seed)
    return Distillation(data, _taught(n, seed), sells, width, directions)
