"""Run the benchmarks: ``python -m benchmarks`` (all) or ``python -m benchmarks core linear``."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks

SKIP = {"__main__", "harness", "published", "speed"}  # the last two run others or take arguments


def main() -> None:
    names = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in SKIP]
    chosen = sys.argv[1:] or names
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(names)}")
    for name in chosen:
        print(f"== {name} ==", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
