"""Tuned methods: what is tried, what is chosen, what is shown; and figures beside the main one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from targetopt.lab import Experiment, SpecError, Store, expand, run
from targetopt.lab.report import lines
from targetopt.lab.report import page as report
from targetopt.lab.run import tuning
from targetopt.lab.run.plan import Plan
from targetopt.lab.run.runner import run_all
from targetopt.lab.spec.grid import resolve
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.studies.paper.evidence import Evidence, Methods, NotJudged
from targetopt.types import BadArgument

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))
RATES = [1e-6, 0.1, 1e9]
"""Too short a step to move, a sensible one, one that diverges."""


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "problems": [{"name": "breast_cancer", "loss": "squared"}],
        "methods": [
            {"name": "sgd", "lr": 0.1},
            {"name": "sgd", "tune": {"lr": RATES}},
            {"name": "adam", "tune": {"lr": [1e-3, 1e-2]}, "label": "Adam's best"},
        ],
        "seeds": 2,
        "epochs": 3,
        "batch_size": 64,
        "panels": [{"title": "Tuned", "methods": ["* tuned", "Adam's best"], "also": ["SGD*"]}],
    }
    return Experiment(**{**fields, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned")
    summary = run(experiment(), out, jobs=1)
    # 2 shown SGD, 3 + 2 trials, and the tuned Adam on 2 seeds; the tuned SGD is the shown one
    assert summary.statuses == {"done": 2 + 2 + 2 + 2, "diverged": 1}
    return out


def test_trials_have_a_seed_that_is_never_shown() -> None:
    grid = resolve(experiment(tuning={"epochs": 2}))
    assert [run.seed for run in grid.runs] == [0, 1]
    for tuned in grid.tuned:
        assert {(trial.seed, trial.epochs) for trial in tuned.trials} == {(2, 2)}
        assert all([run.seed for run in runs] == [0, 1] for runs in tuned.shown)
        assert all(run.epochs == 3 for runs in tuned.shown for run in runs)
    assert {run.id for run in expand(experiment(tuning={"epochs": 2}))} == {
        run.id for run in (*grid.runs, *(t for tuned in grid.tuned for t in tuned.trials))
    }
    grid = resolve(experiment(tuning={"seed": 1}))
    assert {trial.seed for tuned in grid.tuned for trial in tuned.trials} == {1}
    assert {run.seed for tuned in grid.tuned for runs in tuned.shown for run in runs} == {0}


def test_the_best_final_value_is_chosen_and_everything_is_recorded(done: Path) -> None:
    store = Store(done)
    sgd, adam = json.loads((done / "tuning.json").read_text())
    assert sgd["chosen"] == {"lr": 0.1}
    assert (sgd["method"], sgd["metric"], sgd["seed"], sgd["epochs"]) == ("SGD tuned", "loss", 2, 3)
    assert not sgd["at_edge"]
    assert adam["method"] == "Adam's best"
    assert adam["at_edge"]
    assert [each["options"]["lr"] for each in sgd["tried"]] == RATES
    assert [each["status"] for each in sgd["tried"]] == ["done", "done", "diverged"]
    for choice in (sgd, adam):
        finals = {}
        for each in choice["tried"]:
            [trial] = store.load([each["id"]])
            assert trial.manifest["seed"] == 2
            if each["status"] == "done":
                assert each["final"] == trial.columns["loss"][-1]
                finals[each["options"]["lr"]] = each["final"]
            else:
                assert each["final"] is None
        assert choice["chosen"]["lr"] == min(finals, key=finals.__getitem__)


def test_a_run_can_be_shown_as_itself_and_as_the_best_of_several(done: Path) -> None:
    results = lines.gather(done)
    assert [method.label for method in results.methods] == [
        "SGD lr=0.1",
        "SGD tuned",
        "Adam's best",
    ]
    plain, tuned = (line for line in results.panels[0].lines[:2])
    assert [r.manifest["id"] for r in plain.runs] == [r.manifest["id"] for r in tuned.runs]
    np.testing.assert_array_equal(plain.runs[0].columns["loss"], tuned.runs[0].columns["loss"])
    assert "lr" not in results.methods[1].options
    assert results.figures == {"main": [0], "Tuned": [0, 1, 2]}
    assert (results.pending, results.superseded) == (0, 0)


def test_the_report_has_the_choices_and_the_further_figure(done: Path) -> None:
    page = report.write(done, figures=False).read_text()
    assert "What tuned methods chose" in page
    assert "lr = 0.1" in page
    assert "(end of the list)" in page
    assert "4 runs (4 done)" in " ".join(page.split())  # a run that is shown twice is one run
    stale, own = done / "figures" / "curves-old.png", done / "figures" / "mine.png"
    stale.parent.mkdir(exist_ok=True)
    for path in (stale, own):
        path.touch()
    report.write(done)
    assert not stale.exists()
    assert own.exists()
    names = {path.stem for path in (done / "figures").glob("*.pdf")}
    assert {"curves-loss", "curves-loss-tuned", "price-loss-batch-64"} <= names


def test_going_on_chooses_the_same_and_a_tuned_run_can_be_redone_alone(
    done: Path, tmp_path: Path
) -> None:
    before = {name: (done / name).read_bytes() for name in ("plan.json", "tuning.json")}
    summary = run(experiment(), done, jobs=1)
    assert summary.total == 9
    assert {name: (done / name).read_bytes() for name in before} == before
    chosen = next(entry for entry in Store(done).plan() if entry["method"] == "Adam's best")
    again = run(Experiment.read(done / "spec.toml"), tmp_path, only=[chosen["id"]], jobs=1)
    assert again.statuses == {"done": 1}
    manifests = [Store(out).manifest(chosen["id"]) for out in (done, tmp_path)]
    assert manifests[0] is not None
    assert manifests[1] is not None
    assert manifests[0]["digest"] == manifests[1]["digest"]
    assert [method.label for method in lines.gather(tmp_path).methods] == ["Adam's best"]


def test_experiments_with_a_common_home_share_their_runs(tmp_path: Path) -> None:
    assignments = []
    for name, method in (("a", "sgd"), ("b", "adagrad")):
        methods = [{"name": method, "lr": 0.1}, {"name": "sgd", "tune": {"lr": [0.01, 0.1]}}]
        store = Store(tmp_path / name)
        store.share(tmp_path)
        assignments.append(Plan(experiment(methods=methods, panels=[]), store))
    first, second = run_all(assignments, jobs=1)
    # 2 trials and 2 chosen runs in common, which are SGD's own; 2 of Adagrad
    assert (first.statuses, second.statuses) == ({"done": 4}, {"done": 6})
    assert len(Store(tmp_path).ended()) == 6
    assert not (tmp_path / "a" / "runs").exists()
    for name, expected in (
        ("a", ["SGD lr=0.1", "SGD tuned"]),
        ("b", ["Adagrad lr=0.1", "SGD tuned"]),
    ):
        results = lines.gather(tmp_path / name)
        assert [method.label for method in results.methods] == expected
        assert (results.pending, results.superseded) == (0, 0)
        assert all(len(line.runs) == 2 for line in results.panels[0].lines)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": [{"name": "sgd", "tune": {"lr": 0.1}}]}, "must be a list of values to try"),
        ({"methods": [{"name": "sgd", "tune": [0.1]}]}, "an alternative|must be a table"),
        ({"methods": [{"name": "sgd", "lr": 1.0, "tune": {"lr": [0.1]}}]}, "has a value already"),
        ({"methods": [{"name": "sgd", "tune": {"label": ["a"]}}]}, "cannot be tuned"),
        ({"methods": [{"name": "sgd", "tune": {"lrr": [0.1]}}]}, "Did you mean 'lr'"),
        ({"methods": [{"name": "sgd", "tune": {"lr": [0.1, -1.0]}}]}, "finite number > 0"),
        ({"seeds": [4], "tuning": {"seed": 4}}, "the only seed"),
        ({"panels": [{"title": "x", "methods": ["SDG*"]}]}, "is the label of no method"),
    ],
)
def test_faults_are_told(changes: dict[str, Any], said: str) -> None:
    fields = {"panels": [], **changes}
    with pytest.raises(SpecError, match=said):
        expand(experiment(**fields))


def test_an_unknown_metric_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"tuning.metric='los' is no metric"):
        run(experiment(tuning={"metric": "los"}), tmp_path, jobs=1)


def test_the_end_of_a_list_is_that_of_an_option() -> None:
    tune = {"lr": [0.01, 0.1, 1.0], "schedule": ["constant", "inverse-sqrt"]}
    [tuned] = resolve(experiment(methods=[{"name": "sgd", "tune": tune}], panels=[])).tuned
    chosen = [tuning.Decision(tuned, "loss", [], place, []).at_edge for place in range(6)]
    assert all(chosen)  # of two values each is an end
    tune = {"lr": [1e-3, 0.1, 1.0]}
    [tuned] = resolve(experiment(methods=[{"name": "sgd", "tune": tune}], panels=[])).tuned
    chosen = [tuning.Decision(tuned, "loss", [], place, []).at_edge for place in range(3)]
    assert chosen == [True, False, True]
    tune = {"lr": [0.01, 0.1, 1.0], "m": [1, 5, 10]}
    [tuned] = resolve(experiment(methods=[{"name": "sso", "tune": tune}], panels=[])).tuned
    middle = [
        tuned.values[place]
        for place in range(9)
        if not tuning.Decision(tuned, "loss", [], place, []).at_edge
    ]
    assert middle == [{"lr": 0.1, "m": 5}]


def test_a_trial_that_fails_is_told_of_and_nothing_is_judged_without_it(tmp_path: Path) -> None:
    trouble = {"name": "tiny", "trouble": "raise", "at": 7}  # in the last epoch of the trials
    methods = [{"name": "adam", "tune": {"lr": [1e-3, 1e-2]}}, {"name": "sgd", "lr": 0.1}]
    out = tmp_path / "fig"
    failing = experiment(
        problems=[trouble], methods=methods, panels=[], plugins=[PLUGIN], batch_size=10, epochs=2,
        tuning={"epochs": 3},
    )  # fmt: skip
    summary = run(failing, out, jobs=1)
    assert summary.statuses == {"done": 2, "failed": 2}
    assert [config.method_label for config in summary.undecided] == ["Adam tuned"]
    with pytest.raises(NotJudged, match="2 of the 4 runs of fig have not ended well"):
        Evidence(tmp_path, "fig").cases(Methods("sgd"))


def test_a_metric_that_does_not_exist_is_told_of_and_runs_are_stopped_in_order(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadArgument, match="is no metric of 'breast_cancer'"):
        run(experiment(tuning={"metric": "charm"}), tmp_path, jobs=2)
    assert not Store(tmp_path).locks.alive()


def test_a_short_trial_is_the_beginning_of_the_run_it_stands_for(tmp_path: Path) -> None:
    for engine in ("torch", "compiled"):
        method = {"name": "sgd", "schedule": "exponential", "tune": {"lr": [0.01, 0.02]}}
        short = experiment(
            methods=[method], panels=[], tuning={"epochs": 2}, epochs=4, engine=engine
        )
        [tuned] = resolve(short).tuned
        assert (tuned.trials[0].horizon, tuned.shown[0][0].horizon) == (4, None)
        whole = dataclasses.replace(tuned.trials[0], epochs=4, horizon=None)
        begun, ended = (
            load_problem(tuned.trials[0].problem).session(tuned.trials[0]),
            load_problem(whole.problem).session(whole),
        )
        assert (begun.total_steps, ended.total_steps) == (18, 36)
        step = 0
        while step < begun.total_steps:
            step = begun.advance(step, begun.total_steps)
        while ended.counts.oracle_calls < begun.counts.oracle_calls:
            ended.advance(ended.counts.oracle_calls, begun.total_steps)
        assert begun.metrics() == ended.metrics()
    constant = {"name": "sgd", "tune": {"lr": [0.01, 0.02]}}
    [tuned] = resolve(experiment(methods=[constant], panels=[], tuning={"epochs": 2})).tuned
    assert tuned.trials[0].horizon is None  # such steps know no end


def test_lists_are_extended_until_the_best_lies_inside(tmp_path: Path) -> None:
    """SGD on a squared loss: from steps far too short, upwards until one is too long."""
    short = {"name": "sgd", "tune": {"lr": [1e-6, 1e-5]}}
    fields = {"methods": [short], "panels": [], "tuning": {"extend": 8}}
    summary = run(experiment(**fields), tmp_path, jobs=1)
    [choice] = tuning.read(tmp_path)
    tried = [each["options"]["lr"] for each in choice["tried"]]
    assert tried[:2] == [1e-6, 1e-5]
    assert np.allclose(np.diff(np.log10(tried)), 1.0)
    assert tried[-2] == choice["chosen"]["lr"]  # one value beyond the best, and none further
    assert not choice["at_edge"]
    assert summary.total == len(tried) + 2  # nothing below 1e-6 was tried; two seeds are shown
    assert not summary.undecided


def test_a_list_that_meets_its_limit_says_so(tmp_path: Path) -> None:
    short = {"name": "sgd", "tune": {"lr": [1e-6, 1e-5]}}
    run(experiment(methods=[short], panels=[], tuning={"extend": 1}), tmp_path, jobs=1)
    [choice] = tuning.read(tmp_path)
    assert [each["options"]["lr"] for each in choice["tried"]] == [1e-6, 1e-5, 1e-4]
    assert choice["chosen"] == {"lr": 1e-4}
    assert choice["at_edge"]
