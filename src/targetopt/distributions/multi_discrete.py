"""Several choices at once, independent of each other given the state: multi-discrete actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.distributions.base import Distribution, Family, whole_numbers
from targetopt.distributions.categorical import Categorical, CategoricalRows
from targetopt.types import BadArgument


class MultiDiscreteRows(Distribution):
    """π_i(a_1, a_2, …) = Π_j softmax(logits_ij)_{a_j} for each row i.

    Args:
        parts: one `CategoricalRows` for each choice, all of the same length.

    Example:
        >>> policy = MultiDiscreteRows(
        ...     [CategoricalRows(torch.zeros(1, 2)), CategoricalRows(torch.zeros(1, 4))]
        ... )
        >>> policy.log_prob(torch.tensor([[1, 3]]))  # −log 8
        tensor([-2.0794])
    """

    def __init__(self, parts: Sequence[CategoricalRows]) -> None:
        if not parts or len({len(part) for part in parts}) != 1:
            raise BadArgument(
                "MultiDiscreteRows: parts must be one distribution per choice, of the same length; got lengths "
                f"{[len(part) for part in parts]}"
            )
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def log_prob(self, actions: Tensor) -> Tensor:
        if actions.shape != (len(self), len(self.parts)):
            raise BadArgument(
                f"MultiDiscrete: actions must have shape ({len(self)}, {len(self.parts)}); got {tuple(actions.shape)}"
            )
        columns = zip(self.parts, actions.unbind(dim=1), strict=True)
        return _total(part.log_prob(column) for part, column in columns)

    def entropy(self) -> Tensor:
        return _total(part.entropy() for part in self.parts)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], dim=1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], dim=1)

    def kl(self, other: MultiDiscreteRows) -> Tensor:
        pairs = zip(self.parts, other.parts, strict=True)
        return _total(part.kl(theirs) for part, theirs in pairs)

    def natural(self) -> Tensor:
        return torch.cat([part.natural() for part in self.parts], dim=1)

    def mean_parameters(self) -> Tensor:
        return torch.cat([part.mean_parameters() for part in self.parts], dim=1)

    def rows(self, index: Tensor) -> MultiDiscreteRows:
        return MultiDiscreteRows([part.rows(index) for part in self.parts])

    def to(self, like: Tensor) -> MultiDiscreteRows:
        return MultiDiscreteRows([part.to(like) for part in self.parts])


@dataclass(frozen=True)
class MultiDiscrete(Family):
    """Several choices; the targets are the logits of the first, then those of the second, and so on.

    Losses are sums over the choices, and no choice sees another's targets, so that L is the largest of theirs.

    Args:
        choices: how many there are of each.

    Example:
        >>> family = MultiDiscrete((2, 3))
        >>> family.size, family.from_targets(torch.zeros(1, 5)).mode()
        (5, tensor([[0, 0]]))
    """

    choices: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(int(count) for count in self.choices))
        if not self.choices:
            raise BadArgument("MultiDiscrete: choices=() must name at least one choice")
        _ = self._families  # refuses sizes that are none

    @property
    def _families(self) -> list[Categorical]:
        return [Categorical(count) for count in self.choices]

    @property
    def size(self) -> int:
        return sum(self.choices)

    @property
    def noun(self) -> str:
        return f"logits of {' + '.join(map(str, self.choices))} choices"

    def from_targets(self, z: Tensor) -> MultiDiscreteRows:
        return MultiDiscreteRows([CategoricalRows(part) for part in self._split(self.checked(z))])

    def targets(self, distribution: MultiDiscreteRows) -> Tensor:
        return torch.cat([part.log_probabilities for part in distribution.parts], dim=1)

    def moments(self, known: MultiDiscreteRows | Tensor) -> Tensor:
        parts: Sequence[CategoricalRows] | Sequence[Tensor]
        if isinstance(known, MultiDiscreteRows):
            parts = known.parts
        else:
            if known.ndim != 2 or known.shape[1] != len(self.choices):
                raise BadArgument(
                    f"MultiDiscrete: actions must have shape (n, {len(self.choices)}); got {tuple(known.shape)}"
                )
            chosen = whole_numbers("MultiDiscrete", known, torch.tensor(self.choices))
            parts = list(chosen.unbind(dim=1))
        each = [family.moments(parts[j]) for j, family in enumerate(self._families)]
        return torch.cat(each, dim=1)

    def cross_entropy(self, z: Tensor, moments: Tensor) -> Tensor:
        return _total(self._each(lambda f, z, m: f.cross_entropy(z, m), z, self._split(moments)))

    def cross_entropy_gradient(self, z: Tensor, moments: Tensor) -> Tensor:
        parts = self._split(moments)
        return torch.cat(
            self._each(lambda f, z, m: f.cross_entropy_gradient(z, m), z, parts), dim=1
        )

    def cross_entropy_curvature(self, z: Tensor, moments: Tensor) -> Tensor:
        parts = self._split(moments)
        return _blocks(self._each(lambda f, z, m: f.cross_entropy_curvature(z, m), z, parts))

    def cross_entropy_smoothness(self, moments: Tensor) -> float | None:
        return 0.5

    def entropy_gradient(self, z: Tensor) -> Tensor:
        parts = zip(self._families, self._split(z), strict=True)
        return torch.cat([family.entropy_gradient(part) for family, part in parts], dim=1)

    def divergence_gradient(self, z: Tensor, other: MultiDiscreteRows) -> Tensor:
        return torch.cat(
            self._each(lambda f, z, o: f.divergence_gradient(z, o), z, other.parts), dim=1
        )

    def divergence_curvature(self, z: Tensor, other: MultiDiscreteRows) -> Tensor:
        return _blocks(self._each(lambda f, z, o: f.divergence_curvature(z, o), z, other.parts))

    def divergence_smoothness(self, other: MultiDiscreteRows) -> float | None:
        pairs = zip(self._families, other.parts, strict=True)
        known = [family.divergence_smoothness(part) for family, part in pairs]
        return None if None in known else max(each for each in known if each is not None)

    def _split(self, rows: Tensor) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = rows.split(list(self.choices), dim=1)
        return parts

    def _each(
        self, ask: Callable[..., Tensor], z: Tensor, labels: Sequence[Tensor | CategoricalRows]
    ) -> list[Tensor]:
        parts = zip(self._families, self._split(z), labels, strict=True)
        return [ask(family, part, label) for family, part, label in parts]


def _total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(dim=0)


def _blocks(parts: list[Tensor]) -> Tensor:
    """Matrices (n, c, c) as one block-diagonal matrix for each row."""
    size = sum(part.shape[1] for part in parts)
    full = parts[0].new_zeros(len(parts[0]), size, size)
    start = 0
    for part in parts:
        end = start + part.shape[1]
        full[:, start:end, start:end] = part
        start = end
    return full
