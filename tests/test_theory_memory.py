"""Linear rates: of the rule `Memory` in both kinds, and of full batches under the relative-error test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from noisy_labels import minimised, noisy
from targetopt import theory
from targetopt.linear import Run, backend

F64 = torch.float64
BACKENDS = backend.available()


def potentials(kind, step, weight_decay, n=30, d=3, b=6, runs=60, steps=40):
    """E of the potential after each step, over draws of independent batches, and the constants."""
    A, labels = noisy(n, d, seed=3)
    ridge = 0.2

    def loss(y):
        return to.losses.Ridged(to.losses.Logistic(y), ridge)

    whole = loss(torch.tensor(labels))
    _, best = minimised(whole, A, weight_decay)
    z_best = A @ best
    g_best = whole.gradient(torch.tensor(z_best)).numpy()
    h = theory.leverages(A)
    L, mu = 0.25 + ridge, ridge
    rate = (
        theory.saga_rate(n, b, h.max(), L=L, mu=mu, step=step)
        if kind == "saga"
        else theory.miso_rate(n, b, L=L, mu=mu, step=step)
    )
    means = np.zeros(steps + 1)
    run = Run(
        A,
        labels,
        loss=loss,
        rule=to.Memory(kind),
        inner=to.Exact(),
        lr=rate.step,
        batch_size=b,
        sampling="independent",
        weight_decay=weight_decay,
    )
    for seed in range(runs):
        run.restart(seed)
        for t in range(steps + 1):
            memory = run.state_dict()["memory"]
            if kind == "saga":
                squared = np.mean((A @ run.theta - z_best) ** 2)
                potential = squared + rate.weight * np.mean(h * (memory[0] - g_best) ** 2)
            else:
                wanted = memory[1] - rate.step * memory[0] - (z_best - rate.step * g_best)
                potential = np.mean(wanted**2)
            means[t] += potential / runs
            if t < steps:
                run.advance(1)
    return means, rate


@pytest.mark.skipif("numba" not in BACKENDS, reason="reads the tables of the compiled run")
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("kind", ["saga", "miso"])
def test_the_linear_rate_holds(kind, weight_decay):
    """The mean over runs is below the bound at every step."""
    with backend.use("numba"):
        means, rate = potentials(kind, None, weight_decay)
    bound = means[0] * rate.factor ** np.arange(means.size)
    assert (means <= bound * (1 + 1e-9)).all()
    assert means[-1] < 0.5 * means[0]


def test_rates_are_refused_outside_their_assumptions():
    with pytest.raises(theory.OutsideAssumptions, match="η ≤ 1/L"):
        theory.miso_rate(10, 2, L=1.0, mu=0.5, step=1.5)
    with pytest.raises(theory.OutsideAssumptions, match="b ≤ n"):
        theory.saga_rate(10, 11, 2.0, L=1.0, mu=0.5)
    with pytest.raises(theory.OutsideAssumptions, match=r"1/\(2L \+ 6σLh\)"):
        theory.saga_rate(10, 2, 2.0, L=1.0, mu=0.5, step=1.0)
    with pytest.raises(to.BadArgument, match="two axes"):
        theory.leverages([1.0, 2.0])
    assert theory.leverages(noisy()[0]).mean() == pytest.approx(3.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_rate_under_the_relative_error_test_holds(share):
    """A network with room for all examples, each loop ended by the test: the gap falls as it must."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, dtype=F64), torch.randn(5, dtype=F64)
    model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0)).double()
    inner = to.LBFGS(max_steps=150, stopping=to.Stopping(relative_error=share))
    opt = to.SSO(model.parameters(), lr=1.0, rule=to.GradientStep(), inner=inner)
    oracle = to.LossOracle(to.losses.Ridged(to.losses.Logistic(y.sign()), 0.75))
    best = to.SSO([z := torch.zeros(5, dtype=F64, requires_grad=True)], 1.0, rule=to.GradientStep())
    for _ in range(80):
        best.step(lambda: 1 * z, oracle)
    least = float(oracle.loss.value(z.detach()).mean())
    factor = theory.relative_error_rate(share, L=1.0, mu=0.75)
    gaps = []
    for _ in range(8):
        report = opt.step(lambda: model(x), oracle)
        assert report.stop_reason == "relative-error"
        gaps.append(report.loss - least)
    assert all(now <= factor * before + 1e-14 for before, now in itertools.pairwise(gaps))
    with pytest.raises(theory.OutsideAssumptions, match="α < 1"):
        theory.relative_error_rate(1.0, L=1.0, mu=0.5)
