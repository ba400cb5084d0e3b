"""Every figure of the paper at smoke scale, and how figures are named, scaled, resumed and shared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from targetopt.bench import Store, expand
from targetopt.paper import claims, figures
from targetopt.paper.commands import app
from targetopt.paper.reproduce import reproduce
from targetopt.types import BadArgument

SUPERVISED = [name for name in claims.in_order(figures.names()) if name in claims.CLAIMS]
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    """Real data where they lie beside the checkout, stand-ins otherwise; never a download."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARGETOPT_DATA", str(SHARED))
        patch.setenv("TARGETOPT_DATA_URL", "http://127.0.0.1:9")
        figures.available.cache_clear()  # what is asked for once is remembered
        yield
    figures.available.cache_clear()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all figures, which so share their runs."""
    return tmp_path_factory.mktemp("figures")


def digests(directory: Path) -> dict[str, str]:
    store = Store(directory)
    return {run: (store.manifest(run) or {})["digest"] for run in store.ended()}


@pytest.mark.parametrize("name", SUPERVISED)
def test_every_figure_renders_at_smoke_scale(name: str, out: Path) -> None:
    said: list[str] = []
    loaded = figures.load(name, "smoke")
    planned = {run.id for run in expand(loaded.experiment)}
    done_elsewhere = {
        path.stem: path for path in out.glob("*/runs/*.parquet") if path.stem in planned
    }
    done = reproduce(name, out, scale="smoke", jobs=1, tell=said.append)
    for run, path in done_elsewhere.items():  # figures share the runs that they have in common
        assert Store(done.directory).metrics_path(run).read_bytes() == path.read_bytes()
    shared = f"  {len(done_elsewhere)} runs were done for other figures and are taken from there."
    assert (shared in said) == bool(done_elsewhere)
    assert done.summary is not None
    assert done.summary.statuses == {"done": done.summary.total}
    assert len(done.verdicts) + len(done.left_open) == len(claims.CLAIMS[name])
    # at smoke scale there is one batch size; nothing else may stay open
    assert all("25" in says or "noise" in says for says, _ in done.left_open), done.left_open
    stored = json.loads((done.directory / "verdicts.json").read_text())
    assert [verdict["claim"] for verdict in stored] == [verdict.claim for verdict in done.verdicts]
    assert all(verdict["n"] and verdict["test"] and verdict["numbers"] for verdict in stored)
    for suffix in ("png", "pdf"):
        assert (done.directory / "figures" / f"curves-loss.{suffix}").stat().st_size > 10_000
    page = (done.directory / "report.html").read_text()
    assert loaded.experiment.name in page
    for wanted, taken in loaded.stand_ins.items():
        assert f"{taken} in place of {wanted}" in page
        assert any(taken in line and wanted in line for line in said)


def test_a_rerun_resumes_and_is_bit_identical(tmp_path: Path) -> None:
    first = reproduce("figA-svrg", tmp_path, scale="smoke", jobs=1)
    store = Store(first.directory)
    before = digests(first.directory)
    kept, *lost = sorted(before)
    stamp = store.manifest_path(kept).stat().st_mtime_ns
    for run in lost:
        store.manifest_path(run).unlink()
        store.metrics_path(run).unlink()
    again = reproduce("figA-svrg", tmp_path, scale="smoke", jobs=1)
    assert digests(first.directory) == before
    assert again.verdicts == first.verdicts
    assert store.manifest_path(kept).stat().st_mtime_ns == stamp


@pytest.mark.parametrize("name", SUPERVISED)
def test_the_paper_scale_is_the_paper_s(name: str) -> None:
    experiment = figures.load(name, "paper").experiment
    runs = expand(experiment)
    panels = {(run.problem_label, run.batch_size) for run in runs}
    assert {run.epochs for run in runs} == {500}
    assert {run.seed for run in runs} == {0, 1, 2}
    assert {size for _, size in panels} == {25, 125, 625, "full"}
    assert len(panels) == 4 * len(experiment.problems)
    inner = {run.method.resolved()["m"] for run in runs if run.method.name == "sso"}
    assert inner == {1, 10, 20, 100}
    assert {run.engine for run in runs} == {"compiled"}
    sso = [run.method.resolved() for run in runs if run.method.name == "sso"]
    assert {(method["inner"], method["lr"]) for method in sso} == {("armijo", "theory")}


def test_stand_ins_are_the_nearest_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGETOPT_DATA", str(tmp_path))
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(figures, "available", lru_cache(figures.available.__wrapped__))
    assert figures.available("mushrooms") == "synthetic-mushrooms"
    assert figures.available("rcv1") == "synthetic-rcv1"
    figures.available.cache_clear()
    (tmp_path / "rcv1_like_20242.binary.bz2").touch()
    assert figures.available("rcv1") == "rcv1-v2-subset"
    figure = figures.load("figA-sgd-constant-squared", "quick")
    assert figure.stand_ins == {
        "mushrooms": "synthetic-mushrooms",
        "ijcnn1": "synthetic-ijcnn1",
        "rcv1": "rcv1-v2-subset",
    }
    assert "rcv1-v2-subset in place of rcv1" in figure.experiment.name


def test_an_unknown_figure_or_scale_is_refused_with_the_names(tmp_path: Path) -> None:
    arguments = ["reproduce", "fig2-rcv1", "fig2-rcv", "--out", str(tmp_path / "out")]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == 1
    assert "'fig2-rcv' is unknown. Did you mean 'fig2-rcv1'?" in result.output
    assert all(name in result.output for name in figures.names())
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadArgument, match="smoke, quick, paper"):
        figures.load("fig2-rcv1", "huge")


def test_commands_list_figures_and_reproduce_theory(tmp_path: Path) -> None:
    listed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["list", "figures"]).output
    assert all(f"{name} " in listed and figures.title(name) in listed for name in figures.names())
    arguments = ["reproduce", "theory-counterexample", "--scale", "smoke", "--out", str(tmp_path)]
    first = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "Prop. 4.4" in first.output
    directory = tmp_path / "theory-counterexample"
    page = (directory / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert len(json.loads((directory / "verdicts.json").read_text())) == page.count("<tr><td")
    stamp = (directory / "verdicts.json").stat().st_mtime_ns
    again = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert again.output == first.output
    assert (directory / "verdicts.json").stat().st_mtime_ns == stamp  # it was there, so not redone
