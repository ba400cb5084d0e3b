"""The rule that uses the upper bound which an oracle reveals, and the compliance's own bound."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.problems.physics.compliance import ComplianceBound, compliance
from targetopt.lab.problems.physics.structures import CASES, Structure
from targetopt.surrogate import Damped

F64 = torch.float64


def bound_at(structure, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.2, 1.0, structure.size)
    answer = compliance(structure, x)
    return x, answer, answer.majoriser(torch.from_numpy(x))


@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_one_and_touches(case):
    """c(x) ≤ q(x) for all x in [0, 1], with equality and the same gradient at x_t."""
    structure = Structure(8, 5, case)
    x, answer, bound = bound_at(structure)
    z = torch.from_numpy(x)
    assert float(bound.value(z)) == pytest.approx(answer.value, rel=1e-9)
    np.testing.assert_allclose(
        bound.gradient(z).numpy() / structure.size, answer.gradient, rtol=1e-9
    )
    rng = np.random.default_rng(1)
    for low in (0.0, 0.1, 0.5):
        for _ in range(7):
            other = rng.uniform(low, 1.0, structure.size)
            true = structure.solve(other).compliance
            assert true <= float(bound.value(torch.from_numpy(other))) * (1 + 1e-9)


def test_the_bounds_derivatives_and_differences():
    _, _, bound = bound_at(Structure(6, 4))
    rng = np.random.default_rng(2)
    for surrogate in (bound, Damped(bound, 0.01)):
        z = torch.from_numpy(rng.uniform(0.2, 0.9, 24)).requires_grad_()
        with torch.enable_grad():
            value = surrogate.value(z)
            (slope,) = torch.autograd.grad(value, z, create_graph=True)
            torch.testing.assert_close(surrogate.gradient(z) / 24, slope)
            v = torch.from_numpy(rng.normal(size=24))
            (bent,) = torch.autograd.grad(slope @ v, z)
        z = z.detach()
        torch.testing.assert_close(surrogate.curvature_product(z, v) / 24, bent)
        other = torch.from_numpy(rng.uniform(0.2, 0.9, 24))
        change = surrogate.change(z, other, surrogate.gradient(z))
        torch.testing.assert_close(change, surrogate.value(other) - surrogate.value(z))
        near = z + 1e-9 * v  # where the values agree in most digits
        expected = float(surrogate.gradient(z) @ (near - z)) / 24
        assert float(surrogate.change(z, near, surrogate.gradient(z))) == pytest.approx(
            expected, rel=1e-6
        )
        with pytest.raises(to.MissingCapability, match="LBFGS"):
            surrogate.minimiser()


@pytest.mark.parametrize("model", ["fourier", "siren", "cnn", "pixels"])
def test_the_compliance_never_rises(model):
    """Majorise and minimise: monotone however few inner steps are taken, and no step size anywhere."""
    problem = problems.get("mbb-beam", size="smoke", model=model)
    net = problem.model(0)
    opt = to.SSO(net.parameters(), rule=to.Majoriser(), inner=to.LBFGS(max_steps=7))
    reports = [opt.step(problem.forward(net), problem.oracle()) for _ in range(10)]
    losses = [r.loss for r in reports]
    assert all(after <= before for before, after in pairwise(losses))
    assert losses[-1] < 0.6 * losses[0]
    assert all(r.eta == math.inf for r in reports)
    assert (opt.totals.oracle_calls, opt.totals.value_calls) == (10, 0)


def test_a_loss_with_known_smoothness_is_bounded_by_its_quadratic():
    """`Majoriser` on labels is `GradientStep` with η = 1/L, bit for bit."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=g, dtype=F64)
    y = torch.randn(20, generator=g, dtype=F64).sign()
    ends = []
    for rule, lr in ((to.Majoriser(), None), (to.GradientStep(), 4.0)):
        w = torch.zeros(3, dtype=F64, requires_grad=True)
        opt = to.SSO([w], lr=lr, rule=rule, inner=to.Armijo(max_steps=5))
        for _ in range(4):
            opt.step(lambda w=w: x @ w, to.LossOracle(to.losses.Logistic(y)))
        ends.append(w.detach())
    assert torch.equal(*ends)


def test_a_finite_lr_holds_it_back():
    """Squared loss: argmin ½(z − 1)² + (1/2η)z² from 0 is η/(1 + η)."""
    w = torch.zeros(1, dtype=F64, requires_grad=True)
    oracle = to.LossOracle(to.losses.Squared(torch.ones(1, dtype=F64)))
    opt = to.SSO([w], lr=0.25, rule=to.Majoriser(), inner=to.LBFGS(max_steps=30))
    assert opt.step(lambda: 1 * w, oracle).eta == 0.25
    assert w.item() == pytest.approx(0.2)


def test_float32_models_are_welcome():
    problem = problems.get("cantilever", size="smoke", model="siren")
    net = problem.model(0).float()
    opt = to.SSO(net.parameters(), rule=to.Majoriser(), inner=to.LBFGS(max_steps=5))
    losses = [opt.step(problem.forward(net), problem.oracle()).loss for _ in range(3)]
    assert losses[-1] < losses[0]


def test_oracles_without_a_bound_are_refused_before_they_are_asked():
    asked = []

    def losses(z):
        asked.append(1)
        return z.square()

    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Majoriser(), inner=to.LBFGS(max_steps=5))
    with pytest.raises(to.MissingCapability, match=r"majoriser.*TrustRegion"):
        opt.step(lambda: 1 * w, losses)
    assert not asked
    noisy = problems.get("mbb-beam", size="smoke", noise=0.01)
    assert noisy.oracle().majoriser is None
    assert "majoriser" not in noisy.reveals


class Wrong:
    """An oracle whose majoriser is something else."""

    def __init__(self, majoriser):
        self.majoriser = majoriser

    def query(self, z):
        point = to.LossOracle(to.losses.Squared(torch.zeros_like(z))).query(z)
        return dataclasses.replace(point, majoriser=self.majoriser)


@pytest.mark.parametrize(
    ("majoriser", "message"),
    [
        (lambda z: z, "must be a targetopt.Surrogate"),
        (ComplianceBound(torch.ones(3, dtype=F64), torch.ones(3, dtype=F64)), "They must be equal"),
    ],
)
def test_a_bound_of_something_else_is_refused(majoriser, message):
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Majoriser(), inner=to.LBFGS(max_steps=5))
    with pytest.raises(to.BadAnswer, match=message):
        opt.step(lambda: 1 * w, Wrong(majoriser))
    assert torch.equal(w.detach(), torch.ones(3, dtype=F64))
    assert opt.totals.oracle_calls == 0


@pytest.mark.parametrize("metric", ["number", "diagonal", "matrix"])
def test_a_damped_quadratic_is_a_quadratic(metric):
    g = torch.Generator().manual_seed(0)
    z, slope, other = torch.randn(3, 5, 2, generator=g, dtype=F64)
    root = torch.randn(5, 2, 2, generator=g, dtype=F64)
    metrics = {
        "number": torch.tensor(2.0, dtype=F64),
        "diagonal": 1 + z.square(),
        "matrix": root @ root.mT + torch.eye(2, dtype=F64),
    }
    plain = to.Quadratic(z, slope, metrics[metric], torch.tensor(1.0, dtype=F64))
    torch.testing.assert_close(plain.damped(0.5).value(other), Damped(plain, 0.5).value(other))
    lowest = plain.damped(0.5).minimiser()
    torch.testing.assert_close(Damped(plain, 0.5).gradient(lowest), torch.zeros_like(z))
