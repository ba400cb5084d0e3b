"""Models with several outputs over one trunk: several tensors as the targets of one problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from targetopt.divergence import Divergence, SquaredEuclidean
from targetopt.oracle.answer import as_oracle, checked
from targetopt.oracle.base import Oracle
from targetopt.surrogate import Surrogate
from targetopt.types import BadArgument, BadForward, MissingCapability, TargetPoint


class Heads:
    """Several outputs of one model as one matrix of targets, z_i = (z_i^1, …, z_i^H), and back.

    A loss may be stated in several tensors, such as the logits of a policy and the values of its critic, and they may
    share most of their parameters. Side by side they are targets like any others::

        ℓ_i(z_i) = Σ_h ℓ_i^h(z_i^h)
        q(z) = ℓ(z_t) + Σ_h [ ⟨g^h, z^h − z_t^h⟩ + (1/ηs_h) mean_i D_h(z_i^h, z_t,i^h) ]

    and an inner solver moves the shared parameters for all heads at once. All heads have the same rows.

    Args:
        shapes: of one row of each head, by name: a number for a vector, ``()`` for one number, or a tuple.

    Example:
        >>> import torch, targetopt as to
        >>> _ = torch.manual_seed(0)
        >>> trunk, a, b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
        >>> model = torch.nn.ModuleList([trunk, a, b])
        >>> x, classes, numbers = torch.randn(9, 3), torch.arange(9) % 2, torch.zeros(9)
        >>> heads = to.Heads(logits=2, number=())
        >>> forward = heads.forward(lambda: (a(trunk(x)), b(trunk(x)).squeeze(1)))
        >>> oracle = heads.oracle(
        ...     logits=to.losses.CrossEntropy(classes), number=to.losses.Squared(numbers)
        ... )
        >>> opt = to.SSO(model.parameters(), lr=0.5, inner=to.LBFGS(max_steps=10))
        >>> reports = [opt.step(forward, oracle) for _ in range(5)]
        >>> reports[-1].loss < reports[0].loss, forward().shape
        (True, torch.Size([9, 3]))
    """

    def __init__(self, **shapes: int | Sequence[int]) -> None:
        if not shapes:
            raise BadArgument("Heads: name at least one head, such as Heads(policy=4, value=())")
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            sizes = (shape,) if isinstance(shape, int) else tuple(shape)
            if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
                raise BadArgument(
                    f"Heads: {name}={shape!r} must be the shape of one row: a whole number ≥ 1, () for one number, or "
                    "a tuple of whole numbers ≥ 1"
                )
            self.shapes[name] = sizes
        self.widths = {name: math.prod(shape) for name, shape in self.shapes.items()}

    def __repr__(self) -> str:
        return f"Heads({', '.join(f'{name}={shape}' for name, shape in self.shapes.items())})"

    def join(self, parts: Mapping[str, Tensor] | Sequence[Tensor]) -> Tensor:
        """The tensors of all heads as one of shape ``(n, sum of widths)``; by name, or in the order of the heads."""
        if isinstance(parts, Tensor) or not isinstance(parts, Mapping | Sequence):
            raise BadForward(
                f"{self!r}: the forward must return one tensor for each head, as a tuple or by name; got "
                f"{type(parts).__name__}"
            )
        named = (
            dict(parts)
            if isinstance(parts, Mapping)
            else dict(zip(self.shapes, parts, strict=len(parts) == len(self.shapes)))
        )
        if len(parts) != len(self.shapes) or set(named) != set(self.shapes):
            got = ", ".join(map(str, parts)) if isinstance(parts, Mapping) else f"{len(parts)}"
            raise BadForward(
                f"{self!r}: there must be one tensor for each of {', '.join(self.shapes)}; got {got}"
            )
        first = next(iter(named.values()))
        for name, shape in self.shapes.items():
            part = named[name]
            if not isinstance(part, Tensor):
                raise BadForward(f"{self!r}: {name} must be a tensor; got {type(part).__name__}")
            if part.ndim == 0 or part.shape[1:] != shape or part.shape[0] != first.shape[0]:
                raise BadForward(
                    f"{self!r}: {name} must have the shape {(first.shape[0], *shape)}, one row for each example; got "
                    f"{tuple(part.shape)}"
                )
            if part.dtype != first.dtype or part.device != first.device:
                raise BadForward(
                    f"{self!r}: all heads must have one type and one device; {name} is {part.dtype} on {part.device}, "
                    f"the first is {first.dtype} on {first.device}"
                )
        return torch.cat([named[name].reshape(first.shape[0], -1) for name in self.shapes], dim=1)

    def split(self, z: Tensor) -> dict[str, Tensor]:
        """The tensors of the heads, by name: views of ``z``, through which autograd goes."""
        if z.ndim != 2 or z.shape[1] != sum(self.widths.values()):
            raise BadForward(
                f"{self!r} reads targets of shape (n, {sum(self.widths.values())}); got {tuple(z.shape)}. Let the "
                "forward be heads.forward(...)."
            )
        pieces = z.split(list(self.widths.values()), dim=1)
        return {
            name: piece.reshape(z.shape[0], *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def forward(self, function: Callable[[], Any]) -> HeadsForward:
        """The forward of a function that returns the tensors of all heads, as a tuple or by name.

        With ``to.ByRows(model, x)`` as the function, mini-batches can be taken from it.
        """
        if not callable(function):
            raise BadArgument(
                f"heads.forward: {type(function).__name__} must be a function without arguments, lambda: model(x)"
            )
        return HeadsForward(self, function)

    def oracle(self, **oracles: Any) -> HeadsOracle:
        """One oracle (or loss) for each head; they are asked one after another, which counts as one call.

        Where one function knows the loss of all heads together, split its targets instead:
        ``to.LossOracle(lambda z: losses(**heads.split(z)))``.
        """
        self._check_names("oracle", oracles, every=True)
        return HeadsOracle(self, {name: as_oracle(oracles[name]) for name in self.shapes})

    def divergence(
        self, steps: Mapping[str, float] | None = None, **divergences: Divergence
    ) -> HeadsDivergence:
        """D(z_i, z'_i) = Σ_h D_h(z_i^h, z'_i^h)/s_h, for `MirrorDescent`.

        Args:
            steps: s_h, how far a head may go beside the others: it has the step ηs_h. 1 where nothing is said.
            divergences: D_h; ½‖z − z'‖² where nothing is said.
        """
        self._check_names("divergence", divergences)
        given = dict(steps or {})
        self._check_names("divergence: steps", given)
        for name, each in divergences.items():
            if not isinstance(each, Divergence):
                raise BadArgument(
                    f"heads.divergence: {name}={each!r} must be a divergence such as to.SquaredEuclidean()"
                )
        for name, step in given.items():
            if not 0.0 < step < math.inf:
                raise BadArgument(
                    f"heads.divergence: steps[{name!r}]={step!r} must be positive and finite"
                )
        parts = {name: divergences.get(name, SquaredEuclidean()) for name in self.shapes}
        return HeadsDivergence(self, parts, {name: given.get(name, 1.0) for name in self.shapes})

    def _check_names(self, where: str, given: Mapping[str, Any], *, every: bool = False) -> None:
        unknown = set(given) - set(self.shapes)
        missing = set(self.shapes) - set(given) if every else set()
        if unknown or missing:
            said = [f"no head {name}" for name in sorted(unknown)]
            said += [f"nothing for {name}" for name in sorted(missing)]
            raise BadArgument(f"heads.{where}: there is {', '.join(said)}; this is {self!r}")


class HeadsForward:
    """A function that returns several tensors, as a forward (`Heads.forward`)."""

    def __init__(self, heads: Heads, function: Callable[[], Any]) -> None:
        self.heads, self.function = heads, function
        if hasattr(function, "rows"):
            self.rows = self._rows

    def __call__(self) -> Tensor:
        return self.heads.join(self.function())

    def _rows(self, index: Tensor) -> HeadsForward:
        return HeadsForward(self.heads, self.function.rows(index))  # type: ignore[attr-defined]


class HeadsOracle:
    """An oracle for each head; losses are added, gradients stand side by side (`Heads.oracle`).

    It says losses if every head does, values elsewhere and L likewise. What an oracle says of its rows (``data``) is
    kept as ``"head.name"``. Weights of rows are refused: they would be those of all heads.
    """

    def __init__(self, heads: Heads, oracles: Mapping[str, Oracle]) -> None:
        self.heads, self.oracles = heads, oracles

    def query(self, z: Tensor) -> TargetPoint:
        parts = self.heads.split(z)
        points = {
            name: checked(oracle.query(parts[name].clone()), parts[name])
            for name, oracle in self.oracles.items()
        }
        every = list(points.values())
        if any(point.weights is not None or point.scales is not None for point in every):
            raise MissingCapability(
                "an oracle of one head gives weights or scales of its rows, which would be those of all heads. Leave "
                "them out, multiply this head's losses and gradients instead, or give scales= to opt.step."
            )
        data = {
            f"{name}.{key}": v for name, p in points.items() for key, v in (p.data or {}).items()
        }
        known = [point.smoothness for point in every if point.smoothness is not None]
        losses = [point.losses for point in every if point.losses is not None]
        return TargetPoint(
            targets=z,
            losses=torch.stack(losses).sum(dim=0) if len(losses) == len(every) else None,
            gradients=self.heads.join({name: p.gradients for name, p in points.items()}),
            value=self._value(points),
            smoothness=max(known) if len(known) == len(every) else None,
            data=data or None,
            interactions=sum(point.interactions for point in every),
        )

    def _value(self, points: Mapping[str, TargetPoint]) -> Callable[[Tensor], Tensor] | None:
        offered = {name: p.value for name, p in points.items() if p.value is not None}
        if len(offered) < len(points):
            return None

        def value(z: Tensor) -> Tensor:
            parts = self.heads.split(z)
            return torch.stack([offered[name](parts[name]) for name in offered]).sum(dim=0)

        return value


@dataclass(frozen=True)
class HeadsDivergence(Divergence):
    """D(z_i, z'_i) = Σ_h D_h(z_i^h, z'_i^h)/s_h (`Heads.divergence`)."""

    heads: Heads
    parts: Mapping[str, Divergence]
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def weighted(self) -> bool:  # type: ignore[override]
        return all(part.weighted for part in self.parts.values())

    @property
    def scaled(self) -> bool:  # type: ignore[override]
        return all(part.scaled for part in self.parts.values())

    def surrogate(self, point: TargetPoint, eta: float) -> HeadsSurrogate:
        z, g = self.heads.split(point.targets), self.heads.split(point.gradients)
        found = {}
        for name, part in self.parts.items():
            own = TargetPoint(
                z[name], losses=None, gradients=g[name], weights=point.weights, scales=point.scales
            )
            found[name] = part.surrogate(own, eta * self.steps[name])
        return HeadsSurrogate(self.heads, found, point.targets, point.loss)

    def check(self, z: Tensor) -> None:
        for name, part in self.heads.split(z).items():
            self.parts[name].check(part)

    def value(self, z: Tensor, reference: Tensor) -> Tensor:
        new, old = self.heads.split(z), self.heads.split(reference)
        found = [d.value(new[name], old[name]) / self.steps[name] for name, d in self.parts.items()]
        return torch.stack(found).sum(dim=0)

    def gradient(self, z: Tensor, reference: Tensor) -> Tensor:
        new, old = self.heads.split(z), self.heads.split(reference)
        return self.heads.join(
            {
                name: d.gradient(new[name], old[name]) / self.steps[name]
                for name, d in self.parts.items()
            }
        )

    def curvature_product(self, z: Tensor, reference: Tensor, v: Tensor) -> Tensor:
        new, old, along = self.heads.split(z), self.heads.split(reference), self.heads.split(v)
        return self.heads.join(
            {
                name: d.curvature_product(new[name], old[name], along[name]) / self.steps[name]
                for name, d in self.parts.items()
            }
        )


@dataclass(frozen=True)
class HeadsSurrogate(Surrogate):
    """q(z) = constant + Σ_h q_h(z^h)."""

    heads: Heads
    parts: Mapping[str, Surrogate]
    anchor: Tensor
    constant: Tensor

    def value(self, z: Tensor) -> Tensor:
        pieces = self.heads.split(z)
        found = [self.parts[name].value(piece) for name, piece in pieces.items()]
        return self.constant + torch.stack(found).sum()

    def gradient(self, z: Tensor) -> Tensor:
        pieces = self.heads.split(z)
        return self.heads.join({name: self.parts[name].gradient(p) for name, p in pieces.items()})

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        old, new = self.heads.split(before), self.heads.split(after)
        slope = self.heads.split(gradient_before)
        found = [q.change(old[name], new[name], slope[name]) for name, q in self.parts.items()]
        return torch.stack(found).sum()

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        at, along = self.heads.split(z), self.heads.split(v)
        return self.heads.join(
            {name: q.curvature_product(at[name], along[name]) for name, q in self.parts.items()}
        )

    def minimiser(self) -> Tensor:
        return self.heads.join({name: q.minimiser() for name, q in self.parts.items()})

    def rows(self, index: Tensor | slice) -> HeadsSurrogate:
        parts = {name: q.rows(index) for name, q in self.parts.items()}
        return replace(self, parts=parts, anchor=self.anchor[index])
