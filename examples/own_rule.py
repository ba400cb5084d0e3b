"""A rule of your own, in one file: momentum in target space.

The surrogate's linear term is an average of this and past gradients. Run it by itself, or compare it
with other methods on any problem:

    python examples/own_rule.py
    targetopt run examples/own_rule.toml
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer

import targetopt as to
from targetopt.registry import register_rule
from targetopt.rules.tables import grown, memory_kind, rows_of
from targetopt.types import State


@dataclass(frozen=True)
class Momentum(to.Rule):
    """q(z) = ℓ(z_t) + ⟨v_t, z − z_t⟩ + (1/2η)‖z − z_t‖², v_t = βv_{t−1} + (1 − β)g_t."""

    beta: float = 0.5

    def propose(
        self, point: to.TargetPoint, lr: float | None, decay: float, state: State
    ) -> to.Proposal:
        eta = self.step_size(point, lr, decay)
        table, rows = grown(state.get("velocity"), point), rows_of(point)
        table[rows] = self.beta * table[rows] + (1 - self.beta) * point.gradients
        metric = point.targets.new_tensor(1.0 / eta)
        surrogate = to.Quadratic(point.targets, table[rows], metric, point.loss)
        return to.Proposal(surrogate, {"velocity": table}, eta, memory_kind(point))


register_rule("momentum", Momentum(), "SSO-Momentum")
register_rule("heavy-momentum", Momentum(beta=0.9), "SSO-Momentum (β = 0.9)")


def main() -> None:
    data = load_breast_cancer()
    x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0))
    y = torch.tensor(2.0 * data.target - 1.0)
    for rule in (to.GradientStep(), Momentum(), Momentum(beta=0.9)):
        w = torch.zeros(30, dtype=torch.float64, requires_grad=True)
        opt = to.SSO([w], lr=4.0, rule=rule, inner=to.Armijo(max_steps=20))
        for _ in range(30):
            report = opt.step(lambda w=w: x @ w, to.LossOracle(to.losses.Logistic(y)))
        print(f"{rule!s:24} loss {report.loss:.4f} after {opt.totals.oracle_calls} oracle calls")


if __name__ == "__main__":
    main()
