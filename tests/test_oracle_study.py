"""The study of oracles: levels and scores by hand, lists that grow, a whole small study, and its page."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.cli.main import make
from targetopt.lab.problems.base import Problem, seeded
from targetopt.lab.run.economy import Cost, economy, total
from targetopt.lab.run.job import Job, perform
from targetopt.lab.statistics import verdicts
from targetopt.lab.studies.oracles import arms, claims, findings, page, study, suite
from targetopt.lab.studies.oracles.arms import Arm, Tune
from targetopt.lab.studies.oracles.choosing import Search, judge
from targetopt.lab.studies.oracles.measures import Course, break_even, levels, ratio, score

INF = math.inf


def course(*lowest: float) -> Course:
    calls = np.arange(1.0, len(lowest) + 1)
    return Course(calls, np.array(lowest), 0.1 * calls)


def test_a_course_counts_every_question_within_the_budget() -> None:
    columns = {
        "oracle_calls": np.array([1, 2, 2, 3, 9]),
        "value_calls": np.array([0, 0, 1, 1, 1]),
        "loss": np.array([5.0, 7.0, 3.0, 4.0, 0.0]),
        "method_time": np.array([0.5, 0.5, 0.5, 1.0, 2.0]),
    }
    found = Course.of(columns, budget=4)
    np.testing.assert_array_equal(found.calls, [1, 2, 3, 4])
    np.testing.assert_array_equal(found.lowest, [5, 5, 3, 3])
    np.testing.assert_array_equal(found.beside, [0.5, 0.5, 0.5, 1.0])
    assert found.reached(3.0) == (3.0, 0.5)
    assert Course.of({name: column[:0] for name, column in columns.items()}, 4) is None


def test_levels_scores_and_ratios_by_hand() -> None:
    slow, fast = course(11.0, 6.0, 1.9, 1.9), course(11.0, 1.05, 1.0, 1.0)
    budget = 4
    goals = levels([slow, fast], 2 * budget)
    np.testing.assert_allclose(goals, [2.0, 1.1, 1.01])
    np.testing.assert_allclose(levels([slow, fast], budget)[0], 1.05 + 0.1 * 9.95)
    assert score(fast, goals, budget)[0] == pytest.approx(np.log([2, 2, 3]).mean())
    assert score(slow, goals, budget)[0] == pytest.approx(np.log([3, 8, 8]).mean())
    assert score(None, goals, budget) > score(slow, goals, budget)
    assert ratio(3.0, 2.0, budget) == (1.5, "")
    assert math.isnan(ratio(INF, INF, budget)[0])
    # at the break-even price both cost the same
    price = break_even((10.0, 8.0), (60.0, 3.0))
    assert 10 * price + 8 == pytest.approx(60 * price + 3)
    assert break_even((INF, INF), (3.0, 1.0)) == INF
    assert break_even((3.0, 1.0), (INF, INF)) == 0.0


def searched(best: float, factor: float, count: int = 7) -> Search:
    """A search whose score has its minimum at ``best``."""
    tune = Tune("lr", arms.spaced(1e-3, factor, count))
    search = Search.of(Arm("a", {"name": "adam"}, "rival", tune))
    for _ in range(20):
        tried = {
            ("a", value): [course(2.0, 1.0 + abs(math.log(value / best)))]
            for value in search.values
        }
        judge([search], tried, budget=2)
        if search.settled:
            break
        search.go_on()
    return search


@pytest.mark.parametrize("best", [1e-6, 1e-3, 0.03, 1e3])
@pytest.mark.parametrize("factor", [10**0.5, 10.0])
def test_lists_grow_until_the_best_lies_inside(best: float, factor: float) -> None:
    search = searched(best, factor)
    assert search.settled
    assert not search.at_edge
    assert max(search.best / best, best / search.best) <= min(factor, 10**0.5) ** 0.5 * 1.01
    assert len(search.values) >= 7
    assert search.values == sorted(set(search.values))
    assert search.record()["inside"]


def test_rehearsals_try_the_ends_of_the_list() -> None:
    search = Search.of(arms.RIVALS[0], most=2)
    assert search.values == [arms.RIVALS[0].tune.values[0], arms.RIVALS[0].tune.values[-1]]


class Valley(Problem):
    """A badly scaled quadratic of a linear map, through an oracle that gives gradients only."""

    expensive = True

    def __init__(self, size: str) -> None:
        self.label = f"valley, {size}"
        self.scale = torch.logspace(0, 2, 4, dtype=torch.float64)

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: nn.Linear(1, 4))

    def forward(self, model, index=None):
        x = torch.ones(1, 1, dtype=torch.float64)
        return lambda: model(x)

    def oracle(self, index=None):
        return to.GradientOracle(
            lambda z: ((0.5 * self.scale * (z - 1) ** 2).sum(dim=1), self.scale * (z - 1))
        )

    def metrics(self, model):
        with torch.no_grad():
            z = self.forward(model)()
        return {"loss": float((0.5 * self.scale * (z - 1) ** 2).sum())}


@pytest.fixture
def valley(monkeypatch: pytest.MonkeyPatch) -> Iterator[suite.Task]:
    """A small task, run by the engine in this process."""
    problems.register("valley", "for tests")(lambda size="smoke": Valley(size))
    task = suite.Task("valley", "a valley", "a formula", {"name": "valley"}, suite.calls(8, 8, 8))
    suite.tasks()  # the others are known by now, and are added to no other table
    monkeypatch.setattr(suite, "TASKS", {"valley": task})
    monkeypatch.setattr(page, "tasks", lambda wanted=(): [task])
    monkeypatch.setattr(study, "tasks", lambda wanted=(): [task])
    monkeypatch.setattr(findings, "tasks", lambda wanted=(): [task])
    monkeypatch.setattr(study, "run_all", in_process)
    everybody = suite.EVERYBODY - {"rule"}
    monkeypatch.setitem(
        suite.EXTENTS, "quick", suite.Extent(2, 1, None, everybody, price=10.0, fewer=1, patience=2)
    )
    monkeypatch.setattr(suite, "RIVALS", (arms.RIVALS[0], arms.RIVALS[2]))
    monkeypatch.setattr(suite, "ABLATIONS", arms.ABLATIONS[1:2])
    yield task
    problems.unregister("valley")


DONE: list[str] = []


def in_process(plans, **settings):
    for plan in plans:
        plan.store.prepare()
        plan.write()
        for config in plan.wanted():
            if plan.store.manifest(config.id) is None:
                DONE.append(config.id)
                job = Job(str(plan.store.home.resolve()), config.id, config, attempt=1, command="")
                perform(job, stop=lambda: False, tell=lambda event: None)
    return [plan.summary(interrupted=False) for plan in plans]


def costs(out: Path) -> dict[str, Cost]:
    plans = study.foreseen(out, scale="quick")
    return economy({"/".join(place): plan for place, plan in plans.items()})


def test_what_a_study_will_take_is_told_before_it_begins(valley, tmp_path: Path) -> None:
    out = tmp_path / "study"
    found = costs(out)
    assert not out.exists()  # nothing is written
    assert {name: cost.runs for name, cost in found.items()} == {
        "valley/trials": 1,  # the default, for the levels
        "valley/trials/rivals": 2 * 7,
        "valley/": 2,
        "valley/rivals": 2 * 2,
        "valley/parts": 1,
    }
    assert all(cost.done == 0 < cost.seconds for cost in found.values())
    with pytest.raises(to.TargetoptError, match="must be one of"):
        study.foreseen(out, scale="large")


def test_a_whole_study_tunes_shows_judges_and_resumes(valley, tmp_path: Path) -> None:
    DONE.clear()
    out = tmp_path / "study"
    summaries = study.run(out, scale="quick")
    assert len(summaries) == 3  # SSO, rivals with more calls, and parts with fewer seeds
    assert all(set(summary.statuses) <= {"done", "diverged"} for summary in summaries)
    tuned = json.loads((out / "valley" / "choices.json").read_text())
    assert {each["arm"] for each in tuned} == {"Adam", "L-BFGS"}
    assert all(each["inside"] and len(each["tried"]) >= 7 for each in tuned)

    count = len(DONE)
    assert len(set(DONE)) == count
    study.run(out, scale="quick")
    assert len(DONE) == count  # nothing is done twice
    left = total(costs(out))
    assert left == Cost(runs=count, own=count, done=count, seconds=0)  # lists have grown
    ablation = DONE.pop()
    (out / "runs" / f"{ablation}.json").unlink()
    left = total(costs(out))
    assert (left.runs - left.done, left.seconds > 0) == (1, True)
    study.run(out, scale="quick")
    assert DONE.pop() == ablation

    entry = study.Entry.of(valley, "quick")
    assert set(entry.shown()) == {"", "rivals", "parts"}
    assert entry.shown()["rivals"].problems[0]["epochs"] == 16  # twice the calls of SSO
    assert entry.shown()["parts"].seeds == [0]
    _, [task] = findings.gather(out)
    numbers = {arm.role: len(arm.lowest) for arm in task.arms}
    assert numbers == {"default": 2, "rival": 2, "ablation": 1}
    assert max(calls for calls, _ in task.best(1, "rival").spent) == 16
    assert task.own.spent[0][0] == 8
    assert task.runs == 7

    first = page.write(out)
    text = first.read_text()
    assert text.startswith("# Which method needs the fewest oracle calls?\n\n![")
    assert "2 seeds at the quick scale" in text
    pictures = sorted(path.name for path in first.parent.glob("*.png"))
    assert pictures == ["ablations.png", "overview.png", "prices.png"]
    again = page.write(out, tmp_path / "published")
    assert again.read_bytes() == first.read_bytes()  # redrawn from the runs alone
    found = json.loads((tmp_path / "published" / "findings.json").read_text())
    assert found["tasks"][0]["name"] == "valley"
    judged = verdicts.read(tmp_path / "published")
    assert any(v.claim.startswith("a valley: the default") for v in judged)
    assert any("no metric" in v.claim for v in judged)

    with pytest.raises(to.TargetoptError, match="holds the study at scale 'quick'"):
        study.run(out, scale="smoke")
    with pytest.raises(to.TargetoptError, match="holds no study"):
        findings.gather(tmp_path / "nothing")


def test_problems_that_were_published_before_stay_on_the_page(
    valley, tmp_path: Path, monkeypatch
) -> None:
    """Two machines, a problem on each: the page has both, with the numbers of each, and says which is whose."""
    hill = dataclasses.replace(valley, name="hill", title="a hill")
    page_of = tmp_path / "published"
    for task in (hill, valley):
        monkeypatch.setitem(suite.TASKS, task.name, task)
        monkeypatch.setattr(study, "tasks", lambda wanted=(), task=task: [task])
        study.run(tmp_path / task.name, scale="quick")
    for module in (page, findings):
        monkeypatch.setattr(module, "tasks", lambda wanted=(): [valley, hill])
    page.write(tmp_path / "hill", page_of)
    assert "Not run yet: a valley." in (page_of / "README.md").read_text()
    page.write(tmp_path / "valley", page_of)
    text = (page_of / "README.md").read_text()
    assert "Not run yet" not in text
    assert text.index("### a valley") < text.index("### a hill")
    whole = json.loads((page_of / "findings.json").read_text())
    alone = [findings.gather(tmp_path / name)[1][0] for name in ("valley", "hill")]
    assert whole["tasks"] == json.loads(json.dumps([task.record() for task in alone]))
    assert [findings.TaskFindings.read(each) for each in whole["tasks"]] == alone
    lost = made(
        "lost", [20, 40, INF], [10, 20, 30], [40, 80, INF]
    )  # infinities are null in the file
    assert (
        findings.TaskFindings.read(json.loads(json.dumps(lost.record(), allow_nan=False))) == lost
    )
    assert set(json.loads((page_of / "choices.json").read_text())) == {"valley", "hill"}
    assert sum(task.made["runs"] for task in alone) == int(re.search(r"All (\d+) runs", text)[1])

    before = {path.name: path.read_bytes() for path in page_of.iterdir()}
    page.write(tmp_path / "valley", page_of)  # made again: it takes the place of what was there
    assert {path.name: path.read_bytes() for path in page_of.glob("*.json")} == {
        name: data for name, data in before.items() if name.endswith(".json")
    }
    monkeypatch.setitem(suite.EXTENTS, "full", suite.EXTENTS["quick"])
    study.run(tmp_path / "large", scale="full")
    with pytest.raises(to.TargetoptError, match="has the study at scale 'quick'"):
        page.write(tmp_path / "large", page_of)
    assert (page_of / "README.md").read_bytes() == before["README.md"]


def made(
    name: str, own: list[float], rival: list[float], ablation: list[float]
) -> findings.TaskFindings:
    def arm(label: str, role: str, calls: list[float]) -> findings.Found:
        return findings.Found(
            label,
            role,
            None,
            [[c] * 3 for c in calls],
            [[0.1] * 3 for _ in calls],
            [1.0] * 3,
            [1.0] * 3,
            [(100.0, 2.0)] * 3,
            {"done": 3},
        )

    listed = [
        arm("SSO default", "default", own),
        arm("Adam", "rival", rival),
        arm("m = 5", "ablation", ablation),
    ]
    return findings.TaskFindings(name, name, "a solve", 100, 3, 0.01, listed)


def test_lost_cases_are_verdicts_of_their_own_and_stand_first() -> None:
    won = made("won", [5, 10, 20], [20, 40, 100], [10, 20, 40])
    lost = made("lost", [20, 40, INF], [10, 20, 30], [40, 80, INF])
    mixed = made("mixed", [10, 20, 30], [20, 20, 20], [10, 20, 30])
    judged = claims.judge([won, lost, mixed])
    assert [v.verdict for v in judged[3:6]] == ["does not hold", "mixed", "holds"]
    aims = judged[:3]
    assert [v.verdict for v in aims] == ["does not hold"] * 3
    assert aims[2].numbers["smallest ratio"] == pytest.approx(0.5)
    assert judged[6].numbers["median ratio"] == pytest.approx(2.0)
    assert won.middle_ratio("rival") == pytest.approx(4.0)
    assert lost.ratio(2, "rival") == (0.3, "≤")
    assert won.price_ratio(10.0, "rival") == pytest.approx(4.0, rel=1e-2)
    text = page.text("quick", [won, lost], judged)
    assert "to level 0.001, Adam needs 30 calls and SSO — (SSO did not get there)" in text


def test_the_suite_is_whole() -> None:
    listed = suite.tasks()
    assert len(listed) >= 12
    for task in listed:
        declared = problems.declaration(task.problem["name"])
        assert declared.expensive, task.name
        assert set(task.problem) - {"name"} <= set(declared.options)
        assert set(task.calls) == set(suite.EXTENTS)
    with pytest.raises(to.TargetoptError, match="Did you mean 'knapsack'"):
        suite.tasks(["knapsak"])


def test_the_command_runs_reports_and_lists(valley, tmp_path: Path) -> None:
    def invoke(*words: object) -> str:
        runner = CliRunner(env={"COLUMNS": "200"})
        result = runner.invoke(make(), [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    words = ("oracles", "run", "--scale", "smoke", "--out", tmp_path / "rehearsal")
    said = invoke(*words, "--dry-run")
    assert re.search(
        r"valley +14 +0 ", said
    )  # four tuned arms, two rules of SSO among them, and the default
    assert "Every setting" not in said
    assert not (tmp_path / "rehearsal").exists()
    said = invoke(*words)
    assert "Every setting is chosen" in said
    assert "README.md" in said.replace("\n", "")
    invoke("oracles", "report", tmp_path / "rehearsal", "--publish", tmp_path / "page")
    assert "a rehearsal and no evidence" in (tmp_path / "page" / "README.md").read_text()
    listed = invoke("list", "problems", "--oracle")
    assert "knapsack" in listed
    assert "mbb-beam" in listed
    assert "mushrooms" not in listed
