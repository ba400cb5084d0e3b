"""The best that a policy class reaches, for the dotted lines of the imitation figures; computed once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from targetopt.imitation.measuring.reachable import BATCH
from targetopt.lab.problems.imitation import ImitationProblem, best_reachable
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.store.directory import Run, Store
from targetopt.lab.store.files import write_whole

PASSES = 50
"""How often, on average, a network sees each of the states that it is fitted to, at least."""
ENOUGH = 10_000
"""Steps that a fit of a network to fewer states is given all the same, if there are half as many states."""


class References:
    """``references.json`` beside the runs: a number for each problem and metric, and where it is from.

    The reference of ``loss`` is the best loss of the policy class in as many states as a run sees, driven
    by the expert or, online, by the expert's mean with the learner's noise: where a perfect learner
    goes. That of ``held_out_loss`` is the former, or the latter where the noisy expert drives to these states. That of
    ``mean_return`` is the expert's.
    """

    def __init__(self, directory: Path) -> None:
        self._runs = Store(directory).shown()
        self._path = Store(directory).home / "references.json"
        found = self._path.read_text("utf-8") if self._path.exists() else "{}"
        self._entries: dict[str, dict[str, Any]] = json.loads(found)

    def of(self, run: Run, metric: str) -> float | None:
        """The number that a run's metric is compared with, if there is one."""
        entry = self._entries.get(_key(run, metric))
        return None if entry is None else float(entry["value"])

    def complete(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Compute what is missing, and say so: it takes minutes. A number is kept as soon as it is known.

        Networks and batches are small, so that a second thread gains nothing; on a machine that has other work it
        waits for the first one at every product, which made this ten times as slow.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._complete(tell)
        finally:
            torch.set_num_threads(threads)

    def _complete(self, tell: Callable[[str], None]) -> None:
        for run in self._runs:
            if all(_key(run, metric) in self._entries for metric in ("loss", "held_out_loss")):
                continue
            problem = load_problem(run.manifest["config"]["problem"])
            assert isinstance(problem, ImitationProblem)
            held_out_driver = "online" if problem.held_out_noise else "cloning"
            for metric, driver in (("loss", problem.mixture), ("held_out_loss", held_out_driver)):
                if _key(run, metric) not in self._entries:
                    tell(f"Finding the best loss that can be reached: {_key(run, metric)} …")
                    states = _states(run)
                    passes = max(PASSES, BATCH * min(ENOUGH, 2 * states) // states)
                    best = best_reachable(problem, driver, states, passes=passes)
                    self._keep(run, metric, best.value, best.certificate)
            if problem.evaluate_every:
                how = f"the expert's mean action, {problem.episodes} episodes"
                self._keep(run, "mean_return", problem.measurement.expert.mean, how)

    def _keep(self, run: Run, metric: str, value: float, how: str) -> None:
        self._entries[_key(run, metric)] = {"value": value, "how": how}
        write_whole(self._path, json.dumps(self._entries, indent=1).encode())


def _states(run: Run) -> int:
    return int(run.manifest["batch_size"]) * int(run.manifest["epochs"])


def _key(run: Run, metric: str) -> str:
    """What a number depends on. Held-out states are the expert's, and cloning runs go where they come from."""
    problem = run.manifest["problem"]
    parts = [problem["environment"], problem["expert"], metric]
    if metric != "mean_return":
        driver = problem["behaviour"]
        if metric == "held_out_loss":
            noisy = problem.get("held_out_by") == "noisy expert"
            driver = "online" if noisy else "cloning"
        parts[2:] = [problem["policy"], driver, f"{_states(run)} states"]
        usual = {"std": 1.0, "noise": None}
        parts += [f"{key} {problem[key]:g}" for key in usual if problem[key] != usual[key]]
    return ", ".join(parts)
