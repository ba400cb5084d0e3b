"""Adversarial training: before every step the images are attacked, and the attack is what costs.

The objective is the robust cross-entropy, h(θ) = mean_i max_{‖δ‖∞ ≤ ε} ℓ(f_θ(x_i + δ), y_i). The attack finds δ by
projected gradient ascent (PGD) at the present parameters; with δ fixed the gradient of the inner loss is that of h
(Danskin). So a question consists of making the attack, and its answer reveals a loss that is known everywhere in
target space for these attacked images: the labels.

References: Madry et al., *Towards deep learning models resistant to adversarial attacks*, 2018; Shafahi et al.,
*Adversarial training for free!*, 2019; Wong, Rice, Kolter, *Fast is better than free*, 2020.
"""

from __future__ import annotations

from typing import Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Problem, as_rows, seeded
from targetopt.lab.problems.digits.images import Digits, Images, digits, network
from targetopt.lab.problems.registry import register
from targetopt.losses import CrossEntropy
from targetopt.types import BadArgument, Forward, positive_int

Size = Literal["smoke", "quick", "full"]


class RobustDigits(Problem):
    """A network classifies digits whose pixels an attacker may change by at most ε each.

    Making a forward makes the attack: that is the expensive part, and what a call counts. Because weaker attacks
    than this one must not look better than they are, ``loss`` is measured with an attack of its own, of twice as
    many steps.
    """

    expensive = True
    answers_tell = False
    answers_last = False

    def __init__(self, data: Digits, epsilon: float, steps: int, width: int) -> None:
        self.label = f"adversarial digits, {data.pixels} pixels, ε = {epsilon:g}"
        self.data = data
        self.epsilon = epsilon
        self.steps = steps
        self.width = width
        self.labels = CrossEntropy(data.classes)
        self.loss = self.labels

    @property
    def n(self) -> int:
        return len(self.data.classes)

    @property
    def reveals(self) -> frozenset[str]:
        return super().reveals | {"attack"}

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: network(self.data.pixels, self.width))

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        rows = slice(None) if index is None else as_rows(index)
        images = self.data.images[rows]
        attacked = self.attack(model, images, self.data.classes[rows], self.steps)
        return lambda: model(attacked)

    def attack(self, model: nn.Module, images: Tensor, classes: Tensor, steps: int) -> Tensor:
        """PGD from the images themselves: steps of 2.5 ε/steps along the sign, projected onto the box."""
        loss = CrossEntropy(classes)
        size = 2.5 * self.epsilon / steps
        attacked = images.clone()
        for _ in range(steps):
            attacked = self.moved(attacked, images, self.slope(model, loss, attacked), size)
        return attacked

    def slope(self, model: nn.Module, loss: CrossEntropy, images: Tensor) -> Tensor:
        """The gradient of the losses in the pixels: one forward and one backward pass."""
        leaf = images.detach().requires_grad_()
        with torch.enable_grad():
            z = model(leaf)
            (slope,) = torch.autograd.grad(z, leaf, loss.gradient(z.detach()))
        return slope

    def moved(self, attacked: Tensor, images: Tensor, slope: Tensor, size: float) -> Tensor:
        """One step of the attack: along the sign of the slope, within ε of the image and within [0, 1].

        It is written over the slope: fresh memory for each term takes longer than the passes of the network.
        """
        away = slope.sign_().mul_(size).add_(attacked).sub_(images)
        return away.clamp_(-self.epsilon, self.epsilon).add_(images).clamp_(0.0, 1.0)

    def loss_again(self, model: nn.Module) -> dict[str, float]:
        """The loss alone: the attack on held-out images takes as long as the one on a training set of that size."""
        data = self.data
        attacked = self.attack(model, data.images, data.classes, 2 * self.steps)
        with torch.no_grad():
            return {"loss": float(self.labels.value(model(attacked)).mean())}

    def metrics(self, model: nn.Module) -> dict[str, float]:
        data = self.data
        hostile = self.attack(model, data.held_out_images, data.held_out_classes, 2 * self.steps)
        with torch.no_grad():
            robust = model(hostile).argmax(dim=1) == data.held_out_classes
            clean = model(data.held_out_images).argmax(dim=1) == data.held_out_classes
        return {
            **self.loss_again(model),
            "robust_accuracy": float(robust.double().mean()),
            "accuracy": float(clean.double().mean()),
        }


@register(
    "adversarial-digits", "adversarial training on handwritten digits; the oracle is a PGD attack"
)
def adversarial_digits(
    size: Size = "quick",
    epsilon: float = 0.1,
    steps: int = 10,
    images: Images = "digits",
    seed: int = 0,
) -> RobustDigits:
    positive_int("steps", steps)
    if not 0 < epsilon < 1:
        raise BadArgument(f"epsilon={epsilon!r} must lie between 0 and 1, the range of a pixel")
    sizes = {"smoke": (60, 60, 16), "quick": (300, 200, 32), "full": (1200, 500, 64)}
    n, held_out, width = sizes[size]
    if images == "mnist":  # twelve times as many pixels
        n, held_out = {"smoke": (60, 60), "quick": (100, 100), "full": (1000, 1000)}[size]
    return RobustDigits(digits(n, held_out, seed, images), epsilon, steps, width)
