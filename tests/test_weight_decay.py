"""Weight decay is exactly ½λ‖θ‖² in the objective: closed forms, and torch's SGD."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import targetopt as to

F64 = torch.float64
X = torch.randn(12, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, dtype=F64, generator=torch.Generator().manual_seed(1))
ORACLE = to.LossOracle(to.losses.Squared(Y))

EXACT_ENOUGH = {
    "exact": to.Exact(),
    "lbfgs": to.LBFGS(max_steps=200),
    "armijo": to.Armijo(max_steps=3000),
    "gauss-newton": to.GaussNewton(max_steps=60, cg_steps=20, cg_tolerance=1e-10),
    "gd": to.GradientDescent(step_size=0.2, max_steps=500),
    "torch": to.Torch(partial(torch.optim.SGD, lr=0.2), max_steps=500),
}


@pytest.mark.parametrize("solver", EXACT_ENOUGH)
def test_weight_decay_is_the_ridge_closed_form(solver: str) -> None:
    """argmin ½‖Xθ − z⁺‖²/(nη) + ½λ‖θ‖², z⁺ = z_t − ηg, by the normal equations."""
    eta, decay = 0.6, 0.3
    theta = torch.linspace(-1, 1, 4, dtype=F64).requires_grad_()
    opt = to.SSO([theta], lr=eta, inner=EXACT_ENOUGH[solver], weight_decay=decay)
    for _ in range(2):
        with torch.no_grad():
            landing = X @ theta - eta * (X @ theta - Y)
            gram = X.T @ X / (12 * eta) + decay * torch.eye(4, dtype=F64)
            expected = torch.linalg.solve(gram, X.T @ landing / (12 * eta))
            q = ((X @ theta - landing).square() / (2 * eta)).mean() + decay / 2 * theta @ theta
            least = ((X @ expected - landing).square() / (2 * eta)).mean()
            least = least + decay / 2 * expected @ expected
        report = opt.step(lambda: X @ theta, ORACLE)
        torch.testing.assert_close(theta.detach(), expected, rtol=1e-6, atol=1e-7)
        assert report.surrogate_decrease == pytest.approx(float(q - least), rel=1e-9)


@pytest.mark.parametrize("solver", ["exact", "lbfgs"])
def test_weight_decay_converges_to_ridge_regression(solver: str) -> None:
    decay = 0.3
    theta = torch.zeros(4, dtype=F64, requires_grad=True)
    opt = to.SSO([theta], lr=1.0, inner=EXACT_ENOUGH[solver], weight_decay=decay)
    for _ in range(60):
        report = opt.step(lambda: X @ theta, ORACLE)
    assert (
        report.forward_calls < 50
    )  # where nothing is left to gain, a solver does not go on for ever
    ridge = torch.linalg.solve(X.T @ X / 12 + decay * torch.eye(4, dtype=F64), X.T @ Y / 12)
    torch.testing.assert_close(theta.detach(), ridge, rtol=1e-9, atol=1e-10)


@given(
    decay=st.floats(0.0, 2.0),
    step_size=st.floats(0.01, 0.5),
    lr=st.floats(0.01, 10.0),
    seed=st.integers(0, 100),
)
@settings(max_examples=25, deadline=None)
def test_weight_decay_is_torch_sgds(decay: float, step_size: float, lr: float, seed: int) -> None:
    """One inner step is SGD with the same L2 term, for any η."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)).double()
    twin = copy.deepcopy(model)
    inner = to.GradientDescent(step_size=step_size, max_steps=1)
    opt = to.SSO(model.parameters(), lr=lr, inner=inner, weight_decay=decay)
    sgd = torch.optim.SGD(twin.parameters(), lr=step_size, weight_decay=decay)
    for _ in range(3):
        opt.step(lambda: model(X), ORACLE)
        sgd.zero_grad()
        ((twin(X) - Y).square() / 2).mean().backward()
        sgd.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)
