"""The page docs/speed.md, drawn from what lies in benchmarks/results.

    python -m benchmarks.speed              # write the page
    python -m benchmarks.speed measure      # measure what takes a few minutes, then write it

The grids and the defaults take longer: ``python -m benchmarks.grid``, ``python -m benchmarks.grid aside`` and
``python -m benchmarks sklearn_defaults`` measure them. A file NAME_before.json beside NAME.json holds the same before
the latest changes.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import grid, linear, networks, sklearn_regressors, starts
from benchmarks.harness import RESULTS, one_thread, save

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
HEAD = """# How fast

After this page you will know how long the estimators, the compiled linear steps and the steps on networks take beside
their peers, where we lose, and how to measure it again.

Ratios are of processor times: ours over the peer's, on one thread, in turns within one process, so that what else the
machine does hardly counts. A ratio above 1 means that we lose, and such rows come first. Medians are over at least
seven rounds, unless it says otherwise; ± is half the distance between the quartiles, relative to the median. The page
is written by `python -m benchmarks.speed` from
`benchmarks/results`; `python -m benchmarks.speed measure` measures all but the grids first.
"""


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def source(found: dict[str, Any]) -> str:
    names = [name for name in found["versions"] if name != "targetopt"]
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in names)
    return f"Measured on {found['date'][:10]} at commit {found['commit'][:12]}, with {versions}.\n"


def _text(value: float | None, form: str) -> str:
    return format(value, form) if value is not None else ""


def regressors() -> Iterator[str]:
    yield "## Regressors\n"
    yield (
        "`SSORegressor` beside every solver of scikit-learn's regressors, to the same objective within 1e-6 "
        "(`python -m benchmarks sklearn_regressors`). Rows with `delta='auto'` are not to the same objective: both "
        "estimators look for the scale themselves, by different rules.\n"
    )
    found, before = read("sklearn_regressors"), read("sklearn_regressors_before")
    if found is None:
        return
    yield source(found)
    earlier = {
        (row["loss"], row["shape"], row["about"]): row["ratio"]
        for row in (before["rows"] if before else [])
    }
    for loss in ("squared", "poisson", "huber"):
        rows = sorted(
            (row for row in found["rows"] if row["loss"] == loss and row["ratio"]),
            key=lambda row: -row["ratio"],
        )
        ratios = [row["ratio"] for row in rows]
        lost = sum(ratio > 1.0 for ratio in ratios)
        yield f"**{loss}**: {len(rows)} problems, geometric mean {mean(ratios):.2f}, {lost} lost.\n"
        yield from table(
            ("problem", "", "ours, ms", "fastest rival", "ms", "ratio", "±", "ratio before"),
            [
                (
                    row["shape"],
                    row["about"],
                    f"{1e3 * row['seconds'][sklearn_regressors.OURS]:.2f}",
                    row["fastest"],
                    f"{1e3 * row['seconds'][row['fastest']]:.2f}",
                    f"{row['ratio']:.2f}",
                    f"{row['spread']:.0%}",
                    _text(earlier.get((loss, row["shape"], row["about"])), ".2f"),
                )
                for row in rows
            ],
        )
        against = [
            (
                row["shape"],
                row["seconds"][sklearn_regressors.OURS] / row["seconds"]["newton-cholesky"],
            )
            for row in rows
            if "newton-cholesky" in row["seconds"]
        ]
        if against:
            shown = ", ".join(f"{ratio:.2f} on {shape}" for shape, ratio in against)
            yield f"Over newton-cholesky alone, where it is within twice the fastest: {shown}.\n"


def classifier() -> Iterator[str]:
    yield "## The classifier over a grid\n"
    yield (
        "`SSOClassifier` beside lbfgs, newton-cg, newton-cholesky, saga, liblinear and skglm, to a relative gap of "
        "1e-6, on problems drawn at random from a grid of shapes, kinds of data, penalties, scales, classes and "
        "intercepts (`python -m benchmarks.grid`). One half was worked with, the other set aside. A problem that takes "
        "us more than two seconds has three rounds. A rival that needs more than four times our time is not pursued "
        "further; *before*, that was one and a half times, so that ratios of 0.67 and less are upper bounds there.\n"
    )
    for half, title in (("work", "The half that was worked with"), ("aside", "The half set aside")):
        found, before = read(f"grid_{half}"), read(f"grid_{half}_before")
        if found is None:
            yield f"**{title}** was not measured.\n"
            continue
        earlier = {row["number"]: row["ratio"] for row in (before["rows"] if before else [])}
        rows = sorted(found["rows"], key=lambda row: -row["ratio"])
        ratios = [row["ratio"] for row in rows]
        lost, missed = sum(r > 1.0 for r in ratios), sum(r["gap"] > grid.ACCURACY for r in rows)
        yield (
            f"**{title}**: {len(rows)} of {grid.CELLS // 2} problems measured, the quickest first; geometric mean "
            f"{mean(ratios):.2f}, {lost} lost, {missed} with a gap above `tol`. {source(found)}"
        )
        yield from table(
            ("problem", "ours, ms", "fastest rival", "ratio", "±", "ratio before", "gap"),
            [
                (
                    grid.Cell(**row["cell"]),
                    f"{1e3 * row['seconds'][grid.OURS]:.1f}",
                    row["fastest rival"],
                    f"{row['ratio']:.2f}",
                    _text(row.get("spread", {}).get(grid.OURS), ".0%"),
                    _text(earlier.get(row["number"]), ".2f"),
                    f"{max(row['gap'], 0.0):.0e}",
                )
                for row in rows
            ],
        )
    yield "The default `alpha` is compared with that of `LogisticRegression` in the [guide](sklearn.md).\n"


def cold() -> Iterator[str]:
    yield "## Cold starts\n"
    found = read("starts")
    if found is None:
        return
    yield source(found)
    yield (
        "Each is a process of its own (`python -m benchmarks starts`). Processor seconds count all that it starts; the "
        "first fit with nothing compiled was measured once, and is judged by its wall, with a load of "
        f"{found['load']:.1f} on the machine.\n"
    )
    yield from table(
        ("what", "processor s", "±", "wall s", "beyond", "s", "limit"),
        [
            (
                row["what"],
                f"{row['processor']:.2f}",
                _text(row["spread"], ".0%"),
                f"{row['wall']:.2f}",
                row.get("more than") or "",
                _text(row.get("measured"), ".2f"),
                row.get("limit", ""),
            )
            for row in found["rows"]
        ],
    )


def steps() -> Iterator[str]:
    yield "## Linear steps\n"
    found = read("linear_625")
    if found is not None:
        yield source(found)
        yield (
            "One outer step with m = 100 inner ones on 625 sparse rows, over one eager SGD step of torch on the same "
            "rows. The limit is 1 on 300 columns.\n"
        )
        yield from table(
            ("columns", "eager, µs", "ours, µs", "ratio", "±"),
            [
                (
                    row["columns"],
                    f"{row['eager_us']:.0f}",
                    f"{row['fit_us']:.0f}",
                    f"{row['ratio']:.2f}",
                    f"{row['spread']:.0%}",
                )
                for row in sorted(found["rows"], key=lambda row: -row["ratio"])
            ],
        )
    yield "## Networks\n"
    found = read("networks")
    if found is None:
        return
    yield source(found)
    yield "Steps of `Armijo` over one SGD step of torch on the same batch (`python -m benchmarks networks`).\n"
    yield from table(
        ("model", "what", "SGD, ms", "ours, ms", "ratio", "±", "limit"),
        [
            (
                row["model"],
                row["what"],
                f"{row['sgd_ms']:.2f}",
                f"{row['sso_ms']:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['spread']:.0%}",
                row["limit"],
            )
            for row in sorted(found["inner_steps"], key=lambda row: -row["ratio"] / row["limit"])
        ],
    )
    default = found["default_step"]
    yield "Memory at its peak beyond the parameters, 20 million of them, in copies of them:\n"
    yield from table(("optimiser", "copies"), [(k, f"{v:.2f}") for k, v in found["copies"].items()])
    forwards, backwards = default["forwards and backwards"][-1]
    yield (
        f"One outer step of the default takes {default['ratio']:.0f} SGD steps of time there (± "
        f"{default['spread']:.0%}; the limit is {default['limit']:g}), for "
        f"{forwards} forwards and {backwards} backwards in the last of seven steps.\n"
    )


def measure() -> None:
    """Everything that takes a few minutes on one core."""
    one_thread()
    networks.main()
    starts.main()
    rows = linear.at_625()
    save("linear_625", {"rows": rows}, "numba")
    sklearn_regressors.main()


def main() -> None:
    if sys.argv[1:] == ["measure"]:
        measure()
    parts = [HEAD, *regressors(), *classifier(), *cold(), *steps()]
    PAGE.write_text("\n".join(parts).rstrip("\n") + "\n")
    print(f"written: {PAGE.name}")


if __name__ == "__main__":
    main()
