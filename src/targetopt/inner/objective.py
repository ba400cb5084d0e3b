"""What an inner solver sees: the scalar θ ↦ q(f(θ)) + ½λ‖θ‖² and lines through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.inner.economy import UNKNOWN_PRICE
from targetopt.inner.space import Space, Tensors
from targetopt.surrogate import Surrogate
from targetopt.types import HALF, BadForward, wide


@dataclass
class Evaluation:
    """The targets at one θ, with the graph that leads to them, and the surrogate's gradient there."""

    z: Tensor
    slope: Tensor
    """∂q_i/∂z_i at ``z``, per-example scale."""


class Objective:
    """θ ↦ q(f(θ)) + ½λ‖θ‖², evaluated at the parameters as they stand.

    Inner solvers move ``params`` in place and ask for evaluations; each forward and backward is
    counted here and nowhere else. Nothing here ever calls the oracle. Solvers run without grad mode. On several
    ranks every number that is given out is the same on all of them.

    Attributes:
        params: what solvers move: the parameters, or this rank's shards of them.
        space: of the parameters, with its inner product.
        examples: rows of all ranks.
        price: τ, what an oracle call costs in inner steps, as far as it is known.
    """

    def __init__(
        self,
        forward: Callable[[], Tensor],
        params: list[Tensor],
        surrogate: Surrogate,
        weight_decay: float = 0.0,
        start: Tensor | None = None,
        price: float = UNKNOWN_PRICE,
    ) -> None:
        self.forward = forward
        self.price = price
        self.space = Space(params)
        self.params = self.space.parts
        self.surrogate = surrogate
        self.weight_decay = weight_decay
        self.forward_calls = 0
        self.backward_calls = 0
        self.jvp_calls = 0
        self._start = start
        self.examples = present().rows(surrogate.anchor.shape[0])

    def rows(self, index: Tensor) -> Objective:
        """The same objective on some of the rows: θ ↦ mean over them of q_i(f_i(θ)) + ½λ‖θ‖², a mini-batch.

        Its calls are counted here too, one each, however few rows they have.
        """
        return _Part(self, index)

    def dot(self, a: Tensors, b: Tensors) -> float:
        """⟨a, b⟩ in the space of the parameters."""
        return self.space.dot(a, b)

    def largest_decrease(self) -> float:
        """How far free targets would bring the surrogate down from its anchor, weight decay left out."""
        anchor = self.surrogate.anchor
        return float(
            self.surrogate.value(anchor) - self.surrogate.value(self.surrogate.minimiser())
        )

    def start(self) -> Evaluation:
        """The evaluation at the step's first θ; it reuses the graph of the oracle's query."""
        z, self._start = self._start, None
        if z is None:
            return self.evaluate()
        return Evaluation(z, self.surrogate.gradient(z.detach()))

    def evaluate(self) -> Evaluation:
        """One forward at the present parameters, graph kept for `gradient`."""
        self.forward_calls += 1
        with torch.enable_grad():
            z = self._checked(self.forward())
        return Evaluation(z, self.surrogate.gradient(z.detach()))

    def _checked(self, z: Tensor) -> Tensor:
        anchor = self.surrogate.anchor
        if z.shape != anchor.shape:
            raise BadForward(
                f"forward() returned shape {tuple(z.shape)}; the oracle was asked about {tuple(anchor.shape)}. "
                "A forward must give the same rows at every call: fix the batch outside of it."
            )
        return z

    def gradient(
        self, at: Evaluation, *, keep_graph: bool = False, native: bool = False
    ) -> list[Tensor]:
        """∇_θ of the objective; consumes the evaluation's graph unless told to keep it.

        As `wide` makes them; ``native`` keeps what ``.grad`` would be (the parameter's dtype, sparse for
        a sparse embedding as long as there is no weight decay), which torch's optimisers ask for.
        """
        grads = self.vjp(at, at.slope / self.examples, keep_graph=keep_graph)
        if not native:
            grads = [wide(g) for g in grads]
        if self.weight_decay:
            dense = [g.to_dense() if g.is_sparse else g for g in grads]
            # a new list: autograd may hand out views, or one tensor twice
            return list(torch._foreach_add(dense, self.params, alpha=self.weight_decay))
        return grads

    def vjp(
        self, at: Evaluation, v: Tensor, *, keep_graph: bool = True, own: bool = False
    ) -> list[Tensor]:
        """Jᵀv as autograd gives it (zeros for parameters the forward did not use), over all ranks' rows.

        With ``own``, over the rows of this rank alone.
        """
        self.backward_calls += 1
        pulled = self.space.own if own else self.space.pulled
        grads = pulled(at.z, v, keep_graph=keep_graph)
        if all(g is None for g in grads):
            raise BadForward(
                "forward()'s targets do not depend on the parameters SSO was given: it seems to be of "
                "another model, or of a copy. Build both from the same model: give SSO the parameters "
                "it uses."
            )
        return self.space.filled(grads)

    def change(
        self, before: Evaluation, after: Evaluation, inner: float = 0.0, squared: float = 0.0
    ) -> float:
        """objective(after) − objective(before) for θ_after = θ_before + d, without cancellation.

        Args:
            inner: θ_before·d, and
            squared: ‖d‖²; read only when there is weight decay.
        """
        start, end = before.z.detach(), after.z.detach()
        if self.surrogate.from_slopes:
            change = float(present().mean((end - start) * (0.5 * (before.slope + after.slope))))
        else:
            change = float(self.surrogate.change(start, end, before.slope))
        if self.weight_decay:
            change += self.weight_decay * (inner + 0.5 * squared)
        return change

    def value(self, z: Tensor) -> float:
        """The objective where the targets are ``z`` (and the parameters as they stand)."""
        value = float(self.surrogate.value(z.detach()))
        if self.weight_decay:
            value += 0.5 * self.weight_decay * self.dot(self.params, self.params)
        return value

    def final_value(self) -> float:
        """The objective at the present parameters, by a forward without a graph."""
        self.forward_calls += 1
        with torch.no_grad():
            z = self._checked(self.forward())
        return self.value(z)


class _Part(Objective):
    """An objective on some of the rows of another, which counts its calls."""

    def __init__(self, whole: Objective, index: Tensor) -> None:
        offered = getattr(whole.forward, "rows", None)
        if offered is None:
            raise BadForward(
                "mini-batches inside the inner loop (batch_size=) need the forward of the batch itself; this rule's "
                "surrogate is of all data. Leave batch_size= out, or use another rule."
            )
        forward, part = partial(offered, index), whole.surrogate.minibatch(index)
        super().__init__(forward, whole.space.params, part, whole.weight_decay)
        self.whole = whole

    def evaluate(self) -> Evaluation:
        self.whole.forward_calls += 1
        return super().evaluate()

    def vjp(
        self, at: Evaluation, v: Tensor, *, keep_graph: bool = True, own: bool = False
    ) -> list[Tensor]:
        self.whole.backward_calls += 1
        return super().vjp(at, v, keep_graph=keep_graph, own=own)


class Line:
    """θ_0 + αd: moves the parameters along a direction, in place, and measures the change.

    One instance per search; no copy of the parameters is made (moves are differences of α), but of those
    in half precision, which such differences would carry off: they round by a thousandth each time.
    """

    def __init__(self, objective: Objective, origin: Evaluation, direction: list[Tensor]) -> None:
        self.objective = objective
        self.origin = origin
        self.direction = direction
        self.alpha = 0.0
        decayed = objective.weight_decay != 0.0
        self._inner = objective.dot(objective.params, direction) if decayed else 0.0
        self._squared = objective.dot(direction, direction) if decayed else 0.0
        half = any(p.dtype in HALF for p in objective.params)
        self._origin = [p.detach().clone() for p in objective.params] if half else []

    def move(self, alpha: float) -> None:
        """Put the parameters at θ_0 + αd."""
        if alpha == self.alpha:
            return
        if self._origin:
            moved = torch._foreach_add(self._origin, self.direction, alpha=alpha)
            torch._foreach_copy_(self.objective.params, moved)
        else:
            torch._foreach_add_(self.objective.params, self.direction, alpha=alpha - self.alpha)
        self.alpha = alpha

    def trial(self, alpha: float) -> tuple[Evaluation, float]:
        """Move to α; the evaluation there and the change of the objective since α = 0."""
        self.move(alpha)
        there = self.objective.evaluate()
        return there, self.objective.change(
            self.origin, there, alpha * self._inner, alpha * alpha * self._squared
        )
