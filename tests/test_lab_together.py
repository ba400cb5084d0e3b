"""Runs that share their batches are done in turns by one worker: the same numbers, the same safety."""

import threading
import time
from pathlib import Path

import pytest

from targetopt.lab import Experiment, Store, expand, run
from targetopt.lab.run.job import Job

pytest.importorskip("numba")

PLUGIN = str(Path(__file__).with_name("lab_trap.py"))


def experiment(**changes) -> Experiment:
    methods = [
        {"name": "sso", "m": [1, 5, 20, 100]},
        {"name": "sso", "rule": "line-search", "m": 20},
        {"name": "sso", "inner": ["exact", "lbfgs"]},
    ]
    fields = {
        "problems": [{"name": "trap"}],
        "methods": methods,
        "batch_size": [16, 64],
        "seeds": 1,
        "epochs": 200,
        "plugins": [PLUGIN],
    }
    return Experiment(**{**fields, **changes})


def digests(directory: Path) -> dict[str, str]:
    store = Store(directory)
    return {name: store.manifest(name)["digest"] for name in store.ended()}


def test_in_turns_the_numbers_are_those_of_runs_alone(tmp_path: Path) -> None:
    claimed = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            claimed.add(len(list((tmp_path / "together" / "locks").glob("*"))))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    began = time.monotonic()
    try:
        together = run(experiment(), tmp_path / "together", jobs=1)
    finally:
        done.set()
    took = time.monotonic() - began
    assert together.statuses == {"done": 14}
    assert max(claimed) == 7, "all that have their batches in common are under way at once"
    store = Store(tmp_path / "together")
    spent = [store.manifest(name)["duration"] for name in store.ended()]
    assert sum(spent) < took, "a run's time is its own"
    # a time limit is on the clock of one run: those are done one after the other
    assert run(experiment(), tmp_path / "alone", jobs=1, time_limit=1000).statuses == {"done": 14}
    assert digests(tmp_path / "together") == digests(tmp_path / "alone")


def test_a_run_that_ends_the_process_is_found_among_the_others(tmp_path: Path) -> None:
    trapped = experiment(
        problems=[{"name": "trap", "limit": 30.0}],
        methods=[{"name": "sso", "m": 20}, {"name": "sso", "m": 20, "lr": 1e4, "label": "far"}],
        seeds=1,
    )
    summary = run(trapped, tmp_path, jobs=1)
    assert summary.statuses == {"done": 2, "failed": 2}
    assert {config.method_label for config, _, _ in summary.troubles} == {"far"}
    reasons = {reason for _, _, reason in summary.troubles}
    assert reasons == {"the process doing this run exited with code 5"}


def test_what_goes_together() -> None:
    runs = expand(
        experiment(
            batch_size=[16, "full"],
            seeds=2,
            methods=[{"name": "sso", "m": [1, 5]}, {"name": "sgd"}, {"name": "adam"}],
        )
    )
    tasks = [Job("out", config.id, config, attempt=1, command="") for config in runs]
    shared = {task.batches for task in tasks} - {None}
    assert len(shared) == 2  # one for each seed, at batches of 16
    for task in tasks:
        config = task.config
        lone = config.method.name != "sso" or config.batch_size == "full"
        assert (task.batches is None) == lone
    assert Job("out", "0", runs[0], attempt=1, command="", time_limit=5.0).batches is None
    assert Job("out", "0", runs[0], attempt=1, command="", alone=True).batches is None
    tracked = [
        Job("out", "0", runs[0], attempt=1, command="", trackers=(name,)).batches is None
        for name in ("tensorboard", "wandb")
    ]
    assert tracked == [False, True]  # others may know one run in a process
