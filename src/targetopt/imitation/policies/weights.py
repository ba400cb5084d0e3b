"""Networks in files: tensors as safetensors, everything else as JSON in the header; never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.files import write_atomically
from targetopt.imitation.needs import package
from targetopt.types import BadArgument

KEY = "targetopt"
"""Where the header's JSON lies in the file's metadata."""

_TYPES = {
    **dict.fromkeys(("kind", "environment", "family", "activation", "output"), str),
    **dict.fromkeys(("card", "provenance", "learner"), dict),
}
_MAY_BE_INFINITE = {"action.low", "action.high", "observation.clip"}

Arrays = dict[str, NDArray[Any]]


def write(path: str | Path, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> Path:
    """Write a file whole or not at all."""
    safetensors = package("safetensors.numpy", "Saving a policy")
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # keeps 0-d
    text = json.dumps(header, ensure_ascii=False, allow_nan=False)
    data = safetensors.save(contiguous, metadata={KEY: text})
    path = Path(path)
    write_atomically(path, lambda file: file.write(data))
    return path


def read(path: str | Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the header of a file of this ``kind`` ("policy" or "expert")."""
    package("safetensors", "Loading a policy")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise BadArgument(f"there is no {kind} file {str(path)!r}")
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads((file.metadata() or {})[KEY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        _check(arrays, header)
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise BadArgument(
            f"{str(path)!r} is not a {kind} file of targetopt ({error!r}). Expected a safetensors file "
            f"with the metadata key {KEY!r}, as policy.save() and expert.save() write it."
        ) from error
    if header.get("kind") != kind:
        raise BadArgument(
            f"{str(path)!r} holds a targetopt {header.get('kind')!r}, not a {kind!r}; load it with "
            f"load_{header.get('kind')}"
        )
    return arrays, header


def _check(arrays: Arrays, header: Any) -> None:
    """Raise unless every part is of the type it is written with: a file may come from anybody."""
    if not isinstance(header, dict):
        raise TypeError("its header is no table")
    for part in header.keys() & _TYPES.keys():
        if not isinstance(header[part], _TYPES[part]):
            raise TypeError(f"{part} in its header is {header[part]!r:.40}")
    for name, array in arrays.items():
        if array.dtype.kind == "f":  # others are counters of a module's own
            wrong = np.isnan(array) if name in _MAY_BE_INFINITE else ~np.isfinite(array)
            if wrong.any():
                raise ValueError(f"the array {name} holds other things than numbers")
