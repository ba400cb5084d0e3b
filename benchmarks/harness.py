"""Timing that stands noise, and results that say where they come from.

Claims are ratios: the candidates are timed in turns within one process, on one thread, and medians are
compared. Seconds are CPU seconds of this process: other programs on the machine do not count.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from targetopt.lab.store import provenance

RESULTS = Path(__file__).parent / "results"


def one_thread() -> None:
    """One thread everywhere, for comparisons of work rather than of thread pools."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


def in_turns(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 9, minimum: float = 0.02
) -> dict[str, float]:
    """Median CPU seconds per call of each candidate; warm-up excluded, garbage collection off."""
    times = times_in_turns(candidates, rounds=rounds, minimum=minimum)
    return {name: statistics.median(values) for name, values in times.items()}


def times_in_turns(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 9, minimum: float = 0.02
) -> dict[str, list[float]]:
    """CPU seconds per call of each candidate in each round; see `in_turns`."""
    numbers: dict[str, int] = {}
    for name, call in candidates.items():
        call()  # compiles, allocates, fills caches
        start = time.process_time()
        call()
        once = time.process_time() - start
        numbers[name] = max(1, round(minimum / max(once, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in candidates.items():
                start = time.process_time()
                for _ in range(numbers[name]):
                    call()
                times[name].append((time.process_time() - start) / numbers[name])
    finally:
        gc.enable()
    return times


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles, relative to the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


def stamp(*packages: str) -> dict[str, Any]:
    """Versions, commit, machine and date of this measurement."""
    versions = {}
    for package in ("targetopt", "torch", "numpy", "scipy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": provenance.commit() or "unknown",
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": 1,
        "versions": versions,
    }


def save(name: str, payload: Mapping[str, Any], *packages: str) -> Path:
    """Write ``results/name.json`` with its stamp; returns the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**stamp(*packages), **payload}, indent=1) + "\n")
    return path


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a header, columns aligned."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    print()


def verdict(value: float, limit: float) -> str:
    """``yes``/``NO`` for a ratio against the limit it should stay below."""
    return f"≤ {limit:g}: {'yes' if value <= limit else 'NO'}"
