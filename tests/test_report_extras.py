"""What a report has for papers: who beats whom, LaTeX, one PDF, what tuned values were worth, colours of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report_directory import HOSTILE, METHODS, add_rows, make, write_plan
from targetopt.lab import Experiment, expand
from targetopt.lab.report import latex, lines, palette, plots, sensitivity
from targetopt.lab.report import page as report
from targetopt.lab.run import tuning
from targetopt.lab.spec.document import SpecError
from targetopt.lab.statistics import aggregates, pairwise, summary
from targetopt.lab.store.directory import Store

A, B = {"name": "sgd", "label": "A"}, {"name": "sso", "label": f"B {HOSTILE} 50%_#", "m": 10}


def rows(end: float) -> list[dict[str, float]]:
    return [
        {"step": t, "oracle_calls": t, "inner_steps": 2 * t, "epoch": t, "wall_time": t, "loss": v}
        for t, v in enumerate([4.0, end])
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three seeds of A and of B on one problem: B ends lower in eight of nine pairs."""
    store = Store(tmp_path)
    store.prepare()
    ids = [add_rows(store, rows(end), seed=k, **A) for k, end in enumerate([1.0, 2.0, 3.0])]
    ids += [add_rows(store, rows(end), seed=k, **B) for k, end in enumerate([0.5, 0.6, 1.5])]
    write_plan(store, ids)
    return store


def test_who_beats_whom_is_the_share_of_pairs(store: Store) -> None:
    results = lines.gather(store.directory)
    forth, back = pairwise.compare(results, [0, 1], "loss")
    assert (forth.row, forth.column, back.row, back.column) == (0, 1, 1, 0)
    assert forth.probability == pytest.approx(1 / 9, abs=1e-15)
    assert back.probability == pytest.approx(8 / 9, abs=1e-15)
    assert (forth.low, forth.high) == (1 - back.high, 1 - back.low)
    assert forth.low <= forth.probability <= forth.high
    exact = aggregates.probability_of_improvement([1.0, 2, 3], [0.5, 0.6, 1.5], resamples=1000)
    assert (forth.low, forth.high) == (float(exact.low), float(exact.high))


def test_methods_that_were_never_run_together_are_not_compared(store: Store) -> None:
    other = {"name": "wine", "label": "wine, logistic"}
    extra = add_rows(store, rows(1.0), name="adam", label="C", problem=other)
    write_plan(store, [*(entry["id"] for entry in store.plan()), extra])
    results = lines.gather(store.directory)
    found = pairwise.compare(results, [0, 1, 2], "loss")
    assert {(each.row, each.column) for each in found} == {(0, 1), (1, 0)}


def test_the_page_and_the_table_say_who_beats_whom(store: Store) -> None:
    page = report.write(store.directory, figures=False).read_text()
    assert "Who beats whom" in page
    assert '<span class="point">0.89</span>' in page
    table = (store.directory / "tables" / "pairwise.csv").read_text().splitlines()
    assert table[0] == "method,other,metric,probability,low,high,panels"
    assert len(table) == 3


def cells(text: str) -> list[list[str]]:
    """The rows of a tabular, split at its separators."""
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    return [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in body]


def test_latex_tables_have_equal_rows_and_nothing_that_latex_would_read(store: Store) -> None:
    report.write(store.directory, figures=False, latex=True)
    folder = store.directory / "tables"
    made = {path.name: path.read_text() for path in folder.glob("*.tex")}
    assert made.keys() == {"standings.tex", "pairwise.tex", "final-loss.tex"}
    for text in made.values():
        found = cells(text)
        columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
        assert columns is not None
        assert {len(row) for row in found} == {len(columns[1])}
        plain = re.sub(r"\\[{}$&%#_]", "", text)  # what is escaped is text
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert "<img" not in text
    [_, sgd, sso] = cells(made["final-loss.tex"])
    finals = summary.panel_finals(lines.gather(store.directory).panels[0], "loss")
    assert f"${finals[0].iqm:.3g}$" in sgd[1]
    assert rf"\textbf{{\boldmath${finals[1].iqm:.3g}$}}" in sso[1]


def test_latex_tables_are_written_where_they_are_asked_for(store: Store) -> None:
    report.write(store.directory, figures=False)
    assert not list((store.directory / "tables").glob("*.tex"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(np.inf, r"$\infty$"), (-1e-9, r"$-1\cdot 10^{-9}$"), (0.0, "$0$"), (99999.0, "$100000$")],
)
def test_numbers_in_latex(value: float, shown: str) -> None:
    assert latex.number(value) == shown


def test_the_whole_report_is_one_pdf(store: Store) -> None:
    page = report.write(store.directory, pdf=True)
    assert 'href="report.pdf"' in page.read_text()
    document = (store.directory / "report.pdf").read_bytes()
    figures = list((store.directory / "figures").glob("*.pdf"))
    pages = re.findall(rb"/Type /Page\b", document)
    assert len(pages) == 3 + len(figures)  # words, ranks, final values, and each figure
    assert b"CreationDate" not in document
    report.write(store.directory, pdf=True)
    assert (store.directory / "report.pdf").read_bytes() == document


def tuned(store: Store) -> None:
    tried = [
        {"options": {"lr": lr}, "final": final, "status": "done", "id": "0" * 16}
        for lr, final in [(0.1, 0.9), (1.0, 0.7), (10.0, None)]
    ]
    [first, *_] = store.plan()
    choice = {"problem": first["problem"], "batch_size": first["batch_size"], "method": "A"}
    choice |= {"metric": "loss", "seed": 9, "epochs": 1, "tried": tried, "chosen": {"lr": 1.0}}
    (store.directory / tuning.FILE).write_text(json.dumps([{**choice, "at_edge": False}]))


def test_what_tuned_values_were_worth_is_a_line(store: Store) -> None:
    tuned(store)
    results = lines.gather(store.directory)
    [line] = sensitivity.lines(results, tuning.read(store.directory))
    assert (line.option, line.values, line.chosen) == ("lr", [0.1, 1.0, 10.0], 1.0)
    np.testing.assert_array_equal(line.finals, [0.9, 0.7, np.nan])
    drawn = plots.draw_all(results, axis="oracle_calls", tau=1.0, tried=[line])
    assert "sensitivity-lr" in [picture.name for picture in drawn.pictures]
    assert (store.directory / "figures" / "sensitivity-lr.pdf").stat().st_size > 3000


def test_options_tuned_together_are_shown_one_by_one() -> None:
    tried = [
        {"options": {"lr": lr, "m": m}, "final": lr * m, "status": "done", "id": ""}
        for lr in (0.1, 1.0)
        for m in (5, 10)
    ]
    found = dict(sensitivity._by_option({"chosen": {"lr": 0.1, "m": 5}, "tried": tried}))
    assert found == {"lr": {0.1: 0.5, 1.0: 5.0}, "m": {5.0: 0.5, 10.0: 1.0}}


def experiment(**method: object) -> Experiment:
    return Experiment(
        problems=[{"name": "quadratic"}], methods=[{"name": "adam", **method}], epochs=1
    )


def test_a_colour_changes_the_lines_and_not_the_runs() -> None:
    [plain], [coloured] = expand(experiment()), expand(experiment(colour="#aa3377"))
    assert coloured.colour == "#aa3377"
    assert coloured.id == plain.id
    look = palette.style({"name": "adam", "colour": "#aa3377"})
    assert look.light == "#aa3377"
    assert look.dash == palette.style({"name": "adam"}).dash


@pytest.mark.parametrize("colour", ["red; x", "#12", 7, "url(x)"])
def test_what_is_no_colour_is_refused(colour: object) -> None:
    with pytest.raises(SpecError, match="must be a colour such as"):
        expand(experiment(colour=colour))


@pytest.mark.parametrize("colour", ["#ffffff", "#ffff00", "#000000", "oklch(0.9 0.2 110)"])
@pytest.mark.parametrize("side", ["light", "dark"])
def test_any_colour_can_be_seen_on_its_page(colour: str, side: palette.Page) -> None:
    look = palette.style({"name": "adam", "colour": colour})
    line = look.light if side == "light" else look.dark
    light, dark = sorted((_luminance(line), _luminance(palette.PAGES[side])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def _luminance(colour: str) -> float:
    parts = [palette._linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_colours_come_from_the_plan(tmp_path: Path) -> None:
    make(tmp_path, methods=METHODS[:1], seeds=1, epochs=1)
    store = Store(tmp_path)
    plan = [{**entry, "colour": "#0000aa"} for entry in store.plan()]
    store.write("plan.json", json.dumps(plan).encode())
    assert lines.gather(tmp_path).methods[0].style.light == "#0000aa"


# -- in Chromium ----------------------------------------------------------------------------------


@pytest.fixture
def opened(store: Store) -> Path:
    tuned(store)
    return report.write(store.directory, figures=False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_are_named_where_they_end(
    opened: Path, open_page: Callable[..., Any], scheme: Any
) -> None:
    page = open_page(opened, color_scheme=scheme)
    names = page.locator("#chart .names text")
    labels = [method.label for method in lines.gather(opened.parent).methods]
    assert [name.rstrip("…") for name in names.all_text_contents()] == [
        label[: 25 if len(label) > 26 else None] for label in labels
    ]
    fills = names.evaluate_all("all => all.map(e => e.getAttribute('fill'))")
    looks = [method.style for method in lines.gather(opened.parent).methods]
    assert fills == [look.light if scheme == "light" else look.dark for look in looks]
    boxes = [name.bounding_box() for name in names.all()]
    first, second = sorted(boxes, key=lambda box: box["y"])
    assert first["y"] + first["height"] <= second["y"] + 2
    inside = page.locator("#chart").bounding_box()
    assert all(box["x"] + box["width"] <= inside["x"] + inside["width"] + 1 for box in boxes)
    page.locator("#legend button.method").first.click()
    assert names.count() == 1
    assert page.wrong == []


def test_the_first_screen_has_the_answer_the_chart_and_the_price(
    opened: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(opened)  # 1200 × 900
    for part in ("#answer", "#chart", "#tau"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= 900, part


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_tuned_values_were_worth_is_drawn(
    opened: Path, open_page: Callable[..., Any], scheme: Any
) -> None:
    page = open_page(opened, color_scheme=scheme)
    assert page.locator("#sensitivity-chart .line").count() == 1
    ring = page.locator("#sensitivity-chart circle.ring")
    assert ring.count() == 1
    look = lines.gather(opened.parent).methods[0].style
    assert ring.get_attribute("stroke") == (look.light if scheme == "light" else look.dark)
    marks = page.locator("#sensitivity-chart .line path").first.get_attribute("d")
    assert marks.count("L") + marks.count("M") == 2  # the diverged trial leaves a gap
    assert "value of lr" in page.locator("#sensitivity-note").inner_text()
    assert page.wrong == []


def test_on_a_telephone_nothing_is_wider_than_the_page(
    opened: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(opened, viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#chart .names").count() == 0  # there is no room: the legend has the names
    assert page.wrong == []
