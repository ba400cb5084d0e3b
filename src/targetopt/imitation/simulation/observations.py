"""What an environment shows: rows of numbers, pictures, or several of them by name, kept as one row a state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadAnswer, BadArgument

PICTURE = np.dtype(np.uint8)


@dataclass(frozen=True)
class Part:
    """One array of an observation.

    Attributes:
        name: its key in a dict observation; None for an observation that is one array.
        shape: its shape.
        start: where it begins in a row.
    """

    name: str | None
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property  # asked for at every step of every copy
    def columns(self) -> slice:
        return slice(self.start, self.start + self.size)


class Observations:
    """How observations are laid out in rows: one part after the other.

    Rows are float64; where everything is uint8 (pictures), they are uint8, an eighth of the memory.

    Args:
        parts: names and shapes, in their order.
        dtype: of the rows.

    Example:
        >>> layout = Observations([("a", (2,)), ("b", (1, 2))])
        >>> layout.row({"a": np.zeros(2), "b": np.ones((1, 2))})
        array([0., 0., 1., 1.])
        >>> Observations.rows(3).is_flat
        True
    """

    def __init__(
        self,
        parts: Iterable[tuple[str | None, Iterable[int]]],
        dtype: Any = np.float64,
    ) -> None:
        self.parts: list[Part] = []
        start = 0
        for name, shape in parts:
            part = Part(name, tuple(int(length) for length in shape), start)
            self.parts.append(part)
            start += part.size
        self.size = start
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @classmethod
    def rows(cls, size: int) -> Observations:
        """Observations that are one row of numbers as they are."""
        return cls([(None, (size,))])

    @classmethod
    def of(cls, space: Any, spaces: Any, environment: str) -> Observations:
        """Of a Gymnasium space: a Box of any shape, a Discrete, or a Dict of these in the order of their names."""
        named = isinstance(space, spaces.Dict)
        inside = dict(sorted(space.spaces.items())) if named else {None: space}
        known = spaces.Box | spaces.Discrete | spaces.MultiBinary
        if not inside or not all(isinstance(each, known) for each in inside.values()):
            raise BadArgument(
                f"env={environment!r} has the observation space {space}; policies here take Boxes of any shape, "
                "Discrete and MultiBinary, or a Dict of these. Wrap it with gymnasium.wrappers.FlattenObservation."
            )
        kinds = {np.dtype(each.dtype) for each in inside.values()}
        parts = [(name, tuple(each.shape)) for name, each in inside.items()]
        return cls(parts, PICTURE if kinds == {PICTURE} else np.float64)

    @property
    def is_flat(self) -> bool:
        """Whether an observation is one row of numbers as it is."""
        return len(self.parts) == 1 and self.parts[0].name is None and len(self.parts[0].shape) == 1

    def row(self, observation: Any) -> NDArray[Any]:
        """An observation as one row; refused unless it has the shape and kind that its space promised."""
        row: NDArray[Any] = np.empty(self.size, dtype=self.dtype)
        for part in self.parts:
            shown = np.asarray(observation if part.name is None else observation[part.name])
            fits = "u" if self.dtype == PICTURE else "fiub"
            if shown.shape != part.shape or shown.dtype.kind not in fits:
                which = "an observation" if part.name is None else f"an observation {part.name!r}"
                raise BadAnswer(
                    f"it shows {which} of shape {shown.shape} and type {shown.dtype}; its observation space says "
                    f"{part.shape}, {'uint8' if fits == 'u' else 'real numbers'}"
                )
            row[part.columns] = shown.ravel()
        return row

    def unrolled(self, rows: Any) -> Any:
        """Rows as modules and experts of the user's take them: an array of the observations' shape, or a dict of them.

        Works on arrays and on tensors.
        """
        shaped: dict[str | None, Any] = {
            part.name: rows[:, part.columns].reshape(len(rows), *part.shape) for part in self.parts
        }
        return shaped.get(None, shaped)

    @property
    def description(self) -> dict[str, Any]:
        """Names, shapes and the type of numbers, for files."""
        parts = [[part.name, list(part.shape)] for part in self.parts]
        return {"parts": parts, "dtype": str(self.dtype)}

    @classmethod
    def described(cls, description: Any) -> Observations:
        """The inverse of `description`; what a file says may be anything."""
        parts = [(name, shape) for name, shape in description["parts"]]
        kinds = {"uint8": np.uint8, "float64": np.float64}
        return cls(parts, kinds[description["dtype"]])
