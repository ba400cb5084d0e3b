"""The imitation figures: at smoke scale from end to end, their grids, and their claims on constructed results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from targetopt.lab import Store, expand
from targetopt.lab.report.lines import Line, gather
from targetopt.lab.report.plots import Cell
from targetopt.lab.spec.grid import resolve
from targetopt.lab.store.directory import Run
from targetopt.lab.studies.imitation import claims as oil_claims
from targetopt.lab.studies.imitation.claims import (
    ALONG,
    DRASTIC,
    FRESH,
    HELD_OUT,
    RETURN,
    Attains,
    Better,
    Instead,
    MoreSteps,
)
from targetopt.lab.studies.imitation.pictures import _beside_sgd
from targetopt.lab.studies.imitation.references import _key
from targetopt.lab.studies.paper import figures, runtimes
from targetopt.lab.studies.paper.evidence import ADAM, SGD, SSO, Evidence, Methods, NotJudged
from targetopt.lab.studies.paper.judging import ALWAYS, PLAINLY, judge
from targetopt.lab.studies.paper.predicates import contest
from targetopt.lab.studies.paper.publish import publish
from targetopt.lab.studies.paper.reproduce import Reproduction, reproduce
from targetopt.lab.studies.paper.runtimes import On

FIGURES = ["fig1-oil", "fig3-runtime"]
LONG_LANE = [
    "figA-oil-mlp",
    "figA-oil-linear",
    "figA-oil-long",
    "oil-quiet",
    "oil-mirror",
    "oil-control",
]
"""Halves of the first figure, and the first figure once more with other numbers."""

# ---- at smoke scale --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reproduction]:
    """Those of the ordinary lane, done as one."""
    out = tmp_path_factory.mktemp("imitation")
    made = reproduce(FIGURES, out, scale="smoke", jobs=2, draw=False)  # but for their own pictures
    return {done.figure: done for done in made}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_at_smoke_scale(name: str, found: dict[str, Reproduction]) -> None:
    check(found[name])


@pytest.mark.slow
def test_the_other_figures_at_smoke_scale(found: dict[str, Reproduction]) -> None:
    home = Store(found["fig1-oil"].directory).home
    for done in reproduce(LONG_LANE, home, scale="smoke", jobs=2, draw=False):
        check(done)


def check(done: Reproduction) -> None:
    name = done.figure
    assert done.summary is not None
    assert not {"failed", "timeout"} & done.summary.statuses.keys(), done.summary.troubles
    assert done.summary.left == 0
    assert [verdict.claim for verdict in done.verdicts] == [c.says for c in oil_claims.CLAIMS[name]]
    # at smoke scale nobody gathers 1000 states or walks in two dimensions; nothing else may stay open
    for verdict in done.verdicts:
        if verdict.verdict == "not judged":
            open_ones = ("1000 states", "τ", "on Walker2d-v5")
            assert any(words in verdict.claim for words in open_ones), verdict
            assert verdict.test
        else:
            assert verdict.n
            assert verdict.numbers
            assert "round" in verdict.test
    drawn = ["oil-runtime"] if name == "fig3-runtime" else ["oil-loss", "oil-return"]
    page = (done.directory / "report.html").read_text()
    for picture in drawn:
        assert f"figures/{picture}.png" in page
        for suffix in ("png", "pdf"):
            assert (done.directory / "figures" / f"{picture}.{suffix}").stat().st_size > 10_000


@pytest.mark.slow
def test_every_further_picture_can_be_drawn(found: dict[str, Reproduction]) -> None:
    """The fast tests have those of the paper; the same painter draws the others."""
    home = Store(found["fig1-oil"].directory).home
    for done in reproduce([*FIGURES, *LONG_LANE], home, scale="smoke", jobs=1):
        for picture in (done.directory / "figures").glob("oil-*.png"):
            assert f"figures/{picture.name}" in (done.directory / "report.html").read_text()
            assert picture.stat().st_size > 10_000
            assert picture.with_suffix(".pdf").stat().st_size > 10_000


def test_the_appendix_shows_the_runs_of_the_first_figure(found: dict[str, Reproduction]) -> None:
    possible = {
        name: {run.id for run in resolve(figures.load(name, "smoke").experiment).possible()}
        for name in ("fig1-oil", "figA-oil-mlp", "figA-oil-linear")
    }
    assert possible["figA-oil-mlp"] | possible["figA-oil-linear"] == possible["fig1-oil"]
    home = Store(found["fig1-oil"].directory).home
    planned = [{entry["id"] for entry in Store(done.directory).plan()} for done in found.values()]
    assert planned[0] <= possible["fig1-oil"]
    assert set(Store(home).ended()) == set().union(*planned)


def test_what_is_recorded(found: dict[str, Reproduction]) -> None:
    for run in Store(found["fig1-oil"].directory).shown():
        rounds = run.manifest["epochs"]
        assert run.columns["step"].tolist() == list(range(rounds + 1))  # every round
        assert run.columns["oracle_calls"][-1] == rounds
        assert np.isfinite(run.columns["held_out_loss"]).all()
        assert np.isfinite(run.columns["mean_return"][[0, -1]]).all()


def test_references_are_the_best_of_a_class(found: dict[str, Reproduction]) -> None:
    home = Store(found["fig1-oil"].directory).home
    entries = json.loads((home / "references.json").read_text())
    linear = {key: entry for key, entry in entries.items() if ", linear, " in key}
    assert all("closed form" in entry["how"] for entry in linear.values())
    assert entries["Hopper-v5, sac, mean_return"]["value"] > 3000
    assert all(entry["value"] > 0 for entry in entries.values())


def test_again_it_has_nothing_to_do(found: dict[str, Reproduction]) -> None:
    done = found["fig3-runtime"]
    home = Store(done.directory).home
    stamps = {path: path.stat().st_mtime_ns for path in (home / "runs").iterdir()}
    [again] = reproduce(["fig3-runtime"], home, scale="smoke", jobs=1, draw=False)
    assert again.verdicts == done.verdicts
    assert {path: path.stat().st_mtime_ns for path in (home / "runs").iterdir()} == stamps


def test_results_are_published(found: dict[str, Reproduction], tmp_path: Path) -> None:
    shown = [found[name] for name in ("fig1-oil", "fig3-runtime")]
    publish(shown, tmp_path, scale="smoke")
    assert "Hopper, online, MLP" in (tmp_path / "fig1-oil" / "README.md").read_text()
    drawn = found["fig1-oil"].directory / "figures" / "oil-loss.png"
    with Image.open(drawn) as before, Image.open(tmp_path / "fig1-oil" / "oil-loss.png") as after:
        colours = [np.asarray(image.convert("RGB"), dtype=int) for image in (before, after)]
    changed = np.abs(colours[0] - colours[1])
    assert changed.max() < 48  # no line takes the colour of another
    assert changed.mean() < 0.5  # nor any band
    assert (tmp_path / "fig3-runtime" / "oil-runtime.png").exists()


# ---- grids -----------------------------------------------------------------------------------------


def test_the_first_figure_at_paper_scale_is_the_paper_s() -> None:
    runs = resolve(figures.load("fig1-oil", "paper").experiment).runs
    panels = {tuple(run.problem[k] for k in ("environment", "behaviour", "policy")) for run in runs}
    assert panels == {
        (environment, behaviour, policy)
        for environment in ("Hopper-v5", "Walker2d-v5")
        for behaviour in ("cloning", "online")
        for policy in ("linear", "mlp")
    }
    assert {(run.epochs, run.batch_size) for run in runs} == {(50, 1000)}
    assert {run.seed for run in runs} == {0, 1, 2}
    main = [run for run in runs if "main" in run.panels]
    steps = {run.method.resolved()["m"] for run in main if run.method.name == "sso"}
    assert steps == {1, 10, 100, 1000}
    assert {run.method.name for run in main} == {"sgd", "sls", "adam", "adagrad", "sso"}
    assert {run.problem["expert"] for run in runs} == {"sac"}
    assert all(run.problem["std"] == 1.0 and run.problem["episodes"] >= 10 for run in runs)


def test_tuned_methods_have_five_values_and_a_seed_of_their_own() -> None:
    for name in ("fig1-oil", "figA-oil-long"):
        grid = resolve(figures.load(name, "paper").experiment)
        assert {len(tuned.values) for tuned in grid.tuned} == {5}
        trials = {trial.seed for tuned in grid.tuned for trial in tuned.trials}
        shown = {run.seed for tuned in grid.tuned for runs in tuned.shown for run in runs}
        assert not trials & shown


def test_the_same_is_asked_of_experts_of_another_family() -> None:
    first, second = (
        resolve(figures.load(name, "paper").experiment).known()
        for name in ("fig1-oil", "fig1-oil-ppo")
    )
    assert {run.problem["expert"] for run in second} == {"ppo"}
    assert len(first) == len(second)
    assert oil_claims.CLAIMS["fig1-oil"] == oil_claims.CLAIMS["fig1-oil-ppo"]


def test_the_long_figure_and_the_times() -> None:
    long = expand(figures.load("figA-oil-long", "paper").experiment)
    shown = [run for run in long if run.panels]
    assert {(run.problem["environment"], run.problem["policy"]) for run in long} == {
        ("Walker2d-v5", "linear")
    }
    assert {run.epochs for run in shown} == {500}
    times = expand(figures.load("fig3-runtime", "paper").experiment)
    assert {run.batch_size for run in times} == {10, 100, 1000}
    assert {run.problem["gatherer"] for run in times} == {"torch", "auto"}
    assert {run.method.resolved()["m"] for run in times if run.method.name == "sso"} == {1, 10, 100}


# ---- claims on constructed results -----------------------------------------------------------------

Columns = Mapping[str, Sequence[float]]


def add(
    out: Path,
    label: str,
    columns: Columns | None,
    *,
    panels: Sequence[str] = ("main",),
    batch: int = 1000,
    seeds: int = 3,
    **options: str,
) -> None:
    """Add the runs of a method ("sso 10 armijo" or "sgd") as a runner would have left them.

    ``columns`` are the same for every seed; None is a method that diverges.
    """
    store = Store(out / "fig")
    store.prepare()
    name, *rest = label.split()
    method: dict[str, Any] = {"name": name, "lr": "theory"}
    if rest:
        method["m"] = int(rest[0])
    if name == "sso":
        method |= {"rule": "gradient-step", "inner": rest[1] if rest[1:] else "armijo"}
    problem = {"name": "imitation", "policy": "mlp", "gatherer": "auto", **options}
    plan = store.plan()
    for seed in range(seeds):
        config = {"problem": problem, "method": method, "batch_size": batch, "epochs": 4}
        key = hashlib.sha256(json.dumps([config, list(panels), seed]).encode()).hexdigest()[:16]
        given = columns or {"loss": [1.0]}
        rows = [
            {
                "step": k,
                **dict.fromkeys(("oracle_calls", "value_calls", "inner_steps"), k),
                **dict.fromkeys(("forward_calls", "backward_calls"), k),
                "epoch": float(k),
                "wall_time": 0.0,
                **{column: values[k] for column, values in given.items()},
            }
            for k in range(len(next(iter(given.values()))))
        ]
        manifest = {
            "id": key,
            "attempt": 1,
            "reason": "",
            "status": "diverged" if columns is None else "done",
            "problem": {**problem, "label": json.dumps(problem)},
            "method": {**method, "label": label},
            "config": config,
            "panels": list(panels),
            "seed": seed,
            "batch_size": batch,
            "epochs": 4,
        }
        store.save(manifest, rows)
        entry = {"id": key, "problem": manifest["problem"]["label"], "method": label}
        plan.append({**entry, "batch_size": batch, "seed": seed, "panels": list(panels)})
    (store.directory / "plan.json").write_text(json.dumps(plan))


def losses(*values: float) -> dict[str, list[float]]:
    return {"loss": [1.0, *values], "held_out_loss": [1.0, *(v / 10 for v in values)]}


def evidence(out: Path) -> Evidence:
    return Evidence(out, "fig")


def verdict(out: Path, predicate: Any, asks: float = PLAINLY) -> str:
    return judge("c", predicate, asks, evidence(out)).verdict


def test_losses_are_averaged_over_the_last_rounds_or_all(tmp_path: Path) -> None:
    run_losses = [8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.25, 0.5, 2.0]
    add(tmp_path, "sgd", losses(*run_losses))
    [case] = evidence(tmp_path).cases(SGD)
    assert case.measure(FRESH.of) == pytest.approx([1.0] * 3)  # √(0.5 · 2)
    assert case.measure(HELD_OUT.of) == pytest.approx([0.1] * 3)
    overall = np.exp(np.log(run_losses).mean())
    assert case.measure(ALONG.of) == pytest.approx([overall] * 3)


@pytest.mark.parametrize(
    ("ours", "plain", "drastic"),
    [
        (0.40, "holds", "holds"),
        (0.60, "holds", "does not hold"),
        (0.995, "mixed", "does not hold"),
        (1.5, "does not hold", "does not hold"),
        (None, "does not hold", "does not hold"),
    ],
)
def test_better_and_drastically_better(
    tmp_path: Path, ours: float | None, plain: str, drastic: str
) -> None:
    add(tmp_path, "sso 10", None if ours is None else losses(*[ours] * 4))
    add(tmp_path, "sgd", losses(*[1.0] * 4))
    add(tmp_path, "adam", losses(*[3.0] * 4))
    against = contest(SSO, SGD, ADAM)
    assert verdict(tmp_path, Better(against)) == plain
    assert verdict(tmp_path, Better(against, ALONG, DRASTIC)) == drastic


def test_two_diverged_runs_are_even(tmp_path: Path) -> None:
    add(tmp_path, "sso 10", None)
    add(tmp_path, "sgd", None)
    judged = judge("c", Better(contest(SSO, SGD)), PLAINLY, evidence(tmp_path))
    assert judged.numbers["share"] == 0.5


def test_more_steps_are_compared_with_the_next_fewer(tmp_path: Path) -> None:
    for m, loss in ((1, 0.9), (10, 0.5), (100, 0.2), (1000, 0.3)):
        add(tmp_path, f"sso {m}", losses(*[loss] * 4))
    judged = judge("c", MoreSteps(SSO), PLAINLY, evidence(tmp_path))
    assert judged.numbers["share"] == pytest.approx(2 / 3)
    assert judged.n == 9
    assert str(judged.numbers["worst case"]).startswith("sso 1000")
    assert "4 rounds, 3 seeds" in judged.test


def test_returns_are_compared_by_their_share_of_the_expert_s(tmp_path: Path) -> None:
    def shares(*values: float) -> dict[str, list[float]]:
        return {"loss": [1.0] * len(values), "return_share": list(values)}

    nan = float("nan")
    add(tmp_path, "sso 10", shares(0.0, 0.95, nan, 0.4, nan))
    add(tmp_path, "sgd", shares(0.0, 0.0, nan, 0.395, nan))
    add(tmp_path, "adam", shares(0.0, 0.1, nan, 0.2, nan))
    assert verdict(tmp_path, Better(contest(SSO, ADAM), RETURN)) == "holds"
    assert verdict(tmp_path, Better(contest(SSO, SGD), RETURN)) == "mixed"  # within one per cent
    assert verdict(tmp_path, Better(contest(SGD, ADAM), RETURN)) == "holds"
    assert verdict(tmp_path, Attains(SSO, 0.9), ALWAYS) == "holds"
    judged = judge("c", Attains(SGD, 0.9), ALWAYS, evidence(tmp_path))
    assert (judged.verdict, judged.numbers["share"]) == ("false as stated", 0.0)
    assert "40%" in str(judged.numbers["worst case"]).replace(" ", "")


def test_the_control_is_compared_at_the_same_number_of_steps(tmp_path: Path) -> None:
    add(tmp_path, "sso 10", losses(*[0.5] * 4))
    add(tmp_path, "sso 100", losses(*[0.1] * 4))
    control = (oil_claims.CONTROL,)
    add(tmp_path, "adam-m 10", losses(*[0.6] * 4), panels=control)
    add(tmp_path, "adam-m 100", losses(*[0.05] * 4), panels=control)
    rivals = Methods("adam-m", panel=oil_claims.CONTROL)
    judged = judge("c", Better(contest(SSO, rivals)), PLAINLY, evidence(tmp_path))
    assert judged.numbers["cases: yes, even, no"] == "1, 0, 1"
    assert judged.numbers["median ratio of losses"] == pytest.approx((0.5 / 0.6 + 2.0) / 2)


def test_kept_states_are_compared_with_forgotten_ones_on_the_same_problem(tmp_path: Path) -> None:
    for environment, kept, forgotten in (("Hopper-v5", 0.2, 0.4), ("Walker2d-v5", 0.6, 0.3)):
        panel = {"environment": environment}
        add(tmp_path, "sso 10", losses(*[kept] * 4), **panel, data="all")
        add(tmp_path, "sso 10", losses(*[forgotten] * 4), **panel, data="round")
    asked = Instead(SSO, On(options={"data": "all"}), {"data": "round"}, HELD_OUT)
    judged = judge("c", asked, PLAINLY, evidence(tmp_path))
    assert judged.numbers["cases: yes, even, no"] == "1, 0, 1"
    assert judged.numbers["median ratio of losses"] == pytest.approx((0.5 + 2.0) / 2)


def times(gathering: float, updating: float) -> dict[str, list[float]]:
    slow = [gathering * factor for factor in (1.0, 1.0, 1.0, 50.0)]  # one round was disturbed
    return {
        "loss": [1.0] * 5,
        "gathering_time": [float("nan"), *slow],
        "updating_time": [float("nan"), *[updating] * 4],
    }


def test_times_are_medians_beside_sgd_s(tmp_path: Path) -> None:
    for states, gathering in ((10, 0.005), (1000, 0.5)):
        for label, updating in (("sgd", 0.005), ("sso 10", 0.05), ("sso 100", 0.5)):
            add(tmp_path, label, times(gathering, updating), batch=states, gatherer="torch")
    found = {
        claim.says: claim.judge(evidence(tmp_path))
        for claim in runtimes.RUNTIME_CLAIMS
        if "batched" not in claim.says
    }
    by_words = {
        "almost 50": ("measured here", 50.5),
        "about three": ("measured here", 1.98),
        "(m = 10, 1000 states)": ("holds", 1.089),
        "(m = 100, 1000 states)": ("does not hold", 1.98),
        "about 1000": ("measured here", 100.0),
    }
    for words, (expected, value) in by_words.items():
        [judged] = [v for says, v in found.items() if words in says]
        measured = next(iter(judged.numbers.values()))
        assert measured == pytest.approx(value, rel=1e-3)
        assert judged.verdict == expected
    [falls] = [v for says, v in found.items() if "dominate" in says]
    assert (falls.verdict, falls.numbers["share"]) == ("holds", 1.0)
    batched = next(c for c in runtimes.RUNTIME_CLAIMS if "batched" in c.says)
    with pytest.raises(NotJudged):
        batched.judge(evidence(tmp_path))


def test_a_reference_is_of_its_own_noise() -> None:
    def run(**options: object) -> Run:
        usual = {"environment": "Hopper-v5", "expert": "sac", "policy": "mlp", "std": 1.0}
        problem = {**usual, "behaviour": "online", "noise": None, **options}
        return Run({"problem": problem, "batch_size": 1000, "epochs": 50}, {})

    keys = [_key(each, "loss") for each in (run(), run(noise=0.3), run(std=0.2))]
    assert len(set(keys)) == 3
    assert keys[0] == "Hopper-v5, sac, mlp, online, 50000 states"


def test_step_times_are_compared_seed_by_seed(found: dict[str, Reproduction]) -> None:
    results = gather(found["fig3-runtime"].directory)
    panel = results.panels[0]
    cell = Cell(row=0, column=0, panel=panel, lines=panel.lines)
    whole = _beside_sgd(results, cell)
    [sgd] = [i for i in whole if results.methods[i].options["name"] == "sgd"]
    assert (whole[sgd] == 1.0).all()
    shifted = [
        Line(line.method, [replace(run, manifest={**run.manifest, "seed": 7}) for run in line.runs])
        if line.method != sgd
        else line
        for line in panel.lines
    ]
    assert set(_beside_sgd(results, Cell(row=0, column=0, panel=panel, lines=shifted))) == {
        sgd
    }  # no seed in common
    without = [line for line in panel.lines if line.method != sgd]
    assert _beside_sgd(results, Cell(row=0, column=0, panel=panel, lines=without)) == {}
