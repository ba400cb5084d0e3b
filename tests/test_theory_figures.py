"""The two theory figures, at smoke scale: files, verdicts, and that verdicts can turn."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from targetopt.lab.statistics.verdicts import read, write
from targetopt.lab.studies.theory.figure_data import bounds_data, counterexample_data
from targetopt.lab.studies.theory.figure_verdicts import judge_bounds, judge_counterexample
from targetopt.lab.studies.theory.figures import FIGURES
from targetopt.types import BadArgument

EXPECTED = {
    "theory-bounds": [
        "holds",
        "holds",
        "does not hold",
        "does not hold",
        "holds",
        "holds",
        "holds",
        "does not hold",
        "holds",
        "does not hold",
    ],
    "theory-counterexample": ["holds"] * 6 + ["does not hold"],
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_writes_data_pictures_and_verdicts(name, tmp_path):
    verdicts = FIGURES[name](tmp_path / "out", "smoke")
    assert [v.verdict for v in verdicts] == EXPECTED[name], verdicts
    for v in verdicts:
        assert v.n > 0
        assert v.numbers
    write(tmp_path / "out", verdicts)
    assert read(tmp_path / "out") == verdicts
    png = (tmp_path / "out" / "figures" / f"{name}.png").read_bytes()
    pdf = (tmp_path / "out" / "figures" / f"{name}.pdf").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    tables = sorted((tmp_path / "out" / "tables").glob(f"{name}-*.csv"))
    assert tables
    for table in tables:
        with table.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert rows
        assert all(None not in row and None not in row.values() for row in rows)


def test_scale_is_checked():
    with pytest.raises(BadArgument, match="smoke, quick, paper"):
        FIGURES["theory-bounds"]("unused", "huge")


def test_verdicts_follow_the_data():
    """Spoil what was measured: the verdict turns."""
    data = bounds_data(1, seeds=20, steps=10, longest=100, instances=2)
    first = data.comparisons[0]
    worse = replace(data, comparisons=[replace(first, rms_ratio=1.5), *data.comparisons[1:]])
    assert judge_bounds(data, 20)[0].verdict.verdict == "holds"
    assert judge_bounds(worse, 20)[0].verdict.verdict == "does not hold"
    above = replace(data.projection, measured=data.projection.bound * 2)
    assert judge_bounds(replace(data, projection=above), 20)[4].verdict.verdict == "does not hold"
    flat = replace(data.full, inexact=np.exp(-0.1 * np.array(data.full.inner_steps)))
    assert judge_bounds(replace(data, full=flat), 20)[5].verdict.verdict == "does not hold"
    assert judge_bounds(data, 20)[8].verdict.verdict == "holds"
    run = data.stationarity[0]
    steep = replace(run, measured=2 * run.bound)
    assert (
        judge_bounds(replace(data, stationarity=[steep]), 20)[8].verdict.verdict == "does not hold"
    )

    found = counterexample_data(2000, 1000)
    assert judge_counterexample(found)[0].verdict.verdict == "holds"
    bias = found.biases["constant", "sso"]
    last = max(bias)
    moved = {**bias, last: replace(bias[last], mean=0.1, low=0.09, high=0.11)}
    spoilt = replace(found, biases={**found.biases, ("constant", "sso"): moved})
    assert judge_counterexample(spoilt)[0].verdict.verdict == "does not hold"
