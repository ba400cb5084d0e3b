"""The report without a browser: grouping, tables, embedded data, and directories that are not ideal."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from report_directory import HOSTILE, METHODS, PROBLEMS, add_rows, make, manifest, write_plan
from targetopt.lab.report import lines, multiples, payload, plots
from targetopt.lab.report import page as report
from targetopt.lab.report.lines import ReportError
from targetopt.lab.report.plots import Cell
from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.statistics import summary, verdicts
from targetopt.lab.statistics.verdicts import Verdict, VerdictError
from targetopt.lab.store.directory import Run, Store


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("grid")
    make(directory, methods=METHODS[:2] + METHODS[5:6], seeds=3, epochs=4)
    claim = Verdict("SSO <i>beats</i> SGD", "mixed", {"wins": 0.75, "p": "0.04"}, n=12, test="sign")
    verdicts.write(directory, [claim])
    return report.write(directory)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.prepare()
    return store


def rows(values: list[float], **columns: list[float]) -> list[dict[str, float]]:
    """Records at 0, 1, 2, … oracle calls, two inner steps each."""
    return [
        {"step": t, "oracle_calls": t, "inner_steps": 2 * t, "epoch": t, "wall_time": t, "loss": v}
        | {name: column[t] for name, column in columns.items()}
        for t, v in enumerate(values)
    ]


def embedded(page: Path) -> Any:
    found = re.search(r'id="report-data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def table(page: Path, name: str) -> list[dict[str, str]]:
    with (page.parent / "tables" / name).open() as file:
        return list(csv.DictReader(file))


# ---- what is written -------------------------------------------------------------------------------


def test_page_figures_and_tables_are_all_there(written: Path) -> None:
    figures = {path.name for path in (written.parent / "figures").iterdir()}
    stems = {f"curves-{metric}" for metric in ("loss", "grad-norm", "accuracy")}
    stems |= {"cost-loss", "price-loss-batch-25", "price-loss-full-batch", "profile-loss"}
    assert figures == {f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")}
    tables = {path.name for path in (written.parent / "tables").iterdir()}
    assert tables == {
        "runs.csv",
        "summary.csv",
        "pairwise.csv",
        "curves.csv",
        "cost.csv",
        "profile.csv",
    }
    page = written.read_text()
    for link in re.findall(r'href="((?:figures|tables)/[^"]+)"', page):
        assert (written.parent / link).is_file()


def test_page_refers_to_nothing_outside_itself(written: Path) -> None:
    page = re.sub(r"<script.*?</script>", "", written.read_text(), flags=re.DOTALL)
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"\ssrc=|@import|url\(|<link", page)
    assert "default-src 'none'" in page


def test_summary_holds_the_statistics_of_the_raw_runs(written: Path) -> None:
    results = lines.gather(written.parent)
    found = {
        (r["problem"], r["batch"], r["method"], r["metric"]): r
        for r in table(written, "summary.csv")
    }
    for panel in results.panels:
        for line in panel.lines:
            label = results.methods[line.method].label
            row = found[
                results.problems[panel.problem], results.batches[panel.batch], label, "loss"
            ]
            ends = [
                np.nan if run.manifest["status"] == "diverged" else run.columns["loss"][-1]
                for run in line.runs
            ]
            expected = statistics.bootstrap(ends)
            assert float(row["iqm"]) == expected.value
            assert float(row["low"]) == expected.low
            assert float(row["high"]) == expected.high
            assert int(row["runs"]) == 3
            assert int(row["failed"]) == (
                label == "SGD" and panel.title == "breast cancer, logistic, batch 25"
            )


def test_ranks_follow_the_final_values_and_the_diverged_are_last(written: Path) -> None:
    rows_ = [r for r in table(written, "summary.csv") if r["metric"] == "loss"]
    for problem in {r["problem"] for r in rows_}:
        for batch in {r["batch"] for r in rows_}:
            here = [r for r in rows_ if (r["problem"], r["batch"]) == (problem, batch)]
            here.sort(key=lambda r: float(r["rank"]))
            assert [float(r["iqm"]) for r in here] == sorted(float(r["iqm"]) for r in here)
            assert here[-1]["method"] == "SGD, lr=100000"
            assert float(here[-1]["iqm"]) == np.inf


def test_accuracy_is_ranked_from_above(store: Store) -> None:
    add_rows(store, rows([1, 1], accuracy=[0.1, 0.9]), label="good")
    add_rows(store, rows([1, 1], accuracy=[0.1, 0.2]), label="bad", lr=2)
    [panel] = lines.gather(store.directory).panels
    finals = summary.panel_finals(panel, "accuracy")
    assert {final.rank: final.iqm for final in finals.values()} == {1.0: 0.9, 2.0: 0.2}


def test_curves_csv_is_the_median_and_quartiles_over_seeds(store: Store) -> None:
    for seed, end in enumerate((1.0, 2.0, 4.0)):
        add_rows(store, rows([8.0, end]), seed=seed)
    page = report.write(store.directory, figures=False)
    last = table(page, "curves.csv")[-1]
    assert (last["axis"], float(last["x"]), last["seeds"]) == ("oracle_calls", 1.0, "3")
    assert [float(last[k]) for k in ("quartile_low", "median", "quartile_high")] == [1.5, 2.0, 3.0]
    assert float(last["mean"]) == pytest.approx(7 / 3)


def test_figures_and_page_can_have_means(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, end in enumerate((1.0, 2.0, 4.0)):
        add_rows(store, rows([8.0, end]), seed=seed)
    drawn: list[float] = []
    plot = multiples.plot
    monkeypatch.setattr(
        multiples, "plot", lambda ax, x, y, *look: (drawn.append(y[-1]), plot(ax, x, y, *look))
    )
    page = report.write(store.directory, middle="mean")
    assert drawn[0] == pytest.approx(7 / 3)
    assert '"middle":"mean"' in page.read_text("utf-8")
    with pytest.raises(lines.ReportError, match="middle='mode' must be one of median, mean"):
        report.write(store.directory, middle="mode")  # type: ignore[arg-type]


def test_cost_csv_is_the_first_crossing_of_a_common_level(store: Store) -> None:
    add_rows(store, rows([9.0, 5.0, 3.0, 1.0]), label="fast")
    add_rows(store, rows([9.0, 8.0, 7.0, 5.0]), label="slow", lr=1)
    costs = table(report.write(store.directory, figures=False), "cost.csv")
    assert {float(r["level"]) for r in costs} == {5.0}
    for row in costs:
        calls = {"fast": 1, "slow": 3}[row["method"]]
        assert float(row["cost"]) == pytest.approx(calls * float(row["tau"]) + 2 * calls)


# ---- text stays text -------------------------------------------------------------------------------


def test_names_reasons_and_commands_are_escaped(store: Store) -> None:
    add_rows(store, rows([2.0, 1.0]), label=HOSTILE, problem={"name": HOSTILE, "label": HOSTILE})
    add_rows(
        store,
        [],
        label=HOSTILE,
        seed=1,
        status="failed",
        reason=HOSTILE,
        problem={"name": HOSTILE, "label": HOSTILE},
    )
    (store.directory / "spec.toml").write_text(f"name = '{HOSTILE}'\n")
    verdicts.write(store.directory, [Verdict(HOSTILE, "holds", {HOSTILE: HOSTILE}, 1, HOSTILE)])
    page = report.write(store.directory, figures=False)
    text = page.read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert html.escape(HOSTILE, quote=False).replace("&#x27;", "&#39;") in text
    assert embedded(page)["methods"][0]["label"] == HOSTILE


@settings(deadline=None)
@given(st.text())
def test_no_text_can_end_the_script_element(text: str) -> None:
    safe = payload.script_safe(json.dumps(text, ensure_ascii=False))
    assert not set(safe) & set("<>&\u2028\u2029")
    assert json.loads(safe) == text


def test_verdicts_failures_facts_and_commands_are_shown(written: Path) -> None:
    text = written.read_text()
    assert "SSO &lt;i&gt;beats&lt;/i&gt; SGD" in text
    assert "RuntimeError: the oracle &lt;b&gt;went away&lt;/b&gt;" in text
    assert "<strong>1 still to come</strong>" in text
    assert "0123456789abcdef" in text
    assert "test grid" in text
    for run in Store(written.parent).load():
        assert html.escape(run.manifest["command"]) in text


# ---- the embedded curves ---------------------------------------------------------------------------


def test_embedded_points_are_recorded_points(written: Path) -> None:
    data = embedded(written)
    results = lines.gather(written.parent)
    for panel, drawn in zip(results.panels, data["panels"], strict=True):
        for line, entry in zip(panel.lines, drawn["lines"], strict=True):
            for run, thin in zip(line.runs, entry["runs"], strict=True):
                calls = data["pool"][thin["columns"]["oracle_calls"]]
                at = {int(c): i for i, c in enumerate(run.columns["oracle_calls"])}
                kept = [at[c] for c in calls]
                for name in ("inner_steps", "loss"):
                    recorded = run.columns[name][kept]
                    np.testing.assert_allclose(
                        data["pool"][thin["columns"][name]], recorded, rtol=5e-6
                    )
                assert kept[-1] == len(run.columns["step"]) - 1


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=300, unique=True).map(sorted),
    st.integers(4, 80),
)
def test_thinning_keeps_both_ends_and_the_bound(steps: list[int], points: int) -> None:
    kept = payload.thinned(np.array(steps), points)
    assert len(kept) <= max(points, 1)
    assert kept[0] == 0
    assert kept[-1] == len(steps) - 1
    assert (np.diff(kept) > 0).all()


def test_a_thousand_runs_fit_in_five_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = []
    steps = np.arange(2000)
    for method in range(25):
        for batch in (25, 125, 625, "full"):
            for seed in range(10):
                entry = manifest(
                    PROBLEMS[0], {"name": "sso", "m": method + 1}, seed, batch, 500, "done"
                )
                columns: dict[str, Any] = {"step": steps, "oracle_calls": steps, "epoch": steps / 7}
                columns["value_calls"] = 0 * steps
                columns["inner_steps"] = np.cumsum(rng.integers(1, 100, steps.size))
                columns["wall_time"] = np.cumsum(rng.random(steps.size))
                for metric in ("loss", "grad_norm", "accuracy", "suboptimality"):
                    columns[metric] = rng.random(steps.size) * 10.0 ** rng.integers(-8, 2)
                runs.append(Run(entry, columns))
    assert len(runs) == 1000
    text = payload.embed(lines.group(tmp_path, runs), axis="oracle_calls", tau=100.0)
    assert len(text.encode()) < 4_000_000  # leaves a megabyte for tables and commands
    data = json.loads(text)
    points = {
        len(data["pool"][r["columns"]["loss"]])
        for p in data["panels"]
        for ln in p["lines"]
        for r in ln["runs"]
    }
    assert min(points) >= 40


# ---- directories that are not ideal ----------------------------------------------------------------


def test_nothing_to_report_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"holds no ended run.*targetopt run SPEC\.toml"):
        report.write(tmp_path)
    write_plan(Store(tmp_path), ["a", "b"])
    with pytest.raises(ReportError, match="2 are planned"):
        report.write(tmp_path)
    with pytest.raises(ReportError, match="is not a directory"):
        report.write(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "wrong", [{"open_x": "steps"}, {"tau": 0.5}, {"tau": 1e5}, {"tau": float("nan")}]
)
def test_impossible_views_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match=next(iter(wrong))):
        report.write(tmp_path, **wrong)


def test_one_run_has_no_interval(store: Store) -> None:
    add_rows(store, rows([3.0, 2.0, 1.0]))
    page = report.write(store.directory, figures=False)
    [row] = table(page, "summary.csv")
    assert (row["iqm"], row["low"], row["rank"]) == ("1.0", "nan", "1.0")
    tables = page.read_text().partition('id="summary"')[2].partition("</section>")[0]
    assert "Final values" in tables
    assert 'class="interval"' not in tables


def test_values_a_log_axis_cannot_show_do_not_stop_the_report(store: Store) -> None:
    add_rows(store, rows([1.0, 0.0, -1.0, 1e-300], gap=[1e-9, 0.0, 0.0, 0.0]))
    add_rows(store, rows([1.0, np.nan, np.inf, 2.0], gap=[np.nan] * 4), label="b", lr=1)
    add_rows(store, rows([0.0, 0.0, 0.0]), label="c", lr=2)
    page = report.write(store.directory)
    assert set(embedded(page)["metrics"]) == {"loss", "gap"}
    assert (store.directory / "figures" / "curves-gap.pdf").exists()


def test_a_metric_that_only_some_methods_have(store: Store) -> None:
    add_rows(store, rows([2.0, 1.0], accuracy=[0.5, 0.6]))
    add_rows(store, rows([2.0, 1.5]), label="b", lr=1)
    page = report.write(store.directory, figures=False)
    assert [r["method"] for r in table(page, "summary.csv") if r["metric"] == "accuracy"] == ["SGD"]


def test_only_failures_still_make_a_page(store: Store) -> None:
    add_rows(store, [], status="failed", reason="ImportError: no data here")
    text = report.write(store.directory).read_text()
    assert "ImportError: no data here" in text
    assert "No run has recorded a finite metric" in text


def test_one_lost_seed_is_worst_not_missing(store: Store) -> None:
    for seed, status in enumerate(("done", "done", "diverged")):
        add_rows(
            store, rows([4.0, 3.0, 2.0][: 3 if status == "done" else 2]), seed=seed, status=status
        )
    results = lines.gather(store.directory)
    curve = lines.band(results.panels[0].lines[0], "loss", "oracle_calls", 1.0)
    assert curve is not None
    assert curve.seeds == 3
    np.testing.assert_array_equal(curve.median, [4.0, 3.0, 2.0])
    np.testing.assert_array_equal(curve.mean, [4.0, 3.0, np.inf])
    np.testing.assert_array_equal(curve.high, [4.0, 3.0, np.inf])


def test_runs_of_an_earlier_specification_give_way(store: Store) -> None:
    old = add_rows(store, rows([4.0, 3.0]), seed=0)
    entry = manifest(PROBLEMS[0], {"name": "sgd", "label": "SGD"}, 0, "full", 50, "done")
    store.save(
        entry,
        [
            {**r, "value_calls": 0, "forward_calls": 0, "backward_calls": 0}
            for r in rows([4.0, 1.0])
        ],
    )
    add_rows(store, rows([4.0, 2.0]), label="only in the old one", lr=7)
    write_plan(store, [entry["id"]])
    results = lines.gather(store.directory)
    assert {run.manifest["id"] for run in results.runs} == {entry["id"]}
    assert results.superseded == 2
    assert old not in report.write(store.directory, figures=False).read_text()


def test_one_label_for_two_settings_is_told_apart(store: Store) -> None:
    add_rows(store, rows([2.0, 1.0]), label="SSO", lr=0.5, m=10)
    add_rows(store, rows([2.0, 1.0]), label="SSO", lr=0.25, m=10)
    results = lines.gather(store.directory)
    assert {m.label for m in results.methods} == {"SSO (lr=0.5)", "SSO (lr=0.25)"}


def test_writing_twice_gives_the_same_bytes(store: Store) -> None:
    for label in ("SGD", "Adam"):
        add_rows(store, rows([4.0, 2.0, 1.0]), label=label)
    page = report.write(store.directory)

    def content() -> dict[str, bytes]:
        beside = [store.directory / folder for folder in ("figures", "tables")]
        made = [page, *(path for folder in beside for path in folder.iterdir())]
        return {path.name: path.read_bytes() for path in made}

    before = content()
    assert {Path(name).suffix for name in before} == {".html", ".png", ".pdf", ".csv"}
    report.write(store.directory)
    assert content() == before


# ---- verdicts --------------------------------------------------------------------------------------


def test_verdicts_survive_the_disk(tmp_path: Path) -> None:
    told = [Verdict("a", "holds", {"ratio": 2.5}, 3, "t"), Verdict("b", "does not hold")]
    verdicts.write(tmp_path, told)
    assert verdicts.read(tmp_path) == told
    verdicts.write(tmp_path, [Verdict("c", "mixed", {"limit": float("inf")})])
    assert verdicts.read(tmp_path)[0].numbers == {"limit": "inf"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ('{"claim": "a"}', "must hold a list"),
        ('[{"claim": "a"}]', "needs at least 'claim' and 'verdict'"),
        ('[{"claim": "a", "verdict": "maybe"}]', "must be one of holds, mixed, does not hold"),
        ('[{"claim": " ", "verdict": "holds"}]', "must be a sentence"),
    ],
)
def test_unreadable_verdicts_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "verdicts.json").write_text(text)
    with pytest.raises(VerdictError, match=complaint):
        verdicts.read(tmp_path)


def test_runs_that_a_time_limit_cut_short_are_marked(store: Store) -> None:
    add_rows(store, rows([4.0, 3.0]), seed=0, status="timeout")
    add_rows(store, rows([4.0, 1.0]), seed=1)
    page = report.write(store.directory, figures=False)
    [line] = table(page, "summary.csv")
    assert (line["runs"], line["timeout"], line["failed"]) == ("2", "1", "0")
    results = lines.gather(store.directory)
    [entry], note = plots.legend(
        results, [Cell(row=0, column=0, panel=results.panels[0], lines=results.panels[0].lines)]
    )
    assert entry.label.endswith(" ‡")
    assert note == "‡ was cut short by the time limit with at least one seed"


def test_methods_that_tie_for_the_best_have_both_won(store: Store) -> None:
    for label in ("SGD", "Adam"):
        add_rows(store, rows([4.0, 1.0]), label=label)
    results = lines.gather(store.directory)
    tables = [summary.panel_finals(panel, "loss") for panel in results.panels]
    assert [(row.rank, row.wins) for row in summary.standings(results, tables)] == [(1.5, 1)] * 2


def test_a_batch_size_that_only_further_panels_have_does_not_stop_the_report(store: Store) -> None:
    plan = []
    for batch, panels in ((25, ["main"]), (625, ["Inner solvers"])):
        label = f"SGD at {batch}"
        run = add_rows(store, rows([4.0, 1.0]), label=label, batch=batch)
        entry = {"id": run, "problem": "p", "method": label, "batch_size": batch, "seed": 0}
        plan.append({**entry, "panels": panels})
    (store.directory / "plan.json").write_text(json.dumps(plan))
    report.write(store.directory)
    names = {path.stem for path in (store.directory / "figures").glob("*.png")}
    assert "price-loss-batch-25" in names
    assert "price-loss-batch-625" not in names
