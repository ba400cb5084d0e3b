"""A run on the disk: whole or absent, and read without running anything in it."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from targetopt.files import write_atomically
from targetopt.types import BadArgument

VERSION = 4


def save(path: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Replace the file at ``path``: a reader, or a kill, sees the old run or the new."""
    stored = {"targetopt": VERSION, "settings": json.dumps(settings), "state": packed(state)}
    buffer = io.BytesIO()
    torch.save(stored, buffer)
    try:
        write_atomically(path, lambda file: file.write(buffer.getbuffer()))
    except OSError as error:
        raise BadArgument(
            f"checkpoint={str(path)!r} cannot be written: {error.strerror or error}. Choose a file in a directory you "
            "may write to, with room for a few MB; what was saved before is still there."
        ) from error


ADVICE = (
    "Use the same settings (rounds= alone may grow), or another file. Its policy is "
    "to.imitation.Result.load({!r}).policy."
)


def load(path: Path, settings: dict[str, Any], advice: str = ADVICE) -> dict[str, Any] | None:
    """The state in the file; None if there is no file. Refuses a run with other settings.

    Args:
        path: the file.
        settings: those of the run that is to go on.
        advice: what to do where they differ, with a place for the file's name.
    """
    if not path.is_file():
        return None
    saved, state = read(path)
    changed = _changed(saved, json.loads(json.dumps(settings)))
    if changed:
        raise BadArgument(
            f"checkpoint={str(path)!r} holds a run with other settings ({'; '.join(changed)}). "
            + advice.format(str(path))
        )
    return state


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the state in the file, whatever run it is of."""
    if not path.is_file():
        raise BadArgument(f"there is no checkpoint {str(path)!r}")
    try:
        stored = torch.load(path, weights_only=True)
        version, settings = stored["targetopt"], json.loads(stored["settings"])
        state: dict[str, Any] = stored["state"]
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
    ) as error:
        raise BadArgument(
            f"checkpoint={str(path)!r} is not a run of targetopt ({error!r}). Move it away to begin anew."
        ) from error
    if version != VERSION:
        raise BadArgument(
            f"checkpoint={str(path)!r} is of format {version}, this version writes {VERSION}. Move it away to "
            "begin anew."
        )
    return settings, state


def _changed(saved: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(saved, dict) and isinstance(now, dict):
        keys = sorted(saved | now)
        parts = [_changed(saved.get(k), now.get(k), f"{name} {k}".strip()) for k in keys]
        return [words for part in parts for words in part]
    return [] if saved == now else [f"{name}: {saved!r} there, {now!r} here"]


def packed(value: Any) -> Any:
    """The same value with arrays as tensors, which torch reads back without unpickling code."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return _each(packed, value)


def unpacked(value: Any) -> Any:
    """The same value with tensors as arrays: the inverse of `packed`."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return _each(unpacked, value)


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(convert(item) for item in value)
    return value
