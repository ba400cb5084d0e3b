"""The exact minimiser, for forwards that are linear in the parameters (m = ∞)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Line, Objective
from targetopt.inner.space import Space
from targetopt.inner.stopping import EXACT
from targetopt.surrogate import BinaryEntropic, EntropicProximal, Quadratic, both_chances
from targetopt.types import HALF, BadForward, MissingCapability, State, wide


@dataclass(frozen=True)
class Exact(Inner):
    """θ_{t+1} = argmin q(f(θ)) + ½λ‖θ‖² for f(θ) = Jθ + c: one least-squares solve (paper §3, m = ∞).

    Of several minimisers it takes the one nearest to θ_t, the limit of gradient descent. For
    full-batch least squares this is the Newton update θ − η(XᵀX)⁻¹Xᵀ(Xθ − y). The entropic
    surrogate takes a few damped Newton solves. This general form builds the Jacobian row by row
    (n·k backwards) and is meant for small problems; give a `to.Linear` forward for large ones.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
        >>> y = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
        >>> opt = to.SSO([w], lr=1.0, inner=to.Exact())
        >>> _ = opt.step(lambda: x @ w, to.LossOracle(to.losses.Squared(y)))
        >>> bool(torch.allclose(w, torch.linalg.lstsq(x, y[:, None]).solution[:, 0]))
        True
    """

    any_surrogate: ClassVar[bool] = False
    remedy: ClassVar[str] = "Lower lr, or use Armijo or LBFGS."

    def check(self, params: Sequence[Tensor]) -> None:
        Space(params).check_whole("Exact")
        half = [p.dtype for p in params if p.dtype in HALF]
        if half:
            raise BadForward(
                f"Exact needs parameters of float32 or float64; got {half[0]}, which cannot hold a minimiser "
                "to any accuracy. Keep them in float32 and use autocast inside forward, or use LBFGS."
            )

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        self.check(objective.params)
        if not isinstance(objective.surrogate, Quadratic | EntropicProximal | BinaryEntropic):
            raise MissingCapability(
                f"Exact solves quadratic and entropic surrogates, not {type(objective.surrogate).__name__}. "
                "Use LBFGS."
            )
        now = objective.start()
        jacobian = self._jacobian(objective, now)
        total, steps = 0.0, 0
        for _ in range(1 if isinstance(objective.surrogate, Quadratic) else 100):
            flat = self._displacement(objective, now, jacobian)
            predicted = now.z.detach() + (jacobian @ flat).view_as(now.z)
            alpha = _interior_step(objective, now.z.detach(), predicted)
            parts = flat.split([p.numel() for p in objective.params])
            direction = [part.view_as(p) for part, p in zip(parts, objective.params, strict=True)]
            line = Line(objective, now, direction)
            there, change = line.trial(alpha)
            _check_linear(now.z.detach(), predicted, there.z.detach(), alpha)
            steps += 1
            total -= change
            now = there
            if -change <= 1e-15 * abs(total):
                break
        return InnerResult(steps, total, EXACT)

    @staticmethod
    def _jacobian(objective: Objective, at: Evaluation) -> Tensor:
        """∂z/∂θ, shape (n·k, parameters)."""
        rows = []
        for i in range(at.z.numel()):
            unit = torch.zeros_like(at.z, memory_format=torch.contiguous_format)
            unit.view(-1)[i] = 1.0
            rows.append(torch.cat([wide(g).reshape(-1) for g in objective.vjp(at, unit, own=True)]))
        return torch.stack(rows)

    @staticmethod
    def _displacement(objective: Objective, at: Evaluation, jacobian: Tensor) -> Tensor:
        """The shortest minimiser d of ½‖A d‖² + b·d, with AᵀA = JᵀWJ/n + λI and b the gradient."""
        n, decay, world = objective.examples, objective.weight_decay, present()
        surrogate, z, s = objective.surrogate, at.z.detach(), at.slope
        block = isinstance(surrogate, Quadratic) and surrogate.metric.ndim == z.ndim + 1
        if block:
            assert isinstance(surrogate, Quadratic)
            factor = torch.linalg.cholesky(surrogate.metric)
            rows = (factor.mT @ jacobian.view(*z.shape, -1)).reshape(z.numel(), -1)
            right = -torch.linalg.solve_triangular(factor, s.unsqueeze(2), upper=False).reshape(-1)
            positive = True
        else:
            weight = surrogate.curvature_product(z, torch.ones_like(z)).reshape(-1)
            positive = world.all(bool((weight > 0).all()))
            root = weight.sqrt()
            rows = root.unsqueeze(1) * jacobian
            right = -s.reshape(-1) / root if positive else s.new_zeros(0)
        theta = torch.cat([p.detach().reshape(-1) for p in objective.params])
        rows = world.joined(rows / math.sqrt(n))
        if decay:
            eye = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device)
            rows = torch.cat([rows, math.sqrt(decay) * eye])
        u, sigma, vt = torch.linalg.svd(rows, full_matrices=False)
        cutoff = sigma[0] * max(rows.shape) * torch.finfo(sigma.dtype).eps
        inverse = torch.where(sigma > cutoff, sigma.reciprocal(), 0.0)
        if positive:  # least squares: squares no condition number
            right = world.joined(right / math.sqrt(n))
            if decay:
                right = torch.cat([right, -math.sqrt(decay) * theta])
            shortest: Tensor = vt.mT @ (inverse * (u.mT @ right))
        else:
            gradient = world.sums(jacobian.mT @ s.reshape(-1)) / n + decay * theta
            shortest = -(vt.mT @ (inverse.square() * (vt @ gradient)))
        return world.first(shortest)


def _interior_step(objective: Objective, z: Tensor, predicted: Tensor) -> float:
    """1, or shorter where the entropic surrogate would be left through zero."""
    if isinstance(objective.surrogate, Quadratic):
        return 1.0
    if isinstance(objective.surrogate, BinaryEntropic):
        z, predicted = both_chances(z), both_chances(predicted)
    falling = predicted < z
    limit = (z / (z - predicted))[falling]
    shortest = float(limit.min()) if falling.any() else math.inf
    return min(1.0, 0.9 * -present().largest(-shortest))


def _check_linear(before: Tensor, predicted: Tensor, after: Tensor, alpha: float) -> None:
    expected = before + alpha * (predicted - before)
    scale = 1 + float(torch.maximum(before.abs(), expected.abs()).max())
    error = float((after - expected).abs().max())
    if not error <= scale * torch.finfo(before.dtype).eps ** 0.5:
        raise BadForward(
            "Exact needs a forward that is linear in the parameters; moving by d changed the targets by "
            f"{error:.3g} more than J·d. Use LBFGS or GaussNewton for this model."
        )
