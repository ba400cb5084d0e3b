"""Reading what lies in a result directory, which anybody may have changed: checked, or refused clearly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from targetopt.lab.store.files import StoreError

Manifest = dict[str, Any]

STATUSES = ("done", "diverged", "timeout", "failed")
"""How a run can have ended."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")


def checked_name(run: object) -> str:
    """The id of a run, which is part of the names of its files, and so must not lead elsewhere.

    >>> checked_name("3f2a9c")
    '3f2a9c'
    >>> checked_name("../../etc/passwd")
    Traceback (most recent call last):
    targetopt.lab.store.files.StoreError: '../../etc/passwd' is no id of a run: an id is made of ...
    """
    if isinstance(run, str) and _NAME.fullmatch(run):
        return run
    raise StoreError(
        f"{run!r} is no id of a run: an id is made of letters, digits, - and _. Something has "
        "changed a file of the result directory that names it, such as plan.json."
    )


def read_json(path: Path, remedy: str, missing: Any = None) -> Any:
    """What a JSON file holds; ``missing`` if there is no such file."""
    try:
        data = path.read_bytes()
        value = json.loads(data.decode("utf-8"))
        if b"\\ud" in data.lower():  # halves of characters, which no file can be written with
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except FileNotFoundError:
        return missing
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise StoreError(f"{path} is {reason}. {remedy}") from error


def read_manifest(path: Path, run: str) -> Manifest | None:
    """The manifest of an ended run, or None if there is none; a damaged one is a :class:`StoreError`."""
    remedy = (
        "Manifests are written whole, so something else changed it: delete the file and the run "
        "is done again."
    )
    # asked once: a manifest that appears after a look that found none is not a damaged one
    absent = object()
    manifest = read_json(path, remedy, missing=absent)
    if manifest is absent:
        return None
    fault = manifest_fault(manifest, run)
    if fault:
        raise StoreError(f"{path} is not the manifest of a run: {fault}. {remedy}")
    return dict(manifest)


def manifest_fault(manifest: Any, run: str) -> str | None:
    """What is wrong with a manifest; None if all that is read of it later is there."""
    if not isinstance(manifest, dict):
        return f"it holds a {type(manifest).__name__}, not an object"
    missing = [key for key in _EXPECTED if key not in manifest]
    if missing:
        return f"{missing[0]!r} is missing"
    for key, (allowed, said) in (*_EXPECTED.items(), *_IF_THERE.items()):
        if key in manifest and not allowed(manifest[key]):
            return f"{key!r} is {_shortened(manifest[key])}, not {said}"
    if manifest["id"] != run:
        return f"its id is {_shortened(manifest['id'])}, not {run!r}"
    if manifest["status"] == "timeout" and not _is_number(manifest.get("time_limit")):
        return "'time_limit' of a run that took too long is not a number"
    return None


def read_plan(path: Path) -> list[dict[str, Any]]:
    """The entries of ``plan.json``; none if there is no such file."""
    remedy = "Run the specification again: it is written anew, and no finished run is done again."
    plan = read_json(path, remedy)
    if plan is None:
        return []
    if not isinstance(plan, list):
        raise StoreError(f"{path} holds a {type(plan).__name__}, not a list of runs. {remedy}")
    for place, entry in enumerate(plan):
        fault = "it is not an object" if not isinstance(entry, dict) else ""
        missing = [] if fault else [key for key in ("id", *_SHOWN) if key not in entry]
        fault = fault or (f"{missing[0]!r} is missing" if missing else "")
        fault = fault or _plan_fault(entry)
        if fault:
            raise StoreError(f"{path}: entry {place} is damaged: {fault}. {remedy}")
        checked_name(entry["id"])
    return plan


def _plan_fault(entry: dict[str, Any]) -> str:
    for key in ("problem", "method"):
        if not isinstance(entry[key], str):
            return f"{key!r} is {_shortened(entry[key])}, not text"
    for key in ("panels", "tuned"):
        if not _are_texts(entry.get(key, [])):
            return f"{key!r} is {_shortened(entry[key])}, not a list of texts"
    return ""


_SHOWN = ("problem", "method", "batch_size", "seed")
"""What a run is called by."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_labelled(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("name", "label")
    )


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (lambda value: isinstance(value, str), "text"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "reason": (lambda value: isinstance(value, str), "text"),
    "problem": (_is_labelled, "an object with name and label"),
    "method": (_is_labelled, "an object with name and label"),
    "batch_size": (lambda value: value == "full" or _is_count(value), "a number or 'full'"),
    "seed": (_is_count, "a number from 0 on"),
    "attempt": (_is_count, "a number from 0 on"),
}

_IF_THERE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "duration": (
        lambda value: _is_number(value) and 0 <= value < math.inf,
        "a number of seconds",
    ),
    "counts": (
        lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
        "an object of numbers from 0 on",
    ),
    "command": (lambda value: isinstance(value, str), "text"),
    "started": (lambda value: isinstance(value, str), "text"),
}
"""What reports read where a manifest has it."""


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
