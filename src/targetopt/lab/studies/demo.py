"""``targetopt demo``: SSO and its variants against their rivals, on data that come embedded."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.store.directory import Store

M = [1, 20, 100]
COLUMNS = {
    "loss": ("loss", "{:.3g}"),
    "accuracy": ("correct %", "{:.1f}"),
    "oracle_calls": ("oracle", "{:.0f}"),
    "value_calls": ("values", "{:.0f}"),
    "inner_steps": ("inner", "{:.0f}"),
    "wall_time": ("seconds", "{:.2f}"),
}
"""What the tables in the terminal show: heading and format of each column."""


def experiment(seeds: int) -> Experiment:
    """Two linear problems and a small neural net; a minute of compute on two cores."""
    return Experiment(
        name="targetopt demo",
        problems=[
            {"name": "breast_cancer", "loss": "logistic", "batch_size": 64, "epochs": 40},
            {"name": "digits", "batch_size": 128, "epochs": 20},
            {"name": "mlp-digits", "batch_size": 256, "epochs": 6},
        ],
        methods=[
            {"name": "sso", "m": M},
            {"name": "sso", "rule": "line-search", "m": M},
            {"name": "sso", "rule": "adagrad", "m": M},
            {"name": "sso", "rule": "newton", "m": M},
            {"name": "sgd", "lr": 0.1},
            {"name": "sls"},
            {"name": "adam", "lr": 0.01},
            {"name": "adagrad", "lr": 0.1},
        ],
        seeds=seeds,
    )


def tables(directory: str | Path) -> Iterator[Table]:
    """A table for each problem: medians over seeds at the end of the runs, the best loss first."""
    groups: dict[str, dict[str, list[list[float]]]] = {}
    for run in Store(directory).shown():
        if run.manifest["status"] in ("done", "diverged"):
            problem, method = run.manifest["problem"]["label"], run.manifest["method"]["label"]
            columns = {**run.columns, "accuracy": 100 * run.columns["accuracy"]}
            last = {name: float(columns[name][-1]) for name in COLUMNS}
            if run.manifest["status"] == "diverged":
                last["loss"] = np.inf
            groups.setdefault(problem, {}).setdefault(method, []).append(list(last.values()))
    for problem, methods in groups.items():
        shown = Table(title=problem, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        shown.add_column("method", no_wrap=True)
        for heading in COLUMNS.values():
            shown.add_column(heading[0], justify="right", no_wrap=True)
        medians = {method: np.median(values, axis=0) for method, values in methods.items()}
        for method, median in sorted(medians.items(), key=lambda item: item[1][0]):
            formats = [heading[1] for heading in COLUMNS.values()]
            cells = [form.format(value) for form, value in zip(formats, median, strict=True)]
            shown.add_row(method, *cells)
        yield shown
