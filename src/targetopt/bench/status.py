"""``targetopt status``: what a result directory says of its runs."""

from collections import Counter
from pathlib import Path

from rich.console import Group
from rich.text import Text

from targetopt.bench.files import StoreError
from targetopt.bench.store import Store


def describe(directory: str | Path) -> Group:
    """Counts, what is running and by whom, and every run that went wrong with its reason."""
    store = Store(directory)
    if not (store.home / "runs").is_dir():
        raise StoreError(f"{store.directory} is not a result directory: it has no runs/ in it.")
    plan = {entry["id"]: entry for entry in store.plan()}
    shared = store.home != store.directory  # with others, whose runs are not for us to tell of
    names = [run for run in store.ended() if run in plan or not shared]
    manifests = {run: store.manifest(run) for run in names}
    alive = store.claims.alive()
    running = {run: holder for run, holder in alive.items() if run in plan}
    counts = Counter(
        manifest["status"]
        for run, manifest in manifests.items()
        if manifest is not None and run not in running
    )
    waiting = [run for run in plan if run not in manifests and run not in running]
    counts |= Counter({"running": len(running), "waiting": len(waiting)})
    shown = ("done", "diverged", "timeout", "failed", "running", "waiting")
    lines = [" · ".join(f"{counts[kind]} {kind}" for kind in shown if counts[kind]) or "no runs"]
    for run, holder in running.items():
        where = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
        lines.append(f"  running: {_named(plan[run])} ({run}): {where}")
    for run, manifest in manifests.items():
        if manifest is not None and manifest["status"] != "done" and run not in running:
            entry = plan.get(run) or {
                "problem": manifest["problem"]["label"],
                "method": manifest["method"]["label"],
                "batch_size": manifest["batch_size"],
                "seed": manifest["seed"],
            }
            lines.append(f"  {manifest['status']}: {_named(entry)} ({run}): {manifest['reason']}")
    earlier = len(manifests.keys() - plan.keys())
    if plan and earlier:
        lines.append(f"  {earlier} of these are of earlier specifications")
    return Group(*(Text(line) for line in lines))


def _named(entry: dict[str, object]) -> str:
    size = entry["batch_size"]
    batch = "full batch" if size == "full" else f"batch {size}"
    return f"{entry['problem']}, {entry['method']}, {batch}, seed {entry['seed']}"
