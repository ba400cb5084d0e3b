"""Trees of plain values in a file: JSON for the tree, arrays beside it. Reading one never runs code.

A tree is made of dictionaries, lists and tuples; its leaves are None, truth values, numbers, strings, numpy arrays
and scalars, torch tensors and numpy generators. All of them come back with their types and bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.arrays import DamagedFile, read_arrays
from targetopt.files import write_atomically

TREE = "tree"
_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def write(path: Path, tree: Any) -> None:
    """Replace the file by one with this tree.

    Raises:
        TypeError: a leaf is not plain.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write(Path(directory, "state.npz"), {"lr": 0.1, 3: (np.float32(2.0), None)})
        ...     read(Path(directory, "state.npz"))
        {'lr': 0.1, 3: (np.float32(2.0), None)}
    """
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_packed(tree, arrays)).encode()
    named = {f"a{number}": array for number, array in enumerate(arrays)}
    content: dict[str, Any] = {TREE: np.frombuffer(text, np.uint8), **named}
    write_atomically(path, lambda file: np.savez(file, **content))


def read(path: Path) -> Any:
    """The tree of a file.

    Raises:
        OSError: the file cannot be opened.
        DamagedFile: it is not a whole file of such a tree.
    """
    text = read_arrays(path, [TREE])[TREE].tobytes()
    try:
        packed = json.loads(text)
        arrays = read_arrays(path, [f"a{number}" for number in range(_count(packed))])
        return _unpacked(packed, arrays)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        if isinstance(error, DamagedFile):
            raise
        raise DamagedFile(f"{path} is damaged ({type(error).__name__}: {error})") from error


def is_plain(value: Any) -> bool:
    """Whether `write` can keep it."""
    try:
        _packed(value, [])
    except TypeError:
        return False
    return True


def _packed(value: Any, arrays: list[NDArray[Any]]) -> Any:
    def stored(array: NDArray[Any]) -> int:
        arrays.append(array)
        return len(arrays) - 1

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {"dict": [[_packed(k, arrays), _packed(v, arrays)] for k, v in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_packed(each, arrays) for each in value]}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return {"array": stored(value)}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"scalar": stored(np.asarray(value))}
    if isinstance(value, torch.Tensor):
        return {"tensor": stored(value.detach().cpu().numpy())}
    if isinstance(value, np.random.Generator):
        return {"generator": _packed(value.bit_generator.state, arrays)}
    raise TypeError(f"{type(value).__name__} is not plain")


def _count(packed: Any) -> int:
    """How many arrays it names."""
    if isinstance(packed, dict):
        kinds = ("array", "scalar", "tensor")
        return sum(1 if kind in kinds else _count(inside) for kind, inside in packed.items())
    return sum(map(_count, packed)) if isinstance(packed, list) else 0


def _unpacked(packed: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if not isinstance(packed, dict):
        if isinstance(packed, list):
            raise ValueError("a list without its kind")
        return packed
    [(kind, inside)] = packed.items()
    match kind:
        case "dict":
            return {_unpacked(k, arrays): _unpacked(v, arrays) for k, v in inside}
        case "list":
            return [_unpacked(each, arrays) for each in inside]
        case "tuple":
            return tuple(_unpacked(each, arrays) for each in inside)
        case "array":
            return arrays[f"a{inside}"]
        case "scalar":
            return arrays[f"a{inside}"][()]
        case "tensor":
            return torch.from_numpy(arrays[f"a{inside}"])
        case "generator":
            return _generator(_unpacked(inside, arrays))
    raise ValueError(f"{kind!r} is no kind of value")


def _generator(state: dict[str, Any]) -> np.random.Generator:
    if state["bit_generator"] not in _GENERATORS:
        raise ValueError(f"{state['bit_generator']!r} is no generator of numpy")
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)
