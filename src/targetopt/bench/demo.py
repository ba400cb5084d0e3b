"""``targetopt demo``: SSO and its variants against their rivals, on data that come embedded."""

from pathlib import Path

import numpy as np
from rich.table import Table

from targetopt.bench.spec import Experiment
from targetopt.bench.store import Store

M = [1, 20, 100]


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


def table(directory: str | Path) -> Table:
    """Medians over seeds at the end of the runs, best loss first within each problem."""
    groups: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for run in Store(directory).load():
        if run.manifest["status"] == "done":
            problem, method = run.manifest["problem"]["label"], run.manifest["method"]["label"]
            accuracy = run.columns.get("accuracy", np.array([np.nan]))
            columns = ("loss", "oracle_calls", "value_calls", "inner_steps", "wall_time")
            last = (*(float(run.columns[name][-1]) for name in columns), float(accuracy[-1]))
            groups.setdefault(problem, {}).setdefault(method, []).append(last)
    shown = Table("problem", "method", title="At the end of each run (medians over seeds)")
    for heading in ("loss", "accuracy", "oracle calls", "value calls", "inner steps", "seconds"):
        shown.add_column(heading, justify="right")
    for problem, methods in groups.items():
        medians = {method: np.median(values, axis=0) for method, values in methods.items()}
        for method, median in sorted(medians.items(), key=lambda item: item[1][0]):
            loss, oracle, value, inner, seconds, accuracy = median
            shown.add_row(
                problem,
                method,
                f"{loss:.3g}",
                f"{100 * accuracy:.1f} %",
                f"{oracle:.0f}",
                f"{value:.0f}",
                f"{inner:.0f}",
                f"{seconds:.2f}",
            )
        shown.add_section()
    return shown
