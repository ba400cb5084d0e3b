"""The page as a reader meets it: opened from disk in headless Chromium.

Outside CI a machine without Chromium skips these tests with the reason; in CI (CI=true) they fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report_directory import (
    CALLS,
    HOSTILE,
    INNER,
    LOSSES,
    METHODS,
    PROBLEMS,
    add_rows,
    make,
    make_exact,
    write_plan,
)
from targetopt.lab.report import page as report
from targetopt.lab.report import palette
from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.statistics import profiles, verdicts
from targetopt.lab.statistics.alignment import align
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.store.directory import Store
from targetopt.lab.studies.paper import page as theory_page

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real curves: two problems, two batch sizes, two rules, a method that diverges."""
    directory = tmp_path_factory.mktemp("grid")
    make(directory, methods=[METHODS[k] for k in (0, 1, 4, 6, 7)], seeds=3, epochs=4)
    verdicts.write(
        directory, [Verdict("SSO needs fewer calls", "holds", {"ratio": 3.2}, 12, "sign")]
    )
    return report.write(directory, figures=False)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers a test can foresee: one seed of A, three of B, and a name full of HTML."""
    directory = tmp_path_factory.mktemp("exact")
    make_exact(directory)
    return report.write(directory, figures=False)


def readout(page: Any, label: str) -> dict[str, str]:
    """The legend's row of one method: value, band and x as shown."""
    row = page.locator("#legend tr").filter(has=page.get_by_text(label, exact=True))
    return {name: row.locator(f".{name}").inner_text() for name in ("value", "band", "x")}


def number(text: str) -> float:
    """A number as the page writes it: narrow spaces between thousands, a true minus sign."""
    return float(text.replace("\u202f", "").replace("−", "-"))


def walk(page: Any, label: str) -> list[tuple[float, float]]:
    """Every (x, value) of a method, read with the arrow keys from left to right."""
    page.locator("#chart").focus()
    page.keyboard.press("Escape")
    seen: list[tuple[float, float]] = []
    where = ""
    while True:
        page.keyboard.press("ArrowRight")
        last, where = where, page.locator("#readout-where").text_content()
        if where == last:
            return seen
        here = readout(page, label)
        pair = (number(here["x"]), number(here["value"]))
        if pair not in seen:
            seen.append(pair)


def line_count(page: Any, index: int) -> int:
    return int(page.locator(f'#chart g.line[data-method="{index}"]').count())


# ---- it opens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["grid", "exact"])
def test_opens_without_errors_or_requests(open_page: Open, request: Any, which: str) -> None:
    path = request.getfixturevalue(which)
    page = open_page(path)
    assert page.locator("#chart g.line path").first.get_attribute("d").startswith("M")
    assert page.locator("h1").count() == 1
    assert page.wrong == []


def test_every_control_can_be_used_without_errors(open_page: Open, grid: Path) -> None:
    page = open_page(grid)
    for control in ("panel", "metric", "axis", "middle", "band", "rows"):
        options = page.locator(f"#{control} option").evaluate_all("all => all.map(o => o.value)")
        assert len(options) >= 2
        for option in options:
            page.locator(f"#{control}").select_option(option)
            assert page.locator("#chart g.line").count() >= 5
    for box in ("x-log", "y-log", "seeds"):
        page.locator(f"#{box}").click()
        assert page.locator("#chart g.line").count() >= 5
    page.locator("summary").evaluate_all("all => all.forEach(s => s.click())")
    assert page.wrong == []


def test_small_multiples_are_problems_by_batch_sizes(open_page: Open, grid: Path) -> None:
    page = open_page(grid)
    assert page.locator("#multiples h4").all_inner_texts() == [p["label"] for p in PROBLEMS]
    titles = page.locator("#multiples .cell span").all_inner_texts()
    assert titles == ["batch 25", "full batch"] * 2
    page.locator("#rows").select_option("rules")
    rules = page.locator("#multiples h4").all_inner_texts()
    assert rules == ["SSO", "SSO-SLS"]
    counts = page.locator("#multiples svg").evaluate_all(
        "all => all.map(s => s.querySelectorAll('.line').length)"
    )
    assert counts == [
        5,
        5,
        4,
        4,
    ]  # SGD, SLS and the one that diverges everywhere; its own variants once
    page.locator("#rows").select_option("problems")
    page.locator("#multiples .cell").nth(3).click()
    assert page.locator("#panel").input_value() == "3"


# ---- the controls do what they say -----------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 10, 250, 10_000])
def test_tau_makes_x_calls_times_tau_plus_inner_steps(
    open_page: Open, exact: Path, tau: int
) -> None:
    page = open_page(exact)
    page.locator("#tau-number").fill(str(tau))
    page.locator("#tau-number").press("Enter")
    assert page.locator("#axis").input_value() == "cost"
    expected = [(c * tau + i, v) for c, i, v in zip(CALLS, INNER, LOSSES, strict=True) if c > 0]
    assert walk(page, "A") == expected
    assert f"× {tau:,}".replace(",", "\u202f") in page.locator("#chart .title").first.text_content()


def test_tau_slider_is_logarithmic_and_moves_by_keyboard(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    slider = page.locator("#tau")
    for place, tau in ((0, 1), (1, 10), (2, 100), (2.5, 316), (4, 10_000)):
        slider.fill(str(place))
        assert number(page.locator("#tau-number").input_value()) == tau
        assert number(readout(page, "A")["x"]) == CALLS[-1] * tau + INNER[-1]
    slider.press("Home")
    assert page.locator("#tau-number").input_value() == "1"
    slider.press("End")
    assert page.locator("#tau-number").input_value() == "10000"
    assert slider.get_attribute("aria-valuetext") == "τ = 10\u202f000"


@pytest.mark.parametrize(
    ("axis", "title", "xs"),
    [
        ("oracle_calls", "oracle calls", CALLS),
        ("inner_steps", "inner steps", INNER),
        ("epoch", "epochs", [c / 8 for c in CALLS]),
        ("wall_time", "wall time (s)", [0, 0.5, 1, 1.5, 2]),
    ],
)
def test_axis_switch(open_page: Open, exact: Path, axis: str, title: str, xs: list[float]) -> None:
    page = open_page(exact)
    page.locator("#axis").select_option(axis)
    assert page.locator("#chart .title").first.text_content() == title
    assert page.locator("#readout-x").text_content() == title
    assert walk(page, "A") == list(zip(xs, LOSSES, strict=True))[1:]
    page.locator("#x-log").uncheck()  # a linear axis has room for the start
    assert walk(page, "A") == list(zip(xs, LOSSES, strict=True))


def test_metric_switch(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    assert page.locator("#y-log").is_checked()
    page.locator("#metric").select_option("accuracy")
    assert page.locator("#chart .title").last.text_content() == "accuracy"
    assert not page.locator("#y-log").is_checked()  # accuracies are read on a linear axis
    assert number(readout(page, "A")["value"]) == pytest.approx(1 - LOSSES[-1] / 5)


def test_median_and_band_over_seeds(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    shown = readout(page, "B")
    assert number(shown["value"]) == 3 * LOSSES[-1]
    assert [number(end) for end in shown["band"].split(" … ")] == [2.5 * LOSSES[-1], 4 * LOSSES[-1]]
    assert readout(page, "A")["band"] == ""
    page.locator("#middle").select_option("mean")
    assert number(readout(page, "B")["value"]) == pytest.approx(
        (2 + 3 + 5) / 3 * LOSSES[-1], rel=1e-3
    )
    page.locator("#band").select_option("range")
    assert [number(e) for e in readout(page, "B")["band"].split(" … ")] == [
        2 * LOSSES[-1],
        5 * LOSSES[-1],
    ]
    assert page.locator("#chart .band").count() == 1
    page.locator("#seeds").check()
    assert page.locator("#chart .trace").count() == 1 + 3 + 1


def test_hiding_by_click_and_by_keyboard(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    button = page.get_by_role("button", name="B", exact=True)
    assert line_count(page, 1) == 1
    before = page.locator("#multiples .line").count()
    button.click()
    assert line_count(page, 1) == 0
    assert page.locator("#multiples .line").count() == before - 1
    assert button.get_attribute("aria-pressed") == "false"
    assert readout(page, "B")["value"] == ""
    button.focus()
    page.keyboard.press("Space")
    assert line_count(page, 1) == 1
    assert page.evaluate("document.activeElement.textContent") == "B"  # focus stays where it was
    page.keyboard.press("Enter")
    assert line_count(page, 1) == 0
    page.locator("#show-all").click()
    assert line_count(page, 1) == 1
    assert page.wrong == []


def test_hover_shows_the_nearest_recorded_point(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    chart = page.locator("#chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    middle = box["y"] + box["height"] / 2
    seen = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.99):
        x = box["x"] + share * box["width"]
        page.mouse.move(x, middle)
        here = readout(page, "A")
        pair = (number(here["x"]), number(here["value"]))
        assert pair in list(zip(CALLS, LOSSES, strict=True))
        # The dots sit on the lines, at most half a gap (a factor √2 of 8) away from the mouse.
        dots = chart.locator("circle.cursor").evaluate_all(
            "all => all.map(d => +d.getAttribute('cx'))"
        )
        width = float(chart.get_attribute("viewBox").split()[2])
        right = float(chart.locator(".frame").get_attribute("d").partition("H")[2])  # names beyond
        inside = min(max(share * width, 62), right)
        assert min(abs(dot - inside) for dot in dots) < (right - 62) / 6 + 5
        seen.append(pair[0])
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 8)
    page.mouse.move(box["x"] + 5, box["y"] - 40)
    assert page.locator("#readout-where").text_content() == "at the end"


def test_a_touch_leaves_the_values_to_be_read(open_page: Open, exact: Path) -> None:
    page = open_page(exact, viewport={"width": 375, "height": 800}, has_touch=True)
    chart = page.locator("#chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.touchscreen.tap(box["x"] + 64, box["y"] + 60)
    assert number(readout(page, "A")["x"]) == 1
    assert number(readout(page, "A")["value"]) == 2.0


def test_log_and_linear(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    page.locator("#metric").select_option("gap")  # 3.5, 1.5, 0.5, 0, −0.25
    page.locator("#y-log").check()
    note = page.locator("#chart-note")
    assert "at or below 0" in note.text_content()
    path = page.locator('#chart g.line[data-method="0"] path').first
    page.locator("#y-log").uncheck()
    assert note.text_content() == ""
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+),", path.get_attribute("d"))]
    assert len(xs) == 4
    page.locator("#x-log").uncheck()
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+),", path.get_attribute("d"))]
    np.testing.assert_allclose(np.diff(xs) / (xs[-1] - xs[0]), np.diff(CALLS) / 8, atol=2e-3)


def test_page_and_library_agree_on_curves_over_seeds(open_page: Open, exact: Path) -> None:
    """The page's alignment and quantiles are those of bench.statistics, diverged runs included."""
    page = open_page(exact)
    rng = np.random.default_rng(0)
    for _ in range(20):
        xs = [
            np.sort(rng.choice(50, rng.integers(2, 9), replace=False)).tolist()
            for _ in range(rng.integers(1, 6))
        ]
        ys = [np.where(rng.random(len(x)) < 0.1, np.inf, rng.random(len(x))).tolist() for x in xs]
        lost = (rng.random(len(xs)) < 0.3).tolist()
        runs = [
            {"x": x, "y": y, "over": np.inf if gone else y[-1]}
            for x, y, gone in zip(xs, ys, lost, strict=True)
        ]
        curve = page.evaluate("runs => aggregate(runs, 'quartiles')", runs)
        grid, values = align(xs, ys, diverged=lost)
        np.testing.assert_array_equal(curve["x"], grid)
        for name, q in (("low", 0.25), ("mid", 0.5), ("high", 0.75)):
            np.testing.assert_allclose(curve[name], statistics.quantile(values, q), rtol=1e-12)


def test_cost_chart_names_the_cheapest_method(open_page: Open, exact: Path, grid: Path) -> None:
    page = open_page(exact)
    assert page.locator("#cost-winners").text_content() == "Cheapest: A at every τ."
    page.get_by_role("button", name="A", exact=True).click()
    assert "A at" not in page.locator("#cost-winners").text_content()
    assert "Cheapest" in open_page(grid).locator("#cost-winners").text_content()


def test_page_and_library_agree_on_profiles(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    rng = np.random.default_rng(0)
    for _ in range(20):
        methods, seeds, panels = rng.integers(1, 5, 3)
        costs = rng.integers(1, 6, (panels, methods, seeds)).astype(float)
        costs[rng.random(costs.shape) < 0.2] = np.inf
        found = page.evaluate("panels => profiles(panels)", costs.tolist())
        factors, shares = profiles.shares_of(list(costs))
        np.testing.assert_allclose(found["factors"], factors, rtol=1e-15)
        np.testing.assert_allclose(found["shares"], shares, rtol=1e-12)


def test_profiles_follow_tau_and_the_methods_shown(
    open_page: Open, exact: Path, grid: Path
) -> None:
    assert not open_page(exact).locator("#profile").is_visible()  # a single panel
    page = open_page(grid)
    picture, note = page.locator("#profile-chart"), page.locator("#profile-note")
    lines = picture.locator("g.line").count()
    assert lines > 2
    assert "τ = 100:" in note.text_content()
    assert "4 panels" in note.text_content()
    page.locator("#tau-number").fill("7")
    page.locator("#tau-number").press("Enter")
    assert "τ = 7:" in note.text_content()
    page.locator("#legend button").first.click()
    assert picture.locator("g.line").count() == lines - 1


def test_commands_are_copied(open_page: Open, grid: Path) -> None:
    page = open_page(grid, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#reproduce summary").first.click()
    command = page.locator("#reproduce .command").first
    command.get_by_role("button").click()
    command.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == command.locator("code").text_content()
    assert copied.startswith("targetopt run")


# ---- text stays text -------------------------------------------------------------------------------


def test_html_in_names_stays_text(open_page: Open, exact: Path) -> None:
    page = open_page(exact)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("#legend button").last.inner_text() == HOSTILE
    assert page.locator("#panel option").first.inner_text() == f"problem {HOSTILE}, full batch"
    assert page.locator("#multiples span").inner_text() == f"problem {HOSTILE}, full batch"
    assert HOSTILE in page.locator("#failures").inner_text()
    page.locator("#legend button").last.click()
    assert page.wrong == []


# ---- every page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["grid", "exact"])
def test_phone_has_no_sideways_scroll(open_page: Open, request: Any, which: str) -> None:
    page = open_page(request.getfixturevalue(which), viewport={"width": 375, "height": 812})
    page.locator("summary").evaluate_all(
        "all => all.forEach(s => { s.parentElement.open = true; })"
    )
    page.locator("#axis").select_option("cost")
    widths = page.evaluate(
        "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    )
    assert widths == [375, 375, 375]
    chart = page.locator("#chart").bounding_box()
    assert 300 < chart["width"] <= 375


def colours(page: Any) -> tuple[str, str, str]:
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    ink = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    return (
        background,
        ink,
        page.locator('#chart g.line[data-method="0"] path').first.get_attribute("stroke"),
    )


def test_dark_and_light_follow_the_system_and_the_button(open_page: Open, grid: Path) -> None:
    style = palette.style(METHODS[0])
    light, dark = open_page(grid, color_scheme="light"), open_page(grid, color_scheme="dark")
    assert colours(light) == ("rgb(255, 255, 255)", "rgb(28, 32, 38)", style.light)
    assert colours(dark) == ("rgb(20, 23, 28)", "rgb(230, 233, 238)", style.dark)
    light.locator("#theme").click()
    dark.locator("#theme").click()
    assert colours(light) == ("rgb(20, 23, 28)", "rgb(230, 233, 238)", style.dark)
    assert colours(dark) == ("rgb(255, 255, 255)", "rgb(28, 32, 38)", style.light)
    light.locator("#theme").click()
    assert colours(light)[2] == style.light
    dark.emulate_media(color_scheme="light")  # the reader's choice outlives the system's change
    assert colours(dark)[2] == style.light


def test_everything_has_a_name_a_screen_reader_can_say(open_page: Open, grid: Path) -> None:
    page = open_page(grid)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, svg[role=img], [role=region]')]
            .filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim())
            .map(e => e.outerHTML)"""
    )
    assert nameless == []
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert (
        page.locator("#chart")
        .get_attribute("aria-label")
        .startswith("loss against oracle calls on")
    )
    assert page.locator("html").get_attribute("lang") == "en"


def attack(place: str) -> str:
    """A name that runs a script in every context that does not escape it, and says where it was."""
    run = f"window.attacked='{place}'"
    return (
        f'{place} </script></style></title><script>{run}</script><img src=x onerror="{run}">'
        f'<a href="javascript:{run}" onmouseover="{run}">x</a>\'"-->${{{run}}}{{{{{run}}}}}\u2028'
    )


def test_no_name_and_no_message_runs_a_script(tmp_path: Path, open_page: Open) -> None:
    """Every string that a specification, a plugin or an error may bring is text on the page."""
    store = Store(tmp_path)
    store.prepare()
    metric = attack("metric")
    rows = [
        {
            "step": t,
            "oracle_calls": t,
            "inner_steps": t,
            "epoch": t,
            "loss": 1.0 / t,
            metric: 2.0 / t,
        }
        for t in (1, 2, 3)
    ]
    problem = {
        "name": attack("problem"),
        "label": attack("problem label"),
        attack("key"): attack("p"),
    }
    shared = {"problem": problem, "rule": attack("rule"), attack("option"): attack("value")}
    made = [
        add_rows(store, rows, label=attack("label"), seed=seed, name="sso", **shared)
        for seed in (0, 1)
    ]
    reason = f"{attack('reason')}\nTraceback (most recent call last):\n{attack('traceback')}"
    for status in ("failed", "diverged", "timeout"):
        seed = 10 + len(made)
        made.append(
            add_rows(store, rows, label="B", seed=seed, status=status, reason=reason, **shared)
        )
    for run in made:
        path = store.manifest_path(run)
        manifest = json.loads(path.read_text())
        manifest |= {
            "versions": {attack("package"): attack("version")},
            "machine": {attack("part"): attack("machine")},
            "commit": attack("commit"),
            "started": attack("started"),
            "command": attack("command"),
        }
        path.write_text(json.dumps(manifest))
    panel = attack("panel")
    write_plan(store, made, panels=["main", panel])
    (tmp_path / "spec.toml").write_text(f"name = {json.dumps(attack('title'))}\n")
    judged = Verdict(
        attack("claim"), "holds", {attack("number"): attack("figure")}, 1, attack("test")
    )
    verdicts.write(tmp_path, [judged])
    page = open_page(report.write(tmp_path))
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    for control in page.locator("select").all():
        for value in control.evaluate("element => [...element.options].map(o => o.value)"):
            if control.is_visible():
                control.select_option(value)
    for button in page.locator("#curves button:visible").all():
        button.click()
    assert page.evaluate("window.attacked") is None
    assert page.wrong == []
    # Nothing came of it that a looser policy would have run: our two scripts, and no picture or link of theirs.
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(e => ![...e.attributes].some(a => /^on/.test(a.name)))"
    )
    text = page.locator("body").inner_text()
    for place in (
        "title",
        "problem label",
        "label",
        "metric",
        "reason",
        "traceback",
        "claim",
        "version",
    ):
        assert f"{place} </script>" in text, place


def test_the_page_of_a_theory_figure_runs_no_script(tmp_path: Path, open_page: Open) -> None:
    (tmp_path / "figures").mkdir()
    judged = Verdict(
        attack("claim"), "holds", {attack("number"): attack("figure")}, 1, attack("test")
    )
    verdicts.write(tmp_path, [judged])
    page = open_page(theory_page.write(tmp_path, attack("title")))
    assert page.evaluate("window.attacked") is None
    assert page.wrong == []
    assert page.locator("script").count() == 0
    assert page.locator("img").count() == 0
    assert "claim </script>" in page.locator("body").inner_text()
