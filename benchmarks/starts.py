"""What a fresh process costs: the help of the command, the imports, and the first fit with nothing compiled.

    python -m benchmarks starts

Each is a process of its own, in turns with what it is compared with. Processor seconds count the process and all that
it starts; walls are given beside them and mean something on a machine with nothing else to do. The first fit has an
empty cache of kernels. It is measured `COLD_ROUNDS` times, the others `ROUNDS` times.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.harness import save, spread, table, verdict
from benchmarks.versions import FIRST_FIT, HERE, environment

ROUNDS = 7
COLD_ROUNDS = 1
COMMANDS = {
    "nothing": ["-c", "pass"],
    "targetopt --help": ["-m", "targetopt", "--help"],
    "import torch": ["-c", "import torch"],
    "import targetopt": ["-c", "import targetopt"],
    "import targetopt, SSO": ["-c", "import targetopt as to; to.SSO"],
    "import sklearn.linear_model": ["-c", "import sklearn.linear_model"],
    "import targetopt.sklearn": ["-c", "import targetopt.sklearn"],
    "first fit, kernels compiled": ["-c", FIRST_FIT],
}
LIMITS = {
    "targetopt --help": (None, 0.6),
    "import targetopt": ("import torch", 0.2),
    "import targetopt, SSO": ("import torch", 0.2),
    "import targetopt.sklearn": ("import sklearn.linear_model", 0.3),
}
COLD = "first fit, nothing compiled"
COLD_LIMIT = 20.0


def seconds(command: list[str], **more: str) -> tuple[float, float]:
    """Processor seconds and wall of one process and what it starts."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *command], env=environment(HERE, **more), check=True, capture_output=True
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        seconds(command)  # reads the files once
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    cold = []
    for _ in range(COLD_ROUNDS):
        with tempfile.TemporaryDirectory() as empty:
            cold.append(seconds(["-c", FIRST_FIT], NUMBA_CACHE_DIR=empty))
    rows: list[dict[str, Any]] = []
    for name, pairs in (*taken.items(), (COLD, cold)):
        processor = [each for each, _ in pairs]
        rows.append(
            {
                "what": name,
                "processor": statistics.median(processor),
                "spread": spread(processor) if len(pairs) > 1 else None,
                "wall": statistics.median(wall for _, wall in pairs),
                "rounds": len(pairs),
            }
        )
    found = {row["what"]: row["processor"] for row in rows}
    for row in rows:
        if row["what"] in LIMITS:
            than, limit = LIMITS[row["what"]]
            row["more than"], row["limit"] = than, limit
            row["measured"] = row["processor"] - (found[than] if than else 0.0)
    rows[-1] |= {"limit": COLD_LIMIT, "measured": rows[-1]["wall"], "more than": None}
    table(
        ["", "processor s", "±", "wall s", "beyond", "s", ""],
        [
            [
                row["what"],
                f"{row['processor']:.2f}",
                f"{row['spread']:.0%}" if row["spread"] is not None else "",
                f"{row['wall']:.2f}",
                row.get("more than") or "",
                f"{row['measured']:.2f}" if "measured" in row else "",
                verdict(row["measured"], row["limit"]) if "measured" in row else "",
            ]
            for row in rows
        ],
    )
    load = os.getloadavg()[0]
    print(f"load {load:.1f}")
    save("starts", {"load": load, "rows": rows}, "scikit-learn", "numba")


if __name__ == "__main__":
    main()
