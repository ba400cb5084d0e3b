"""Runs one step after another, for everything that has no kernel: any rule, inner solver, loss or baseline.

SSO's steps are those of `SSO.step` on the batch's rows of a `Linear` forward; a baseline's are those of
the torch optimiser that it makes.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from targetopt.linear.baselines import Baseline
from targetopt.linear.coordinates import FORMS
from targetopt.linear.engine import COUNTS, PLACES, Array, Engine, Index, Setup, Steps, checked_part
from targetopt.linear.forward import Linear
from targetopt.losses import Loss
from targetopt.optim import SSO
from targetopt.oracle import LossOracle
from targetopt.types import BadAnswer, BadArgument, BadForward, Diverged, StepReport


def engine(setup: Setup) -> Engine:
    """This run, one step after another."""
    return _Sso(setup) if setup.baseline is None else _Rival(setup, setup.baseline)


class _Multiplier:
    """The schedule of a run whose multipliers come with its steps."""

    now = 1.0

    def __call__(self, t: int) -> float:
        return self.now


class _Stepwise:
    """What both share: θ as a parameter, batches as forwards with their losses, and the state."""

    optimiser: Any

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.theta = setup.start.copy()
        self.counts = np.zeros(PLACES, np.int64)
        self.schedule = _Multiplier()
        self._weight = torch.from_numpy(self.theta).requires_grad_()  # the same memory
        self._forward = Linear(self._weight, setup.design, form=setup.form)

    @np.errstate(over="ignore", invalid="ignore")  # divergence is answered, not warned of
    def advance(self, steps: Steps, path: Array) -> int:
        for t, multiplier in enumerate(steps.multipliers):
            self.schedule.now = float(multiplier)
            before = self.theta.copy()
            try:
                alive = self._step(steps.number + t, steps.rows(t))
            except Diverged:
                alive = False
            if not alive:
                self.theta[:] = before
                return t
            if len(path):
                path[t] = self.theta
        return int(steps.multipliers.size)

    def _step(self, number: int, rows: Index) -> bool:
        raise NotImplementedError

    def _batch(self, rows: Index) -> tuple[Linear, Loss, Tensor]:
        index = torch.from_numpy(rows)
        if rows.size == self.setup.design.shape[0]:  # all of them, as they stand
            return self._forward, self.setup.loss, index
        return self._forward.rows(rows), self.setup.loss.rows(index), index

    def _everything(self, forward: Linear) -> Linear | None:
        """The forward of all data, for rules whose surrogate needs it; a full batch is that itself."""
        if forward is self._forward:
            return None
        return self._forward if self.setup.rule.wants_everything({"revealed"}, dear=False) else None

    def _finite(self, forward: Linear, loss: Loss) -> bool:
        """Whether the targets and the loss's slopes are finite, as an oracle's answer must be."""
        with torch.no_grad():
            slopes = loss.gradient(forward())
        return bool(torch.isfinite(slopes.square().sum()))

    def _count(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[COUNTS.index(name)] += count

    def state(self) -> dict[str, Any]:
        return {
            "theta": self.theta.copy(),
            "counts": self.counts.copy(),
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
        }

    def load(self, state: dict[str, Any]) -> None:
        theta = checked_part(state, "theta", self.theta)
        counts = checked_part(state, "counts", self.counts)
        inside = state.get("optimiser")
        if not isinstance(inside, dict):
            raise BadArgument(
                "state has no 'optimiser': it was saved by a run in compiled loops. Go on with the method, "
                "the loss and the backend (numba or not) that it was saved with."
            )
        try:
            self.optimiser.load_state_dict(copy.deepcopy(inside))
        except BadArgument:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadArgument(f"state['optimiser'] is damaged: {error!r}") from error
        self.theta[:], self.counts = theta, counts


class _Sso(_Stepwise):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.optimiser = SSO(
            [self._weight],
            lr=setup.lr,
            rule=setup.rule,
            inner=setup.inner,
            schedule=self.schedule,
            weight_decay=setup.weight_decay,
            check_purity=False,  # a linear forward is pure
            group=None,  # a fit is the business of the process that calls it
            warn=False,  # compiled runs do not look on either
        )

    def _step(self, number: int, rows: Index) -> bool:
        forward, loss, index = self._batch(rows)
        if not self._finite(forward, loss):
            return False
        try:
            report: StepReport = self.optimiser.step(
                forward, LossOracle(loss), index=index, regularise_on=self._everything(forward)
            )
        except (BadAnswer, BadForward) as error:
            with torch.no_grad():
                usable = bool(torch.isfinite(loss.value(forward())).all())
            if usable:  # then it is not the numbers that are at fault
                raise
            raise Diverged(str(error)) from error
        self._count(**{name: getattr(report, name) for name in COUNTS})
        if report.form:
            self.counts[len(COUNTS) + FORMS.index(report.form)] += 1
        return True


class _MeanLoss(torch.autograd.Function):
    """The mean of the losses; its gradient is the one that the loss says."""

    @staticmethod
    def forward(z: Tensor, loss: Loss) -> Tensor:
        return loss.value(z).mean()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Loss], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.loss = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return grads[0] * ctx.loss.gradient(z) / z.shape[0], None


class _Rival(_Stepwise):
    def __init__(self, setup: Setup, baseline: Baseline) -> None:
        super().__init__(setup)
        assert setup.lr is not None  # Run has seen to that
        self.baseline, self.lr = baseline, setup.lr
        self.optimiser = baseline.optimiser(
            [self._weight],
            lr=setup.lr,
            weight_decay=setup.weight_decay,
            batches_per_epoch=setup.steps_per_epoch,
            schedule=self.schedule,
        )

    def _step(self, number: int, rows: Index) -> bool:
        per_epoch = self.setup.steps_per_epoch
        forward, loss, _ = self._batch(rows)
        if not self._finite(forward, loss):
            return False
        if self.baseline.snapshots and number % per_epoch == 0:
            self.optimiser.snapshot(lambda: _MeanLoss.apply(self._forward(), self.setup.loss))
            self._count(oracle_calls=per_epoch, forward_calls=per_epoch, backward_calls=per_epoch)

        def mean() -> Tensor:
            value: Tensor = _MeanLoss.apply(forward(), loss)
            return value

        gradients = 2 if self.baseline.snapshots else 1
        trials = -getattr(self.optimiser, "value_calls", 0)
        if not self.baseline.schedules:
            self.optimiser.param_groups[0]["lr"] = self.lr * self.schedule.now
        if self.baseline.evaluates:
            self.optimiser.step(mean)
        else:
            self.optimiser.zero_grad()
            mean().backward()
            self.optimiser.step()
        trials += getattr(self.optimiser, "value_calls", 0)
        self._count(
            oracle_calls=gradients,
            value_calls=trials,
            inner_steps=1,
            forward_calls=gradients + trials,
            backward_calls=gradients,
        )
        return True
