"""Prop. 4.4: the bias, its cure, and what it does to Thm 4.2 (b)."""

import math

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt import theory
from targetopt.theory import counterexample

SCHEDULES = ("constant", "1/t", "1/sqrt(t)", "exponential")


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("start", [0.1, 1.0])
def test_bias_of_a_hundred_thousand_runs(name, start):
    etas = 0.5 * counterexample.schedule(name, 100)
    exact = counterexample.expected_bias(start, etas)
    assert exact >= min(start, 0.375) - 1e-12
    found = counterexample.simulate_bias(etas, start=start, runs=100_000, seed=1)
    assert found.low <= exact <= found.high
    assert found.high - found.low < 0.01
    assert found.high >= min(start, 0.375)
    assert found.low >= min(start, 0.375) - 0.005


@pytest.mark.parametrize("variant", ["analysis", "independent"])
def test_unbiased_surrogates_converge_on_the_same_example(variant):
    rms = []
    for steps in (100, 400, 1600):
        etas = 0.5 * counterexample.schedule("exponential", steps)
        found = counterexample.simulate_bias(etas, start=1.0, runs=20_000, variant=variant)
        assert found.low <= 1e-3
        assert found.high >= -1e-3
        rms.append(found.rms)
    assert rms[2] < rms[1] / 1.5 < rms[0] / 2.25
    sso = counterexample.simulate_bias(
        0.5 * counterexample.schedule("exponential", 1600), start=1.0, runs=20_000
    )
    assert sso.low > 0.37 > 10 * rms[2]


def test_recursion_is_what_the_optimiser_does():
    """The three variants' one-step maps against to.SSO on the two examples."""
    problem = counterexample.two_quadratics()
    for i in (0, 1):
        for analysis in (False, True):
            w = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
            opt = to.SSO([w], lr=0.3, inner=to.Exact())
            x = torch.from_numpy(problem.X)
            opt.step(
                lambda w=w, x=x, i=i: x[[i]] @ w,
                to.LossOracle(problem.loss.rows(torch.tensor([i]))),
                regularise_on=(lambda w=w, x=x: x @ w) if analysis else None,
            )
            slope = [0.7 - 1.0, 2 * (2 * 0.7 + 0.5)][i]
            gain = 0.4 if analysis else [1.0, 0.25][i]
            assert w.item() == pytest.approx(0.7 - 0.3 * gain * slope, rel=1e-12)


def test_steps_beyond_one_void_the_statement():
    """The statement says 'any sequence'; cα = 2 sends θ_1 = 1 to −¼ on average."""
    with pytest.raises(theory.OutsideAssumptions, match="cα_t ≤ 1"):
        counterexample.expected_bias(1.0, [2.0])
    found = counterexample.simulate_bias([2.0], start=1.0, runs=50_000)
    assert found.low < -0.25 < found.high < 0.375


def test_theorem_b_as_printed_is_refuted_exactly():
    found = counterexample.refute_exponential(copies=5, steps=10_000)
    assert found.distance == pytest.approx(1.875)
    assert found.printed == pytest.approx(1.4168, abs=1e-4)
    assert found.distance <= min(found.corrected, found.sharp)
    # nor does it get better: the gap widens with T
    later = counterexample.refute_exponential(copies=5, steps=1_000_000)
    assert later.distance / later.printed > 3


def test_refutation_is_what_runs_do():
    """The closed forms behind the refutation, against runs of SSO on the copied problem."""
    copies, steps = 3, 1500
    problem = counterexample.two_quadratics(copies)
    constants = problem.target_constants(1)
    assert constants.kappa == 2 * copies
    etas = constants.step * theory.ExponentialStep(steps).multipliers()
    rows = theory.all_batches(problem.n, 1)
    runs = theory.simulate(
        problem,
        rows,
        theory.sso_steps(problem.X, rows),
        etas,
        start=[0.0],
        seeds=2000,
        rng=np.random.default_rng(0),
    )
    found = counterexample.refute_exponential(copies, steps)
    root = math.sqrt(problem.n)
    assert runs.projection_error.max() * root <= found.error * (1 + 1e-12)
    mean = runs.distance[-1].mean() * root
    spread = runs.distance[-1].std() * root / math.sqrt(2000)
    assert mean + 4 * spread >= found.distance  # E‖·‖ ≥ ‖E·‖
    assert theory.gradient_noise(problem, 1) / problem.n == pytest.approx((1 - 1 / 6) * 0.625)
