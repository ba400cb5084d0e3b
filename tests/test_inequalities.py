"""Variational inequalities: monotone operators with known solutions, and oracles without losses."""

import pytest
import torch

import targetopt as to
from targetopt.lab import Experiment, expand, problems
from targetopt.lab.spec.grid import SpecError

NAMES = ("hidden-game", "td-evaluation")


@pytest.fixture(params=NAMES)
def problem(request: pytest.FixtureRequest) -> problems.Problem:
    return problems.get(request.param, size="smoke")


def test_f_vanishes_at_the_solution_is_strongly_monotone_and_has_its_l(problem) -> None:
    z = problem.solution
    assert problem.oracle().query(z).gradients.abs().max() < 1e-12
    symmetric = (problem.operator.matrix + problem.operator.matrix.T) / 2
    assert torch.linalg.eigvalsh(symmetric)[0] > 0
    a, b = (torch.randn(z.shape, dtype=torch.float64) for _ in range(2))
    change = problem.operator.at(a) - problem.operator.at(b)
    assert change.norm() <= problem.operator.smoothness * (a - b).norm()


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_of_the_stated_size_and_the_same_for_the_same_question(name: str) -> None:
    exact = problems.get(name, size="smoke")
    z = exact.forward(exact.model(0))().detach()
    true = exact.oracle().query(z).gradients
    errors = []
    for seed in range(40):
        oracle = problems.get(name, size="smoke", noise=0.2).oracle()
        asked = z + 1e-9 * seed
        found = oracle.query(asked).gradients
        assert torch.equal(found, oracle.query(asked).gradients)
        errors.append(found - true)
    lengths = torch.stack(errors).flatten(1).norm(dim=1) / true.norm()
    assert float(lengths.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)
    assert float(torch.stack(errors).mean(dim=0).norm() / true.norm()) < 0.1  # right on average
    noisy = problems.get(name, size="smoke", noise=0.2)
    assert noisy.metrics(noisy.model(0)) == exact.metrics(exact.model(0))  # measured exactly


def test_the_values_of_a_policy_are_those_of_bellmans_equation() -> None:
    problem = problems.get("td-evaluation", size="smoke", gamma=0.7)
    often = problem.weights * 2
    assert float(often.sum()) == pytest.approx(1.0)
    assert (often > 0).all()
    # F(v) = n·D(v − r − γPv): from any v, v − F/(n·d) is r + γPv, whose fixed point is the solution
    v = torch.randn(20, dtype=torch.float64)
    for _ in range(200):
        v = v - problem.operator.at(v) / (20 * often)
    torch.testing.assert_close(v, problem.solution, rtol=1e-10, atol=1e-10)


def test_one_gradient_step_on_the_surrogate_is_the_semi_gradient_step(problem) -> None:
    ours, plain = problem.model(0), problem.model(0)
    eta, size = 0.3, 0.05
    opt = to.SSO(ours.parameters(), lr=eta, inner=to.GradientDescent(size, max_steps=1))
    opt.step(problem.forward(ours), problem.oracle())
    z = problem.forward(plain)()
    rows = len(z)
    (z * problem.oracle().query(z.detach()).gradients / rows).sum().backward()
    for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other - size * other.grad, rtol=1e-13, atol=1e-15)


def test_with_nothing_chosen_it_works_without_losses(problem, capsys) -> None:
    model = problem.model(0)
    opt = to.SSO(model.parameters(), inner=to.LBFGS(max_steps=30))
    begin = problem.metrics(model)["loss"]
    for _ in range(60):
        opt.step(problem.forward(model), problem.oracle())
    assert problem.metrics(model)["loss"] < 0.1 * begin
    opt.explain()
    said = capsys.readouterr().out
    assert "GradientStep" in said
    assert "no losses" in said


def test_without_an_l_it_takes_steps_by_the_gradients_seen(capsys) -> None:
    problem = problems.get("td-evaluation", size="smoke")
    model = problem.model(0)

    class Blind:
        def query(self, z):
            return to.types.TargetPoint(z.clone(), None, problem.operator.at(z))

    opt = to.SSO(model.parameters(), inner=to.LBFGS(max_steps=30))
    begin = problem.metrics(model)["loss"]
    for _ in range(30):
        opt.step(problem.forward(model), Blind())
    assert problem.metrics(model)["loss"] < 0.1 * begin
    opt.explain()
    assert "AdaGradNorm" in capsys.readouterr().out


@pytest.mark.parametrize(
    "method", [{"name": "adam", "lr": 0.01}, {"name": "sso-auto", "price": 10.0}]
)
def test_runs_of_the_engine_record_the_distance_after_every_question(problem, method) -> None:
    table = {
        "problems": [{"name": problem.name, "size": "smoke"}],
        "methods": [method],
        "epochs": 4,
    }
    [config] = expand(Experiment(**table))
    session = problem.session(config)
    found = []
    for step in range(4):
        session.advance(step, 4)
        found += session.records()
    assert [record["oracle_calls"] for record in found] == [1, 2, 3, 4]
    assert all(record["loss"] > 0 for record in found)


def test_methods_that_compare_losses_are_refused_in_advance() -> None:
    for method in (
        {"name": "lbfgs"},
        {"name": "sls-questions"},
        {"name": "sso", "rule": "trust-region"},
    ):
        table = {
            "problems": [{"name": "hidden-game", "size": "smoke"}],
            "methods": [method],
            "epochs": 3,
        }
        with pytest.raises(SpecError, match="loss"):
            expand(Experiment(**table))


@pytest.mark.parametrize("options", [{"size": "huge"}, {"tau": 0.0}, {"tau": 2.0}, {"noise": -1.0}])
def test_bad_options_are_refused(options: dict) -> None:
    with pytest.raises(to.TargetoptError, match=r"size|tau|noise"):
        problems.get("hidden-game", **options)
