"""What single fields do to save calls: one question a step, what is remembered, and runs that go on bit for bit."""

import io

import pytest
import torch

import targetopt as to
from targetopt.lab import Experiment, SpecError, expand, problems
from targetopt.lab.spec.problem_options import load_problem

PATH = {"name": "shortest-path", "size": "smoke"}
TEACHER = {"name": "distillation", "size": "smoke"}
ATTACK = {"name": "adversarial-digits", "size": "smoke", "steps": 4}
CASES = {
    "solution-pool": PATH,
    "bought": {**TEACHER, "batch_size": 40},
    "free-attack": ATTACK,
    "fast-attack": ATTACK,
}


def made(problem: dict, method: dict, epochs: int = 3):
    if problem is PATH:
        pytest.importorskip("pyepo", reason="the extra [decisions] is not installed")
    [config] = expand(Experiment(problems=[problem], methods=[method], epochs=epochs))
    return load_problem(config.problem).session(config)


def advance(session, start: int, stop: int) -> list[dict]:
    found = []
    for step in range(start, stop):
        session.advance(step, stop)
        found += session.records()
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_step_asks_once_and_learns(name: str) -> None:
    session = made(CASES[name], {"name": name, "lr": 0.01, "m": 4})
    records = advance(session, 0, 3)
    assert [record["oracle_calls"] for record in records] == [1, 2, 3]
    assert session.counts.oracle_calls == 3
    assert records[-1]["loss"] < records[0]["loss"]
    passes = {"free-attack": 4, "fast-attack": 2}.get(name, 4)
    assert session.counts.inner_steps == 3 * passes


@pytest.mark.parametrize("name", CASES)
def test_a_saved_run_goes_on_bit_for_bit(name: str) -> None:
    method = {"name": name, "lr": 0.01, "m": 3}
    whole = made(CASES[name], method)
    advance(whole, 0, 3)
    first = made(CASES[name], method)
    advance(first, 0, 2)
    file, random = io.BytesIO(), torch.get_rng_state()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = made(CASES[name], method)
    second.load_state_dict(torch.load(file, weights_only=True))
    torch.set_rng_state(random)
    advance(second, 2, 3)
    for mine, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_pool_only_grows_and_bounds_the_loss_from_below() -> None:
    session = made(PATH, {"name": "solution-pool", "m": 3})
    advance(session, 0, 1)
    before = session.trainer.known
    advance(session, 1, 3)
    after = session.trainer.known
    assert {tuple(row) for row in before.tolist()} <= {tuple(row) for row in after.tolist()}
    problem = session.problem
    z = problem.forward(session.model)().detach()
    assert (problem.pooled(z, after) <= problem.oracle().query(z).losses + 1e-12).all()


def test_everything_bought_is_adam_on_the_loss_of_those_rows() -> None:
    session = made({**TEACHER, "batch_size": "full"}, {"name": "bought", "lr": 0.01, "m": 5})
    advance(session, 0, 1)
    problem = session.problem
    model = problem.model(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimiser.zero_grad()
        logits = model(problem.data.images)
        (-(problem.taught * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()).backward()
        optimiser.step()
    for mine, other in zip(session.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


def test_rows_bought_are_remembered() -> None:
    session = made(CASES["bought"], {"name": "bought", "m": 2})
    advance(session, 0, 2)
    assert len(session.trainer.known) == 80  # two batches of 40, of 100
    state = session.state_dict()
    state["trainer"]["known"] = torch.tensor([0, 1000])
    with pytest.raises(to.TargetoptError, match="rows of this problem"):
        made(CASES["bought"], {"name": "bought", "m": 2}).load_state_dict(state)


@pytest.mark.parametrize(
    ("method", "match"),
    [("solution-pool", "feasible for every instance"), ("free-attack", "needs an attack")],
)
def test_tricks_are_refused_where_they_mean_nothing(method: str, match: str) -> None:
    experiment = Experiment(problems=[{"name": "breast_cancer"}], methods=[{"name": method}])
    with pytest.raises(SpecError, match=match):
        expand(experiment)
    assert "breast_cancer" in problems.names()
