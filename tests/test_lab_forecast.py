"""Forecasts: what only the first step does is not taken for the pace of all."""

from types import SimpleNamespace

import pytest

from targetopt.lab import Experiment
from targetopt.lab.problems.physics.sparse import SolverFailed
from targetopt.lab.run import forecast
from targetopt.lab.spec.grid import resolve
from targetopt.types import Diverged


class Steps:
    """A session whose first step takes long and which may diverge, on a processor that does nothing else."""

    steps_per_epoch = 10
    records_all = False
    measures_seldom = False
    longest = 10_000
    questions = 1
    failure: Exception = Diverged("far away")

    def __init__(self, total_steps: int = 10_000, diverges_at: int = 10_000) -> None:
        self.total_steps, self.diverges_at, self.advanced = total_steps, diverges_at, 0
        self.spent = 0.0

    def used(self, step: int) -> int:
        return self.questions * step

    def metrics(self) -> None:
        if self.advanced > self.diverges_at:  # as a structure that does not hold
            raise self.failure

    def advance(self, step: int, until: int) -> int:
        until = min(until, step + self.longest)
        self.spent += 0.3 if step == 0 else 1e-3 * (until - step)
        self.advanced = until
        if until > self.diverges_at:
            raise self.failure
        return until


def measured(monkeypatch, session: Steps) -> forecast.Pace:
    problem = SimpleNamespace(session=lambda run: session)
    monkeypatch.setattr(forecast, "load_problem", lambda options: problem)
    monkeypatch.setattr(forecast, "time", SimpleNamespace(process_time=lambda: session.spent))
    return forecast.measure(SimpleNamespace(problem={}))


def test_the_first_step_may_take_longer(monkeypatch):
    session = Steps()
    pace = measured(monkeypatch, session)
    assert pace.step == pytest.approx(1e-3)
    assert session.advanced < 1000  # a few tenths of a second, not the whole run


def test_a_run_that_diverges_is_told_from_what_came_before(monkeypatch):
    assert measured(monkeypatch, Steps(diverges_at=20)).step == pytest.approx(1e-3)


def test_a_solver_that_fails_early_ends_the_timing_and_nothing_else(monkeypatch):
    session = Steps(diverges_at=20)
    session.failure = SolverFailed("a singular mesh")
    assert measured(monkeypatch, session).step == pytest.approx(1e-3)


def test_where_a_step_asks_several_questions_each_has_its_share(monkeypatch):
    session = Steps()
    session.questions = 4
    pace = measured(monkeypatch, session)
    assert pace.step == pytest.approx(1e-3 / 4)
    short = Steps(total_steps=3)  # its first step is more than it was given
    short.questions = 4
    assert measured(monkeypatch, short).step == pytest.approx(0.3 / 4)
    assert short.advanced == 1


def test_a_run_of_one_step_is_that_step(monkeypatch):
    assert measured(monkeypatch, Steps(total_steps=1)).step == pytest.approx(0.3)


def test_sessions_that_go_step_by_step_are_not_run_to_their_end(monkeypatch):
    session = Steps()
    session.longest = 1
    pace = measured(monkeypatch, session)
    assert pace.step == pytest.approx(1e-3)
    assert session.advanced < 1000


def test_where_every_step_is_recorded_every_record_counts():
    assert forecast.Pace(0.0, 1.0, 1, records_all=True).seconds(500) == 501.0
    assert forecast.Pace(0.0, 1.0, 1).seconds(500) == 55.0
    seldom = forecast.Pace(0.0, 1.0, 1, records_all=True, measures_seldom=True)
    assert seldom.seconds(90) == 8.0  # after 1, 2, 4, 8, 16, 32, 64 and 90
    assert seldom.seconds(5) == 4.0


def test_it_says_what_it_is_timing(monkeypatch):
    methods = [{"name": "sgd"}, {"name": "adam"}]
    spec = {"name": "two", "problems": [{"name": "quadratic"}], "methods": methods, "seeds": 2}
    grid = resolve(Experiment(**spec, epochs=2))
    told = []
    monkeypatch.setattr(forecast, "measure", lambda run: forecast.Pace(1.0, 0.0, 1))
    found = forecast.forecast(grid.runs, lambda *what: told.append(what))
    assert told == [(0, 2, "SGD on quadratic"), (1, 2, "Adam on quadratic")]
    assert list(found.values()) == [2.0] * 4
