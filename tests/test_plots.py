"""Looks of methods, and figures on paper."""

from __future__ import annotations

import contextlib
import itertools
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image

from report_directory import HOSTILE, PROBLEMS, add_rows
from targetopt import registry
from targetopt.lab.report import lines, multiples, palette, plots
from targetopt.lab.report import page as reporting
from targetopt.lab.store.directory import Store

RULES = tuple(registry.rules)
BASELINES = ("sgd", "sls", "adam", "adagrad", "adagrad-norm", "svrg")
STEPS = (1, 10, 20, 100, 1000)
INNER = ("adam", "lbfgs", "gauss-newton")
KNOWN: list[dict[str, Any]] = [
    *({"name": name} for name in BASELINES),
    *({"name": "sso", "rule": rule, "m": m} for rule in RULES for m in STEPS),
    *({"name": "sso", "rule": "gradient-step", "inner": i, "m": m} for i in INNER for m in STEPS),
    *({"name": name, "m": m} for name in ("sgd-m", "adam-m") for m in STEPS),
]


def channels(colour: str) -> np.ndarray:
    """Linear sRGB of a hex colour."""
    encoded = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG's contrast ratio."""
    light, dark = sorted(
        (float(channels(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def oklab(linear: np.ndarray) -> np.ndarray:
    to_lms = """0.4122215 0.5363325 0.0514460 0.2119035 0.6806995 0.1073970 0.0883025 0.2817188 0.6299787"""
    to_lab = """0.2104543 0.7936178 -0.0040720 1.9779985 -2.4285922 0.4505937 0.0259040 0.7827718 -0.8086758"""
    return matrix(to_lab) @ np.cbrt(np.clip(matrix(to_lms) @ linear, 0, None))


def matrix(numbers: str) -> np.ndarray:
    return np.array(numbers.split(), dtype=float).reshape(3, 3)


# Machado, Oliveira & Fernandes 2009, severity 1: what protanopes, deuteranopes and tritanopes see.
EYES = {
    "typical": np.eye(3),
    "protan": matrix(
        "0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998"
    ),
    "deutan": matrix(
        "0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881"
    ),
    "tritan": matrix(
        "1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.303900"
    ),
}


def difference(a: str, b: str, eye: str) -> float:
    seen = [oklab(np.clip(EYES[eye] @ channels(c), 0, 1)) for c in (a, b)]
    return float(np.linalg.norm(seen[0] - seen[1]))


# ---- looks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["light", "dark"])
def test_every_line_stands_out_from_its_page(page: palette.Page) -> None:
    for method in KNOWN:
        colour = getattr(palette.style(method), page)
        assert contrast(colour, palette.PAGES[page]) >= 3.0, (method, colour)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_unknown_methods_stand_out_too(name: str) -> None:
    style = palette.style({"name": name})
    assert contrast(style.light, palette.PAGES["light"]) >= 3.0
    assert contrast(style.dark, palette.PAGES["dark"]) >= 3.0
    assert style == palette.style({"name": name})


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("page", ["light", "dark"])
def test_methods_of_a_paper_figure_are_told_apart_by_every_eye(page: str, eye: str) -> None:
    """By colour: a just noticeable difference in OKLab is about 0.02."""
    for rule in RULES:
        figure = [{"name": name} for name in ("sgd", "sls", "adam", "adagrad")]
        figure += [{"name": "sso", "rule": rule, "m": m} for m in (1, 10, 100)]
        styles = [palette.style(method) for method in figure]
        for a, b in itertools.combinations(styles, 2):
            apart = difference(getattr(a, page), getattr(b, page), eye) >= 0.06
            # A baseline may wear its rule's hue: then it is dashed and the SSO variant is solid.
            assert apart or a.dash != b.dash, (rule, a, b)


def test_looks_differ_in_dash_or_marker_as_well() -> None:
    """Colour is never the only difference within what the paper draws together."""
    styles = [palette.style(m) for m in KNOWN if m["name"] != "sso" or m["rule"] == "gradient-step"]
    assert len({(s.dash, s.marker) for s in styles}) == len(styles)


def test_floors_of_one_rule_have_colours_of_their_own() -> None:
    newton = {"name": "sso", "rule": "newton", "m": 20}
    looks = [palette.style(newton | floor) for floor in ({}, {"floor": 1e-5}, {"floor": 1e-300})]
    assert len({look.light for look in looks}) == len({look.dark for look in looks}) == 3


def test_a_look_depends_on_the_method_alone() -> None:
    for method in KNOWN:
        alone = palette.styles([method])[0]
        among = palette.styles([*KNOWN])[KNOWN.index(method)]
        assert (alone.light, alone.dark, alone.dash) == (among.light, among.dark, among.dash)
        assert alone == palette.style({**method, "label": "another label"})


def test_a_step_of_its_own_is_seen() -> None:
    usual = {"name": "sso", "rule": "gradient-step", "m": 10, "lr": "theory"}
    assert palette.style(usual) == palette.style({"name": "sso", "m": 10})
    for lr in (1.0, "theory*4"):
        tuned = palette.style({**usual, "lr": lr})
        assert tuned.dash != palette.style(usual).dash
        for page in palette.PAGES:
            colours = (getattr(look, page) for look in (tuned, palette.style(usual)))
            assert difference(*colours, "typical") >= 0.06
    assert palette.style({"name": "adam", "lr": 1.0}) == palette.style({"name": "adam"})


def test_more_inner_steps_mean_more_contrast() -> None:
    for rule in RULES:
        styles = [palette.style({"name": "sso", "rule": rule, "m": m}) for m in STEPS]
        for page in palette.PAGES:
            found = [contrast(getattr(s, page), palette.PAGES[page]) for s in styles]
            assert found == sorted(found)
        exact = palette.style({"name": "sso", "rule": rule, "inner": "exact", "m": 20})
        assert exact.light == styles[-1].light


def test_spellings_of_one_method_look_the_same() -> None:
    want = palette.style({"name": "sso", "rule": "line-search", "m": 10})
    for rule in ("LineSearch", "line_search", "sls"):
        assert palette.style({"name": "sso", "rule": rule, "m": 10}) == want
    assert palette.style({"name": "sso-sls", "m": 10}) == want


def test_schedules_change_the_dash() -> None:
    made = [
        palette.style({"name": "sso", "m": 10, "schedule": s})
        for s in ("constant", "inverse-sqrt", "exponential")
    ]
    assert len({s.dash for s in made}) == 3
    assert len({s.light for s in made}) == 1


def test_twins_take_different_markers() -> None:
    twins = [{"name": "sso", "m": 10, "lr": k} for k in range(8)]
    assert len(set(palette.styles(twins))) == 8


def test_colours_of_the_main_methods_are_pinned() -> None:
    """Reports of different months must agree: change these only together with the documentation."""
    light = {m: palette.style({"name": "sso", "m": m}).light for m in (1, 100)}
    light |= {
        name: palette.style({"name": name}).light for name in ("sgd", "sls", "adam", "adagrad")
    }
    assert light == PINNED


PINNED = {
    1: "#3a95df",
    100: "#054c7d",
    "sgd": "#1b1b1b",
    "sls": "#c68101",
    "adam": "#b3548c",
    "adagrad": "#087554",
}


# ---- figures ---------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.prepare()
    return store


def rows(values: list[float]) -> list[dict[str, float]]:
    return [
        {"step": t, "oracle_calls": t, "inner_steps": t, "epoch": t, "wall_time": t, "loss": v}
        for t, v in enumerate(values)
    ]


def text_of(pdf: Path) -> str:
    """The letters a PDF draws, strung together."""
    letters = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.DOTALL):
        with contextlib.suppress(zlib.error):
            letters += re.findall(rb"\(((?:[^()\\]|\\.)*)\)", zlib.decompress(stream))
    return b"".join(letters).decode("latin-1").replace("\0", "").replace("\\", "")


def test_names_are_never_read_as_mathematics(store: Store) -> None:
    problem = {"name": "p", "label": r"$\frac{1}{"}
    for k, label in enumerate((HOSTILE, "_hidden $x_1$", "数据 🎈")):
        add_rows(store, rows([3.0, 2.0, 1.0]), label=label, problem=problem, lr=k)
    results = lines.gather(store.directory)
    curves, *_ = plots.draw_all(results, axis="oracle_calls", tau=1.0).pictures
    drawn = text_of(store.directory / "figures" / f"{curves.name}.pdf")
    assert "_hidden $x_1$" in drawn
    assert "$frac{1}{" in drawn
    assert multiples.clipped(HOSTILE)[:-1] in drawn


def test_figure_has_a_panel_for_every_problem_and_batch_size(store: Store) -> None:
    for problem in PROBLEMS:
        for batch in (25, 125, "full"):
            if (problem["name"], batch) != ("wine", 125):
                add_rows(store, rows([3.0, 2.0, 1.0]), problem=problem, batch=batch)
    results = lines.gather(store.directory)
    pictures = plots.draw_all(results, axis="oracle_calls", tau=1.0).pictures
    prices = [f"price-loss-{size}" for size in ("batch-25", "batch-125", "full-batch")]
    assert [p.name for p in pictures] == ["curves-loss", "cost-loss", *prices, "profile-loss"]
    drawn = text_of(store.directory / "figures" / "price-loss-batch-25.pdf")
    assert drawn.count(" = 1000") == 1
    drawn = text_of(store.directory / "figures" / "curves-loss.pdf")
    for title, times in (("batch 25", 1), ("batch 125", 1), ("full batch", 1), ("oracle calls", 3)):
        assert (
            drawn.count(title) == times
        )  # a column has its title above and its x-axis below, once
    for problem in PROBLEMS:
        assert drawn.count(problem["label"]) == 1
    picture = image.imread(store.directory / "figures" / "curves-loss.png")
    assert picture.shape[1] > 1.2 * picture.shape[0]  # three columns, two rows


def test_of_very_many_panels_those_are_drawn_that_are_looked_at_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows(store, rows([3.0, 2.0, 1.0]))
    figures = store.directory / "figures"

    def drawn() -> set[str]:
        return {path.stem for path in figures.iterdir()}

    reporting.write(store.directory)
    every, first = drawn(), {"curves-loss", "cost-loss"}
    assert every > first
    monkeypatch.setattr(plots, "MOST_PANELS", 2)
    text = reporting.write(store.directory).read_text("utf-8")
    assert drawn() == first
    assert f"very many panels: {len(every - first)} of the figures" in text
    assert f"targetopt report {store.directory} --all-figures" in text
    reporting.write(store.directory, all_figures=True)
    assert drawn() == every


def test_a_problem_without_the_metric_has_no_panel(store: Store) -> None:
    known, unknown = PROBLEMS[:2]
    measured = [{**row, "suboptimality": row["loss"]} for row in rows([3.0, 2.0, 1.0])]
    for batch in (25, "full"):
        add_rows(store, measured, problem=known, batch=batch)
        add_rows(store, rows([3.0, 2.0, 1.0]), problem=unknown, batch=batch)
    plots.draw_all(lines.gather(store.directory), axis="oracle_calls", tau=1.0)
    drawn = text_of(store.directory / "figures" / "curves-suboptimality.pdf")
    assert drawn.count(known["label"]) == 1
    assert unknown["label"] not in drawn
    assert drawn.count("oracle calls") == 2  # below the row that is there
    assert text_of(store.directory / "figures" / "curves-loss.pdf").count(unknown["label"]) == 1


def test_a_curve_that_explodes_does_not_flatten_the_others() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    ax.set_yscale("log")
    multiples.limit(ax, 1e-3, 1e30, 1.0, True)
    assert ax.get_ylim()[1] < 10
    ax.set_yscale("linear")
    multiples.limit(
        ax, 5e-324, 1e200, None, True
    )  # a gradient that has vanished beside one that has exploded
    low, high = ax.get_ylim()
    assert 0 < low <= 1e-100
    assert 1e200 <= high < np.inf
    multiples.limit(ax, 0.0, 1e30, 1.0, False)
    assert ax.get_ylim()[1] < 2
    multiples.limit(ax, -5.0, 3000.0, None, False)  # returns: higher is better, nothing is cut
    assert ax.get_ylim()[1] > 3000


@settings(deadline=None)
@given(st.floats(1e-12, 1e12), st.floats(1.0001, 1e20))
def test_a_log_axis_has_two_to_eight_labels(low: float, factor: float) -> None:
    from matplotlib.figure import Figure

    axis = Figure().subplots().xaxis
    axis.axes.set_xscale("log")
    axis.axes.set_xlim(low, low * factor)
    multiples.log_ticks(axis, low, low * factor)
    shown = [t for t in axis.get_major_locator()() if low <= t <= low * factor]
    assert len(shown) <= 8
    if factor > 1.3:
        assert len(shown) >= 2
    assert len({multiples.tick_text(t) for t in shown}) == len(shown)


@pytest.mark.parametrize("axis", lines.X_AXES)
def test_every_axis_can_be_drawn(store: Store, axis: str) -> None:
    add_rows(store, rows([3.0, 2.0, 1.0]))
    results = lines.gather(store.directory)
    pictures = plots.draw_all(results, axis=axis, tau=50.0).pictures
    expected = (
        "(oracle calls + ½ values) × 50 + inner steps"
        if axis == "cost"
        else plots.AXIS_TITLES[axis]
    )
    assert pictures[0].title == f"Loss against {expected}"
