"""``targetopt status``: what a result directory says of its runs.

Ten thousand manifests are read one after the other, and of each only what is shown is kept.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.text import Text

from targetopt.lab.store.directory import Store
from targetopt.lab.store.files import StoreError


class Trouble(NamedTuple):
    """A run that did not end well: what it is called, and why."""

    status: str
    name: str
    run: str
    reason: str


def describe(directory: str | Path) -> Group:
    """Counts, what is running and by whom, and every run that went wrong with its reason.

    A run whose manifest cannot be read is counted as damaged; what is wrong with it is the reason.
    """
    store = Store(directory)
    if not (store.home / "runs").is_dir():
        raise StoreError(f"{store.directory} is not a result directory: it has no runs/ in it.")
    plan = {entry["id"]: entry for entry in store.plan()}
    shared = store.home != store.directory  # with others, whose runs are not for us to tell of
    # in this order: a run that ends meanwhile is then seen as running or as ended, and never as waiting
    alive = store.locks.alive()
    names = [run for run in store.ended() if run in plan or not shared]
    running = {run: holder for run, holder in alive.items() if run in plan}
    counts: Counter[str] = Counter()
    troubles = []
    for run in names:
        if run not in running:
            status, trouble = _ended(store, run, plan.get(run))
            counts[status] += 1
            if trouble is not None:
                troubles.append(trouble)
    ended = set(names)
    counts["running"] = len(running)
    counts["waiting"] = sum(run not in ended and run not in running for run in plan)
    shown = ("done", "diverged", "timeout", "failed", "damaged", "running", "waiting")
    lines = [" · ".join(f"{counts[kind]} {kind}" for kind in shown if counts[kind]) or "no runs"]
    for run, holder in running.items():
        where = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        since = f"for {round(store.locks.age(run))} s"
        lines.append(f"  running: {_named(plan[run])} ({run}): {where}, {since}")
    lines += [f"  {each.status}: {each.name} ({each.run}): {each.reason}" for each in troubles]
    earlier = len(ended - plan.keys())
    if plan and earlier:
        lines.append(f"  {earlier} of these are of earlier specifications")
    return Group(*(Text(line) for line in lines))


def _ended(store: Store, run: str, entry: Mapping[str, Any] | None) -> tuple[str, Trouble | None]:
    """How a run ended, and what to say of it if that was not well."""
    try:
        manifest = store.manifest(run)
    except StoreError as error:
        name = "a run" if entry is None else _named(entry)
        return "damaged", Trouble("damaged", name, run, str(error))
    if manifest is None:  # deleted since the directory was listed
        return "waiting", None
    if manifest["status"] == "done":
        return "done", None
    shown = entry or {
        "problem": manifest["problem"]["label"],
        "method": manifest["method"]["label"],
        "batch_size": manifest["batch_size"],
        "seed": manifest["seed"],
    }
    status = manifest["status"]
    return status, Trouble(status, _named(shown), run, manifest["reason"])


def _named(entry: Mapping[str, Any]) -> str:
    size = entry["batch_size"]
    batch = "full batch" if size == "full" else f"batch {size}"
    return f"{entry['problem']}, {entry['method']}, {batch}, seed {entry['seed']}"
