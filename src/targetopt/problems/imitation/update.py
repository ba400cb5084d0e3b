"""What happens to the policy between two rounds: SSO, or a torch optimiser on the batch loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from targetopt import linear
from targetopt.baselines.base import ClosureOptimizer
from targetopt.inner import Exact, Inner, Torch
from targetopt.optim import SSO
from targetopt.oracle import LossOracle
from targetopt.problems.base import positive_int
from targetopt.problems.imitation.gather import Batch
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.policy import GaussianPolicy
from targetopt.rules import Rule
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, Counts, Forward

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]
"""``lambda parameters: torch.optim.Adam(parameters)``"""


class Update(Protocol):
    """Moves the policy by one round's batch; the batch's labels were the oracle's answer."""

    def __call__(self, batch: Batch) -> Counts: ...

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with, for comparison with a checkpoint's."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def targets(policy: GaussianPolicy, states: Array) -> Forward:
    """The forward of some states: `to.Linear` for a linear mean, so that inner solvers know.

    Targets are ``(n, k)``; of a linear mean of one action, ``(n,)``.
    """
    if policy.mean == "linear":
        layer = policy.layers[0]
        assert isinstance(layer, torch.nn.Linear)
        return linear.Linear(layer, states)
    inputs = torch.from_numpy(states).to(policy.dtype)
    return lambda: policy(inputs)


def adam(parameters: Iterable[Tensor]) -> Optimizer:
    """torch's Adam with torch's step size, 1e-3."""
    return torch.optim.Adam(parameters)


def default_inner(policy: GaussianPolicy) -> Inner:
    """`Exact` for a linear mean; for networks 100 steps of Adam (docs/imitation.md says why)."""
    return Exact() if policy.mean == "linear" else Torch(adam, max_steps=100)


class SsoUpdate:
    """One `SSO` step a round: the surrogate of the batch, minimised by the inner solver."""

    def __init__(
        self,
        policy: GaussianPolicy,
        lr: float | None = None,
        rule: Rule | None = None,
        inner: Inner | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.policy = policy
        inner = default_inner(policy) if inner is None else inner
        self.optimizer = SSO(policy.parameters(), lr=lr, rule=rule, inner=inner, schedule=schedule)
        self._inner_optimizer: dict[str, Any] = {}
        if isinstance(
            inner, Torch
        ):  # its factory is a function, of which `written` sees nothing more
            self._inner_optimizer = options(inner.factory(list(policy.parameters())))

    def __call__(self, batch: Batch) -> Counts:
        vector = self.policy.mean == "linear" and self.policy.action_size == 1
        loss = self.policy.loss(batch.labels[:, 0] if vector else batch.labels)
        return self.optimizer.step(targets(self.policy, batch.states), LossOracle(loss))

    @property
    def settings(self) -> dict[str, Any]:
        optimizer = self.optimizer
        return {
            "lr": optimizer.param_groups[0]["lr"],
            "rule": written(optimizer.rule),
            "inner": written(optimizer.inner),
            "schedule": written(optimizer.schedule),
            "inner optimizer": self._inner_optimizer,
        }

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        return {**state, "decays": self._decays(state["sso"]["steps"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        decays = state["decays"]
        for t, (there, here) in enumerate(zip(decays, self._decays(len(decays)), strict=True), 1):
            if there != here:  # two functions have no other difference to show
                raise BadArgument(
                    f"schedule={self.optimizer.schedule!r} is not that of the saved run: its factor of step {t} is "
                    f"{there!r} there, {here!r} here. Use the same schedule, or begin anew."
                )
        self.optimizer.load_state_dict({k: v for k, v in state.items() if k != "decays"})

    def _decays(self, steps: int) -> list[float]:
        """The schedule of the steps that were taken."""
        return [float(self.optimizer.schedule(t)) for t in range(1, steps + 1)]


class TorchUpdate:
    """``steps`` steps of a torch optimiser on the batch's mean loss.

    With one step these are the paper's baselines; with m steps, the control it lacks: what SSO's m
    inner steps must be compared with.
    """

    def __init__(self, policy: GaussianPolicy, factory: OptimizerFactory, steps: int = 1) -> None:
        self.policy = policy
        self.steps = positive_int("steps", steps)
        self.optimizer = factory(list(policy.parameters()))
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, SSO):
            raise BadArgument(
                f"optimizer= must make a torch optimiser from the parameters; it made "
                f"{type(self.optimizer).__name__}. For SSO pass rule=, inner= and lr= instead."
            )
        self._options = options(self.optimizer)  # now: an optimiser may write to its groups

    def __call__(self, batch: Batch) -> Counts:
        inputs = torch.from_numpy(batch.states).to(self.policy.dtype)
        loss = self.policy.loss(batch.labels)
        forwards = 0

        def closure() -> Tensor:
            nonlocal forwards
            forwards += 1
            return loss.value(self.policy(inputs)).mean()

        def backward() -> float:
            self.optimizer.zero_grad()
            value = closure()
            value.backward()
            return float(value.detach())

        for _ in range(self.steps):
            if isinstance(self.optimizer, ClosureOptimizer):  # differentiates by itself
                self.optimizer.step(closure)  # type: ignore[arg-type]
            else:
                self.optimizer.step(backward)
        backwards = self.steps if isinstance(self.optimizer, ClosureOptimizer) else forwards
        return Counts(
            oracle_calls=1,
            value_calls=forwards - backwards,
            inner_steps=self.steps,
            forward_calls=forwards,
            backward_calls=backwards,
        )

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._options, "steps": self.steps}

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def options(optimizer: object) -> dict[str, Any]:
    """A torch optimiser in words that every process agrees on: its class, and each group's options."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):  # whoever takes a step with it will say so
        return {"optimizer": kind}
    groups = optimizer.param_groups
    names = sorted(set(groups[0]) - {"params"})
    values = {name: ", ".join(repr(group[name]) for group in groups) for name in names}
    return {"optimizer": kind, "options": values}


def written(part: object) -> str:
    """A rule, solver or schedule in words that every process agrees on: functions by their type only.

    What functions do is compared elsewhere: what they make (`options`), or gave in the rounds done.
    """
    if not is_dataclass(part):
        return type(part).__name__ if callable(part) else repr(part)
    words = [f"{name}={written(value)}" for name, value in vars(part).items()]
    return f"{type(part).__name__}({', '.join(words)})"
