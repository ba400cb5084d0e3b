"""``python -m targetopt.lab.studies.rl DIR``: the registered runs, one file each; what is there is kept."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from targetopt.files import write_atomically
from targetopt.lab.store.provenance import commit, machine, versions
from targetopt.lab.studies.rl.arms import SCALES, Arm, Scale
from targetopt.lab.studies.rl.runs import run, run_beside
from targetopt.types import TargetoptError


def main(directory: Path, scale: Scale) -> dict[str, TargetoptError]:
    """All runs that are not there yet: first the agreement, then the other questions.

    Args:
        directory: where the runs go. While an arm's seeds are trained side by side, their checkpoints are in
            ``going/ARM_ENV`` in it, so that a study that is killed goes on in the middle of a run.
        scale: which runs.

    Returns:
        what could not be run to its end, with the reason.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stamp = {"commit": commit(), "versions": versions(), "machine": machine()}
    failed: dict[str, TargetoptError] = {}
    for agreement in (True, False):
        for env, steps in scale.lengths.items():
            for arm in (each for each in scale.arms if (each.question == "agreement") == agreement):
                seeds = range(scale.seeds[env])
                missing = [seed for seed in seeds if not _file(directory, arm, env, seed).exists()]
                if not missing:
                    continue
                print(f"{arm.name} in {env}, seeds {missing}", flush=True)

                def keep(found: dict[str, Any], arm: Arm = arm, env: str = env) -> None:
                    path = _file(directory, arm, env, found["seed"])
                    told = {**found, "provenance": stamp}
                    write_atomically(path, json.dumps(told, indent=1).encode())

                errors = _seeds(arm, env, missing, steps, directory, keep)
                failed |= {f"{arm.name} in {env}, seed {seed}": why for seed, why in errors.items()}
    return failed


def _file(directory: Path, arm: Arm, env: str, seed: int) -> Path:
    return directory / f"{arm.name}_{env}_{seed}.json"


def _seeds(
    arm: Arm,
    env: str,
    seeds: Sequence[int],
    steps: int,
    directory: Path,
    keep: Callable[[dict[str, Any]], None],
) -> dict[int, TargetoptError]:
    """Ours side by side, SB3's one after another; what failed, by seed."""
    if arm.settings is None:
        for seed in seeds:
            keep(run(arm, env, seed, steps))
        return {}
    folder = directory / "going" / f"{arm.name}_{env}"
    found, errors = run_beside(arm, env, seeds, steps, folder)
    for each in found:
        keep(each)
    shutil.rmtree(folder)
    return errors


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        prog="python -m targetopt.lab.studies.rl",
        description="Do the runs that docs/rl-study.md registers. The same command again goes on where it was stopped.",
    )
    options.add_argument("directory", type=Path, help="where the runs go, one JSON file each")
    options.add_argument(
        "--scale",
        choices=tuple(SCALES),
        default="first",
        help="the first part (default, about 50 processor minutes), or all that was asked for (see the page)",
    )
    chosen = options.parse_args()
    wrong = main(chosen.directory, SCALES[chosen.scale])
    if wrong:
        sys.exit("\n".join(f"{name}: {why}" for name, why in wrong.items()))
