"""Rules, inner solvers and small models that the robustness tests of the core share.

A new rule is one row in ``RULES``, a new inner solver one in ``SOLVERS``; counts, resuming and the
other matrices follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import targetopt as to
from targetopt.rules.automatic import Automatic

RULES: dict[str, tuple[to.Rule, float | None]] = {
    "gradient": (to.GradientStep(), 2.0),
    "line-search": (to.LineSearch(), None),
    "adagrad-norm": (to.AdaGradNorm(), 0.5),
    "adagrad": (to.AdaGrad(), 0.3),
    "newton": (to.Newton(), 0.5),
    "mirror": (to.MirrorDescent(), None),
    "entropy": (to.MirrorDescent(to.NegativeEntropy()), 0.3),
    "ftrl": (to.FTRL(), 0.4),
    "trust-region": (to.TrustRegion(), None),
    "majoriser": (to.Majoriser(), None),
    "memory": (to.Memory(), 0.3),
}

MORE_RULES: dict[str, tuple[to.Rule, float | None]] = {
    "polyak": (to.Polyak(), None),
    "proximal": (to.Proximal(), 1.0),
    "secant": (to.TrustRegion(metric=to.Secant()), None),
    "bundle": (to.Bundle(), None),
    "bought": (to.Bought(), None),
    "automatic": (Automatic(), None),
}
"""Rules that are left out of the matrices which every pair of a rule and a solver pays for."""

ALL_RULES = {**RULES, **MORE_RULES}

SOLVERS: dict[str, to.Inner] = {
    "gd": to.GradientDescent(step_size=0.1, max_steps=3),
    "armijo": to.Armijo(max_steps=4),
    "lbfgs": to.LBFGS(max_steps=4),
    "gauss-newton": to.GaussNewton(max_steps=2, cg_steps=3),
    "torch-adam": to.Torch(partial(torch.optim.Adam, lr=0.05), max_steps=3),
    "torch-lbfgs": to.Torch(partial(torch.optim.LBFGS, max_iter=3, lr=0.3), max_steps=2),
    "exact": to.Exact(),
}

MATRIX = [(rule, solver) for rule in RULES for solver in SOLVERS]


class Shift(nn.Module):
    """Linear targets on the simplex for any θ near 0: rows of a parameter, shifted by a constant."""

    def __init__(self, rows: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, outputs, dtype=torch.float64))

    def forward(self, index: Tensor) -> Tensor:
        return self.weight[index] + 1.0 / self.weight.shape[1]


def moody_mlp(outputs: int = 1) -> nn.Sequential:
    """Everything a forward may do to a model: dropout's randomness, BatchNorm's buffers."""
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(0.3),
        nn.Tanh(),
        nn.Linear(6, outputs),
    )
    return model.double()


def network() -> nn.Sequential:
    """A small network whose targets are a vector; always the same one."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0)).double()


@dataclass
class Problem:
    """Batches of one small data set: a model, its targets and its oracle."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    oracle: Callable[[Tensor], to.Oracle]
    rows: int = 24
    batch: int = 8

    def index(self, step: int) -> Tensor:
        """The rows of this step's batch."""
        return torch.arange(step * self.batch, (step + 1) * self.batch) % self.rows

    def step(self, opt: to.SSO, step: int) -> to.StepReport:
        rows = self.index(step)
        everything = self.wanted_by(opt)
        return opt.step(
            lambda: self.forward(rows), self.oracle(rows), index=rows, regularise_on=everything
        )

    def everything(self) -> Tensor:
        """The targets of all rows, for rules whose surrogate is of all data."""
        return self.forward(torch.arange(self.rows, device="cpu"))

    def wanted_by(self, opt: to.SSO) -> Callable[[], Tensor] | None:
        """What ``regularise_on=`` must be: the forward of all rows, if the rule's surrogate is of them."""
        return self.everything if opt.rule.wants_everything((), dear=False) else None


def problem(rule: str, solver: str, *, seed: int = 0) -> Problem:
    """Logistic regression or softmax probabilities; linear for `Exact`, else the moody network."""
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(24, 4, dtype=torch.float64, generator=data)
    y = torch.randn(24, dtype=torch.float64, generator=data).sign()
    classes = torch.randint(3, (24,), generator=data)
    if rule == "entropy":

        def likelihood(rows: Tensor) -> to.Oracle:
            label = classes[rows].unsqueeze(1)
            return to.LossOracle(lambda p: -p.gather(1, label)[:, 0].log())

        if solver == "exact":
            shift = Shift(24, 3)
            return Problem(shift, shift, likelihood)
        model: nn.Module = nn.Sequential(moody_mlp(3), nn.Softmax(dim=1))
        return Problem(model, lambda rows: model(x[rows]), likelihood)

    def logistic(rows: Tensor) -> to.Oracle:
        return to.LossOracle(to.losses.Logistic(y[rows]))

    model = nn.Linear(4, 1).double() if solver == "exact" else moody_mlp()
    return Problem(model, lambda rows: model(x[rows])[:, 0], logistic)


def optimiser(model: nn.Module, rule: str, solver: str, **options: Any) -> to.SSO:
    part, lr = ALL_RULES[rule]
    return to.SSO(model.parameters(), lr=lr, rule=part, inner=SOLVERS[solver], **options)


def identical(a: Any, b: Any) -> bool:
    """Bit for bit the same, through any nesting (nan equals nan)."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return False
        same_kind = a.dtype == b.dtype and a.shape == b.shape
        return same_kind and torch.equal(
            a.detach().contiguous().reshape(-1).view(torch.uint8),
            b.detach().contiguous().reshape(-1).view(torch.uint8),
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b) or (a != a and b != b)


def fingerprint(model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, Any]:
    """A copy of everything a step may change, the torch generator and the gradients included."""
    return {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "optimiser": _copied(opt.state_dict()),
        "rng": torch.get_rng_state(),
    }


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(v) for v in value)
    return value
