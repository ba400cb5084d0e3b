"""``python -m targetopt.lab.studies.rl DIR``: the registered runs, one file each; what is there is kept."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from targetopt.files import write_atomically
from targetopt.lab.store.provenance import commit, machine, versions
from targetopt.lab.studies.rl.arms import ARMS, SEEDS, STEPS
from targetopt.lab.studies.rl.runs import run


def main(directory: Path) -> None:
    """Seeds in the outer loop, so that a study that is stopped has as many of every arm."""
    stamp = {"commit": commit(), "versions": versions(), "machine": machine()}
    for questions in (("agreement",), ("surrogate", "inner steps")):
        for seed in SEEDS:
            for env in STEPS:
                for arm in (each for each in ARMS if each.question in questions):
                    path = directory / f"{arm.name}_{env}_{seed}.json"
                    if path.exists():
                        continue
                    print(f"{arm.name} in {env}, seed {seed}", flush=True)
                    found = {**run(arm, env, seed), "provenance": stamp}
                    write_atomically(path, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        prog="python -m targetopt.lab.studies.rl",
        description="Do the runs that docs/rl-study.md registers. The same command again goes on where it was stopped.",
    )
    options.add_argument("directory", type=Path, help="where the runs go, one JSON file each")
    main(options.parse_args().directory)
