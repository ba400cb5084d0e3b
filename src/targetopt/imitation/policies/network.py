"""Networks as plain numpy: what simulators call, thousands of times, on small batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadArgument

Array = NDArray[np.float64]


def _relu(h: NDArray[Any]) -> None:
    np.maximum(h, 0, out=h)


def _tanh(h: NDArray[Any]) -> None:
    np.tanh(h, out=h)


ACTIVATIONS = {"relu": _relu, "tanh": _tanh}


class Network:
    """x ↦ W_L a(… a(W_1 x + b_1) …) + b_L on rows, in the precision of its weights.

    Args:
        weights: one ``(out, in)`` matrix a layer, torch's layout.
        biases: one ``(out,)`` vector a layer.
        activation: ``"relu"`` or ``"tanh"``, between layers.

    Example:
        >>> double = Network([np.array([[2.0]])], [np.array([1.0])])
        >>> double(np.array([[3.0], [4.0]]))
        array([[7.],
               [9.]])
    """

    def __init__(
        self,
        weights: Sequence[NDArray[Any]],
        biases: Sequence[NDArray[Any]],
        activation: str = "relu",
    ) -> None:
        if activation not in ACTIVATIONS:
            raise BadArgument(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
        if not weights or len(weights) != len(biases):
            raise BadArgument(
                f"a network needs one bias per weight and at least one layer; got {len(weights)} "
                f"weights and {len(biases)} biases"
            )
        widths = [np.shape(w)[::-1] for w in weights]
        fits = all(len(w) == 2 for w in widths) and all(
            before[1] == after[0] for before, after in pairwise(widths)
        )
        if not fits or any(
            np.shape(b) != (w[1],) for b, w in zip(biases, widths, strict=True) if len(w) == 2
        ):
            shapes = [(np.shape(w), np.shape(b)) for w, b in zip(weights, biases, strict=True)]
            raise BadArgument(f"the layers (weight, bias) do not fit together: {shapes}")
        self.dtype = np.result_type(*weights, *biases)
        self.activation = activation
        # copied, and transposed once, so that every call multiplies contiguous matrices
        self._matrices = [np.array(np.asarray(w).T, self.dtype, order="C") for w in weights]
        self._biases = [np.array(b, self.dtype) for b in biases]

    @property
    def inputs(self) -> int:
        return int(self._matrices[0].shape[0])

    @property
    def outputs(self) -> int:
        return int(self._matrices[-1].shape[1])

    @property
    def width(self) -> int:
        """How many numbers the last layer multiplies."""
        return int(self._matrices[-1].shape[0])

    def __call__(self, x: Array) -> Array:
        last: NDArray[Any] = self._hidden(x) @ self._matrices[-1]
        last += self._biases[-1]
        return last.astype(np.float64, copy=False)

    def features(self, x: Array) -> Array:
        """What the last layer multiplies: the last hidden layer, or the input where there is none."""
        hidden: Array = self._hidden(x).astype(np.float64, copy=False)
        return hidden

    def _hidden(self, x: Array) -> NDArray[Any]:
        if x.shape[-1] != self.inputs:
            raise BadArgument(
                f"this network takes {self.inputs} numbers a state; got states of shape {x.shape}. "
                "Was it made for another environment?"
            )
        h = x.astype(self.dtype, copy=False)
        activate = ACTIVATIONS[self.activation]
        for matrix, bias in zip(self._matrices[:-1], self._biases[:-1], strict=True):
            h = h @ matrix
            h += bias
            activate(h)
        return h

    def arrays(self) -> dict[str, NDArray[Any]]:
        """``layers.0.weight``, ``layers.0.bias``, … in torch's layout."""
        named: dict[str, NDArray[Any]] = {}
        for i, (matrix, bias) in enumerate(zip(self._matrices, self._biases, strict=True)):
            named[f"layers.{i}.weight"], named[f"layers.{i}.bias"] = matrix.T, bias
        return named

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], activation: str) -> Network:
        """The network whose layers are named as `arrays` names them."""
        count = sum(name.startswith("layers.") and name.endswith(".weight") for name in arrays)
        try:
            weights = [arrays[f"layers.{i}.weight"] for i in range(count)]
            biases = [arrays[f"layers.{i}.bias"] for i in range(count)]
        except KeyError as error:
            raise BadArgument(
                f"the file has no {error.args[0]!r}; it has {', '.join(arrays)}"
            ) from error
        return cls(weights, biases, activation)
