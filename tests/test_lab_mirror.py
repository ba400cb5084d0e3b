"""Mirror descent on policies by its name in specifications."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt.distributions import Categorical, ForwardKL, KLProximity
from targetopt.imitation.policies.base import Policy
from targetopt.lab import Experiment, expand, problems
from targetopt.lab.problems.imitation import ImitationProblem
from targetopt.lab.run.imitation import ImitationSession
from targetopt.lab.spec.methods import Sso
from targetopt.lab.spec.problem_options import load_problem

ROOT = Path(__file__).parents[1]


OPTIONS = {
    "environment": "CartPole-v1", "expert": "ppo", "held_out": 40, "episodes": 1, "copies": 2, "burn_in": 0
}  # fmt: skip


def cartpole() -> ImitationProblem:
    problem = problems.get("imitation", **OPTIONS)
    assert isinstance(problem, ImitationProblem)
    return problem


def test_the_rule_measures_by_kl_between_policies_where_there_are_some() -> None:
    method = Sso(rule="mirror-descent", lr=1.0)
    on_choices = method.make_rule(cartpole(), 20)
    assert on_choices == to.MirrorDescent(KLProximity(Categorical(2)))
    assert Sso().make_rule(cartpole(), 20) == to.GradientStep()


def test_on_targets_without_a_policy_it_is_the_gradient_step() -> None:
    """Measured by the squared distance: the same parameters, to the bit."""
    found = []
    for rule in (to.registry.rules["mirror-descent"].item, to.GradientStep()):
        w = torch.linspace(-1.0, 1.0, 4, dtype=torch.float64).requires_grad_()
        opt = to.SSO([w], lr=0.3, rule=rule, inner=to.Armijo(max_steps=5))
        for _ in range(3):
            opt.step(lambda w=w: w**3, to.LossOracle(to.losses.Squared(torch.ones(4).double())))
        found.append(w.detach())
    assert torch.equal(*found)


def test_a_step_of_one_is_the_loss_of_odds_itself() -> None:
    """KL from the expert's odds has the curvature of KL from the last policy: at η = 1 the surrogate is the loss."""
    problem = cartpole()
    model = problem.model(0)
    assert isinstance(model, Policy)
    states, labels = problem.measurement.states, problem.measurement.labels
    assert labels.shape == (40, 2)
    loss = model.loss(labels)
    assert isinstance(loss, ForwardKL)
    z = torch.from_numpy(model.numpy()(states))
    point = to.LossOracle(loss).query(z)
    rule = Sso(rule="mirror-descent", lr=1.0).make_rule(problem, 20)
    surrogate = rule.propose(point, 1.0, 1.0, {}).surrogate
    other = z + torch.from_numpy(np.random.default_rng(0).standard_normal(z.shape))
    torch.testing.assert_close(
        surrogate.value(other), loss.value(other).mean(), rtol=1e-12, atol=1e-12
    )


def test_the_example_is_a_grid_that_can_run() -> None:
    runs = expand(Experiment.read(ROOT / "examples" / "mirror_policies.toml"))
    assert len(runs) == 7 * 5
    assert any(getattr(run.method, "rule", "") == "mirror-descent" for run in runs)


@pytest.mark.parametrize("rule", ["mirror-descent", "gradient-step"])
def test_a_run_goes_on_bitwise(rule: str) -> None:
    """A session that was put away in the middle ends as one that was not."""
    method = {"name": "sso", "rule": rule, "inner": "adam", "m": 3, "lr": 1.0}
    problem = {"name": "imitation", **OPTIONS}
    [run] = expand(Experiment(problems=[problem], methods=[method], epochs=3, batch_size=20))

    def session() -> ImitationSession:
        opened = load_problem(run.problem).session(run)
        assert isinstance(opened, ImitationSession)
        return opened

    whole = session()
    for step in range(2):
        whole.advance(step, step + 1)
    first = session()
    first.advance(0, 1)
    again = session()
    again.load_state_dict(first.state_dict())
    again.advance(1, 2)
    for ours, theirs in zip(
        whole.training.policy.parameters(), again.training.policy.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
