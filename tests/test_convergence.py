"""Every rule × every inner solver × every problem with a known minimum, and a part of that in float32.

One table: a new rule is one row in ``RULES``, a new inner solver one in ``SOLVERS``, a new problem one
in ``PROBLEMS``. Each run must bring the objective to within a stated tolerance of the known minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import targetopt as to


@dataclass
class Instance:
    """A model at its start, its forward, its oracle, and where it should end."""

    params: list[Tensor]
    forward: Callable[[], Tensor]
    oracle: to.Oracle
    weight_decay: float
    minimum: float

    def objective(self) -> float:
        with torch.no_grad():
            penalty = sum(float(p.double().square().sum()) for p in self.params)
            loss = float(self.oracle.query(self.forward().detach()).losses.double().mean())
        return loss + 0.5 * self.weight_decay * penalty


MINIMA: dict[tuple[str, int], float] = {}


def regularised_minimum(loss: to.losses.Loss, x: Tensor, outputs: int, decay: float) -> float:
    """The minimum of a linear model's objective, by an independent solver; each is found once."""
    key = type(loss).__name__, outputs
    if key not in MINIMA:
        MINIMA[key] = found_minimum(loss, x, outputs, decay)
    return MINIMA[key]


def found_minimum(loss: to.losses.Loss, x: Tensor, outputs: int, decay: float) -> float:

    def fun(flat):
        w = torch.tensor(flat, dtype=torch.float64).reshape(x.shape[1], outputs).requires_grad_()
        z = x @ w
        value = loss.value(z if outputs > 1 else z[:, 0]).mean() + 0.5 * decay * w.square().sum()
        value.backward()
        return value.item(), w.grad.numpy().ravel()

    start = torch.zeros(x.shape[1] * outputs, dtype=torch.float64).numpy()
    return minimize(fun, start, jac=True, method="BFGS", options={"gtol": 1e-9}).fun


def data(seed: int, n: int = 12, d: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randn(
        n, generator=g, dtype=torch.float64
    )


def quadratic(dtype: torch.dtype) -> Instance:
    x, y = data(0)
    w = torch.zeros(3, dtype=dtype, requires_grad=True)
    residual = y - x @ torch.linalg.lstsq(x, y.unsqueeze(1)).solution[:, 0]
    xd = x.to(dtype)
    oracle = to.LossOracle(to.losses.Squared(y))
    return Instance([w], lambda: xd @ w, oracle, 0.0, 0.5 * float(residual.square().mean()))


def logistic(dtype: torch.dtype) -> Instance:
    x, y = data(1)
    loss = to.losses.Logistic(y.sign())
    w = torch.zeros(3, dtype=dtype, requires_grad=True)
    xd = x.to(dtype)
    minimum = regularised_minimum(loss, x, 1, 0.1)
    return Instance([w], lambda: xd @ w, to.LossOracle(loss), 0.1, minimum)


def softmax(dtype: torch.dtype) -> Instance:
    x, y = data(2)
    loss = to.losses.CrossEntropy((y * 2).round().abs().long().clamp(max=2))
    w = torch.zeros(3, 3, dtype=dtype, requires_grad=True)
    xd = x.to(dtype)
    minimum = regularised_minimum(loss, x, 3, 0.1)
    return Instance([w], lambda: xd @ w, to.LossOracle(loss), 0.1, minimum)


def probabilities(dtype: torch.dtype) -> Instance:
    """The softmax problem with the softmax inside the model: targets on the simplex."""
    logits = softmax(dtype)
    labels = logits.oracle.loss.labels
    oracle = to.LossOracle(lambda p: -p.gather(1, labels.unsqueeze(1))[:, 0].log())
    return Instance(logits.params, lambda: logits.forward().softmax(1), oracle, 0.1, logits.minimum)


def mlp(dtype: torch.dtype) -> Instance:
    """Over-parametrised: the minimum is 0, reached by fitting every example."""
    x, y = data(3, n=6)
    model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0)).to(dtype)
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * 0.7)
    xd = x.to(dtype)
    oracle = to.LossOracle(to.losses.Squared(y))
    return Instance(list(model.parameters()), lambda: model(xd), oracle, 0.0, 0.0)


PROBLEMS: dict[str, Callable[[torch.dtype], Instance]] = {
    "quadratic": quadratic,
    "logistic": logistic,
    "softmax": softmax,
    "mlp": mlp,
    "probabilities": probabilities,
}
LOGIT_PROBLEMS = ["quadratic", "logistic", "softmax", "mlp"]


@dataclass
class Row:
    """A rule, its η, how many outer steps it may take, and the problems it is for."""

    rule: to.Rule
    lr: float | None = None
    steps: int = 120
    problems: list[str] = field(default_factory=lambda: LOGIT_PROBLEMS)


RULES: dict[str, Row] = {
    "GradientStep": Row(to.GradientStep()),
    "LineSearch": Row(to.LineSearch()),
    "AdaGradNorm": Row(to.AdaGradNorm(), lr=2.0),
    "AdaGrad": Row(to.AdaGrad(), lr=3.0),
    "Newton": Row(to.Newton(floor=1e-2)),
    "MirrorDescent": Row(to.MirrorDescent(to.SquaredEuclidean())),
    "NegativeEntropy": Row(
        to.MirrorDescent(to.NegativeEntropy()), lr=0.3, problems=["probabilities"]
    ),
    "FTRL": Row(to.FTRL()),
    "Majoriser": Row(to.Majoriser()),
}

SOLVERS: dict[str, to.Inner] = {
    "GradientDescent": to.GradientDescent(step_size=0.2, max_steps=25),
    "Armijo": to.Armijo(max_steps=20),
    "LBFGS": to.LBFGS(max_steps=10),
    "GaussNewton": to.GaussNewton(max_steps=2),
    "Adam": to.Torch(lambda p: torch.optim.Adam(p, lr=0.02), max_steps=25),
    "Exact": to.Exact(),
}

TOLERANCE = 1e-3  # of the initial gap

CASES = [
    pytest.param(rule, solver, problem, dtype, id=f"{rule}-{solver}-{problem}-{str(dtype)[6:]}")
    for rule, row in RULES.items()
    for solver in SOLVERS
    for problem in row.problems
    for dtype in (torch.float64, torch.float32)
    if not (solver == "Exact" and problem in ("mlp", "probabilities"))  # not linear
    if dtype == torch.float64 or rule == "GradientStep" or problem in ("softmax", "probabilities")
]
"""In float32 every rule meets every solver on one problem, and one rule meets every problem."""


@pytest.mark.parametrize(("rule", "solver", "problem", "dtype"), CASES)
@pytest.mark.product(3)
def test_reaches_the_known_minimum(rule, solver, problem, dtype):
    instance = PROBLEMS[problem](dtype)
    row = RULES[rule]
    opt = to.SSO(
        instance.params,
        lr=row.lr,
        rule=row.rule,
        inner=SOLVERS[solver],
        weight_decay=instance.weight_decay,
    )
    start = instance.objective()
    for _ in range(row.steps):
        opt.step(instance.forward, instance.oracle)
        gap = (instance.objective() - instance.minimum) / (start - instance.minimum)
        assert gap > -1e-6, "below the minimum: the objective is not what it seems"
        if gap < TOLERANCE:
            return
    pytest.fail(f"{gap:.2e} of the initial gap is left after {row.steps} steps")


@pytest.mark.parametrize("rule", [r for r, row in RULES.items() if "mlp" in row.problems])
def test_exact_refuses_a_forward_that_is_not_linear(rule):
    instance = mlp(torch.float64)
    before = [p.detach().clone() for p in instance.params]
    opt = to.SSO(instance.params, lr=RULES[rule].lr, rule=RULES[rule].rule, inner=to.Exact())
    with pytest.raises(to.BadForward, match="linear in the parameters"):
        opt.step(instance.forward, instance.oracle)
    assert all(torch.equal(a, b) for a, b in zip(before, instance.params, strict=True))


MONOTONE = [name for name, row in RULES.items() if row.rule.monotone and "mlp" in row.problems]


@pytest.mark.parametrize("problem", ["softmax", "mlp"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rule", MONOTONE)
@pytest.mark.parametrize("steps", [25, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.product(3)
def test_full_batch_loss_never_increases(rule, solver, problem, steps):
    """The surrogate is an upper bound for η ≤ 1/L, so steps of any decrease go down."""
    if solver == "Exact" and problem == "mlp":
        problem = "quadratic"  # Exact is for linear forwards
    instance = PROBLEMS[problem](torch.float64)
    inner = SOLVERS[solver]
    if solver == "Adam":  # small steps, so that Adam itself decreases what it is given
        inner = to.Torch(lambda p: torch.optim.Adam(p, lr=1e-3), max_steps=5, reset=True)
    smoothness = instance.oracle.loss.smoothness
    opt = to.SSO(
        instance.params,
        lr=1.0 / smoothness,
        rule=RULES[rule].rule,
        inner=inner,
        weight_decay=instance.weight_decay,
    )
    previous = instance.objective()
    for _ in range(steps):
        report = opt.step(instance.forward, instance.oracle)
        now = instance.objective()
        if report.surrogate_decrease >= 0:
            assert now <= previous + 1e-13 * (1 + abs(previous))
        assert previous - now >= report.surrogate_decrease - 1e-12 * (1 + abs(previous))
        previous = now


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "exponential"])
@pytest.mark.parametrize("rule", RULES)
def test_schedules_multiply_the_step_of_every_rule(rule, schedule):
    row = RULES[rule]
    make = getattr(to.schedules, schedule)
    chosen = make(50) if schedule == "exponential" else make()
    instances = [PROBLEMS[row.problems[-1]](torch.float64) for _ in range(2)]
    etas = []
    for instance, s in zip(instances, (chosen, to.schedules.constant()), strict=True):
        opt = to.SSO(instance.params, lr=row.lr, rule=row.rule, inner=to.Armijo(), schedule=s)
        etas.append(opt.step(instance.forward, instance.oracle).eta)
    assert etas[0] == pytest.approx(etas[1] * chosen(1), rel=1e-9)
