"""What happens to the policy between two rounds: SSO, or a torch optimiser on the batch loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from targetopt import linear
from targetopt.baselines.base import ClosureOptimizer
from targetopt.imitation.data import DATA, Replay
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.gather import Batch
from targetopt.inner import Exact, Inner, Torch
from targetopt.losses import Loss
from targetopt.optim import SSO
from targetopt.oracle import LossOracle
from targetopt.rules import Rule
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, Counts, Forward, positive_int

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


def targets(policy: Policy, states: Array) -> Forward:
    """The forward of some states: `to.Linear` for a linear mean, so that inner solvers know.

    Targets are ``(n, k)``; of a linear mean of one action, ``(n,)``.
    """
    layer = policy.linear_layer
    if layer is not None:
        return linear.Linear(layer, states)
    inputs = policy.inputs(states)
    return lambda: policy(inputs)


def problem(policy: Policy, batch: Batch) -> tuple[Forward, Loss]:
    """The forward of a batch, and the loss of its targets."""
    vector = policy.linear_layer is not None and policy.outputs == 1
    loss = policy.loss(batch.labels[:, 0] if vector else batch.labels)
    return targets(policy, batch.states), loss


def adam(parameters: Iterable[Tensor]) -> Optimizer:
    """torch's Adam with torch's step size, 1e-3."""
    return torch.optim.Adam(parameters)


def default_data(policy: Policy) -> Replay:
    """All states so far: at once for a linear mean, which is solved for; else 100 updates on 250 of them a round, whose
    mean the policy then is.
    """
    return Replay("all") if solved(policy) else Replay("all", batch=250, updates=100, average=True)


def default_inner(policy: Policy, data: Replay = DATA["round"]) -> Inner:
    """`Exact` where the loss is a sum of squares of a linear mean; else Adam: 100 steps on one batch a round, 10 on
    each of many (docs/imitation.md says why).
    """
    return Exact() if solved(policy) else Torch(adam, max_steps=100 if data.updates == 1 else 10)


def solved(policy: Policy) -> bool:
    """Whether the best targets of the policy are the solution of a linear system."""
    return policy.linear_layer is not None and policy.is_quadratic


class SsoUpdate:
    """One `SSO` step a round: the surrogate of the batch, minimised by the inner solver."""

    def __init__(
        self,
        policy: Policy,
        lr: float | None = None,
        rule: Rule | None = None,
        inner: Inner | None = None,
        schedule: Schedule | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        self.policy = policy
        inner = default_inner(policy) if inner is None else inner
        self.optimizer = SSO(
            policy.parameters(),
            lr=lr,
            rule=rule,
            inner=inner,
            schedule=schedule,
            weight_decay=weight_decay,
            group=None,  # a run is the business of the process that calls it
            warn=False,  # losses grow by nature as the states become harder
        )
        self._inner_optimizer: dict[str, Any] = {}
        if isinstance(
            inner, Torch
        ):  # its factory is a function, of which `written` sees nothing more
            self._inner_optimizer = options(inner.factory(list(policy.parameters())))

    @classmethod
    def of(cls, policy: Policy, made: SSO) -> SsoUpdate:
        """The update that an `SSO` made elsewhere would take, from its beginning."""
        group = made.param_groups[0]
        parts = made.rule, made.inner, made.schedule
        return cls(policy, group["lr"], *parts, weight_decay=group["weight_decay"])

    def __call__(self, batch: Batch) -> Counts:
        forward, loss = problem(self.policy, batch)
        return self.optimizer.step(forward, LossOracle(loss))

    @property
    def settings(self) -> dict[str, Any]:
        optimizer = self.optimizer
        return {
            "lr": optimizer.param_groups[0]["lr"],
            "rule": written(optimizer.rule),
            "inner": written(optimizer.inner),
            "schedule": written(optimizer.schedule),
            "weight_decay": optimizer.param_groups[0]["weight_decay"],
            "inner optimizer": self._inner_optimizer,
        }

    def state_dict(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        steps = range(1, state["sso"]["steps"] + 1)
        return {**state, "decays": [float(self.optimizer.schedule(t)) for t in steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_decays(self.optimizer.schedule, state["decays"])
        self.optimizer.load_state_dict({k: v for k, v in state.items() if k != "decays"})


class TorchUpdate:
    """``steps`` steps of a torch optimiser on the batch's mean loss.

    With one step these are the paper's baselines; with m steps, the control it lacks: what SSO's m
    inner steps must be compared with. A schedule multiplies the learning rates round by round.
    """

    def __init__(
        self,
        policy: Policy,
        factory: OptimizerFactory,
        steps: int = 1,
        schedule: Schedule | None = None,
    ) -> None:
        self.policy = policy
        self.schedule = schedule
        self.rounds = 0
        self.steps = positive_int("steps", steps)
        self.optimizer = factory(list(policy.parameters()))
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, SSO):
            raise BadArgument(
                f"optimizer= must make a torch optimiser from the parameters; it made "
                f"{type(self.optimizer).__name__}. For SSO pass rule=, inner= and lr= instead."
            )
        self._options = options(self.optimizer)  # now: an optimiser may write to its groups
        self._rates = [float(group.get("lr", 1.0)) for group in self.optimizer.param_groups]

    def __call__(self, batch: Batch) -> Counts:
        forward, loss = problem(self.policy, batch)
        if self.schedule is not None:
            factor = self.schedule(self.rounds + 1)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        forwards = 0

        def closure() -> Tensor:
            nonlocal forwards
            forwards += 1
            return loss.value(forward()).mean()

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
        self.rounds += 1
        return Counts(
            oracle_calls=1,
            value_calls=forwards - backwards,
            inner_steps=self.steps,
            forward_calls=forwards,
            backward_calls=backwards,
        )

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._options, "steps": self.steps, "schedule": written(self.schedule)}

    def state_dict(self) -> dict[str, Any]:
        schedule, rounds = self.schedule, range(1, self.rounds + 1)
        decays = [] if schedule is None else [float(schedule(t)) for t in rounds]
        return {
            "optimizer": self.optimizer.state_dict(),
            "rounds": self.rounds,
            "decays": decays,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.schedule is not None:
            check_decays(self.schedule, state["decays"])
        self.rounds = state["rounds"]
        self.optimizer.load_state_dict(state["optimizer"])


class MeanParameters:
    """The mean of what a policy's parameters were whenever `add` was called; `take` sets them to it.

    It is summed up in float64. Parameters that are not trained, and buffers, stay as they are.
    """

    def __init__(self, policy: Policy) -> None:
        self._trained = [p for p in policy.parameters() if p.requires_grad]
        self._sums = [torch.zeros_like(p, dtype=torch.float64) for p in self._trained]
        self._count = 0

    @torch.no_grad()
    def add(self) -> None:
        for total, p in zip(self._sums, self._trained, strict=True):
            total += p
        self._count += 1

    @torch.no_grad()
    def take(self) -> None:
        for total, p in zip(self._sums, self._trained, strict=True):
            p.copy_(total / self._count)


def check_decays(schedule: Schedule, decays: Sequence[float]) -> None:
    """Refuse a schedule that is not the saved run's: two functions have no other difference to show."""
    for t, there in enumerate(decays, 1):
        here = float(schedule(t))
        if there != here:
            raise BadArgument(
                f"schedule={schedule!r} is not that of the saved run: its factor of step {t} is {there!r} there, "
                f"{here!r} here. Use the same schedule, or begin anew."
            )


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
    unsaid = {item.name for item in fields(part) if item.metadata.get("changes") == "nothing"}
    words = [f"{k}={written(value)}" for k, value in vars(part).items() if k not in unsaid]
    return f"{type(part).__name__}({', '.join(words)})"
