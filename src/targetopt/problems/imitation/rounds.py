"""A run of imitation learning, round by round: what a round did, what came out, and how it goes on bitwise."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from targetopt.problems.base import positive_int
from targetopt.problems.imitation import checkpoint as checkpoints
from targetopt.problems.imitation.behaviour import Mixture
from targetopt.problems.imitation.evaluate import Evaluation
from targetopt.problems.imitation.expert import Expert
from targetopt.problems.imitation.gather import Batch, Gatherer
from targetopt.problems.imitation.measure import Measurement, mean_loss
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.policy import GaussianPolicy
from targetopt.problems.imitation.update import (
    Update,
    written,
)
from targetopt.types import BadArgument, Diverged, all_finite


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        round: its number, from 1.
        interactions: states gathered so far, this round's included.
        beta: the expert's share of the driving.
        loss: policy loss on this round's states, before the update (the paper's measure).
        held_out_loss: policy loss on the fixed expert states, after the update.
        mean_return: return of the mean action after the update, over the evaluation episodes; nan in
            rounds without an evaluation.
        std_return: its standard deviation between episodes.
        oracle_calls: rounds are oracle calls, 1 each; the other counts are of this round's update.
        value_calls: losses evaluated without a gradient.
        inner_steps: updates of the parameters.
        forward_calls: of the policy on the whole batch.
        backward_calls: through it.
        gather_seconds: CPU time of gathering and labelling (without the first round's burn-in).
        update_seconds: CPU time of the update.
    """

    round: int
    interactions: int
    beta: float
    loss: float
    held_out_loss: float
    mean_return: float
    std_return: float
    oracle_calls: int
    value_calls: int
    inner_steps: int
    forward_calls: int
    backward_calls: int
    gather_seconds: float
    update_seconds: float


@dataclass(frozen=True)
class Result:
    """A trained policy and how it came about.

    Attributes:
        policy: the learner; `evaluate` it, or use its ``save`` and ``act``.
        history: one `Round` each.
        expert_return: mean return of the expert, over as many episodes as the learner's.
    """

    policy: GaussianPolicy
    history: list[Round]
    expert_return: float

    def columns(self) -> dict[str, Array]:
        """The history as one array per attribute of `Round`, for plots and data frames."""
        return {
            item.name: np.array([getattr(r, item.name) for r in self.history], dtype=np.float64)
            for item in fields(Round)
        }

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """The run in a checkpoint as far as it went, without its expert, environment or settings.

        Example:
            >>> import tempfile, targetopt as to
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = to.imitation.train(
            ...         "Swimmer-v5",
            ...         lambda states: 0.5 * np.tanh(states[:, 3:5]),
            ...         learner="linear",
            ...         rounds=2,
            ...         states_per_round=50,
            ...         copies=2,
            ...         evaluate_every=0,
            ...         checkpoint=f"{folder}/run.pt",
            ...         progress=False,
            ...     )
            ...     result = Result.load(f"{folder}/run.pt")
            >>> len(result.history), result.policy.environment
            (2, 'Swimmer-v5')
        """
        settings, state = checkpoints.read(Path(path))
        mean, dtype, widths = settings["learner"]
        policy = GaussianPolicy(
            widths[0],
            widths[-1],
            mean=mean,
            hidden=widths[1:-1],
            std=settings["std"],
            low=state["box"][0].numpy(),
            high=state["box"][1].numpy(),
            dtype=getattr(torch, dtype.removeprefix("torch.")),
            environment=settings["environment"],
        )
        policy.load_state_dict(state["policy"])
        history = [Round(**each) for each in state["history"]]
        policy.provenance = {"rounds": len(history), "settings": settings}
        return cls(policy, history, state["expert_return"])


class Training:
    """A run between two rounds. `train` drives one; so may you, round by round.

    Args:
        gatherer: where states come from.
        expert: who labels them.
        policy: the learner.
        update: how it learns from a batch.
        behaviour: who drives.
        states_per_round: states gathered before each update.
        measurement: what the policy is measured on.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        expert: Expert,
        policy: GaussianPolicy,
        update: Update,
        *,
        behaviour: Mixture,
        states_per_round: int,
        measurement: Measurement,
    ) -> None:
        self.gatherer = gatherer
        self.expert = expert
        self.policy = policy
        self.update = update
        self.behaviour = behaviour
        self.states_per_round = positive_int("states_per_round", states_per_round)
        self.measurement = measurement
        self.history: list[Round] = []

    def round(self, *, evaluate: bool = False) -> Round:
        """Gather, update, measure.

        If the environment fails, what was gathered is kept and the next call goes on with it. If the
        update fails, the policy is what it was before.

        Args:
            evaluate: also measure the return after the update.
        """
        t = len(self.history) + 1
        acting = self.behaviour.at(t, self.policy, self.expert)
        self.gatherer.stagger(acting)
        begin = time.process_time()
        batch = self.gatherer.gather(self.states_per_round, acting, self.expert)
        gathered = time.process_time()
        loss = mean_loss(self.policy, batch.states, batch.labels)
        kept = [p.detach().clone() for p in self.policy.parameters()]
        try:
            latest = self._updated(t, batch, loss, gathered - begin)
        except BaseException:  # Ctrl-C too: a policy is of as many rounds as the history
            with torch.no_grad():
                for parameter, value in zip(self.policy.parameters(), kept, strict=True):
                    parameter.copy_(value)
            raise
        self.history.append(latest)  # the round is done, even if the environment fails from here on
        return self.evaluate() if evaluate else latest

    def evaluate(self) -> Round:
        """Measure the return of the policy and put it down in the last round."""
        returns = self._evaluated()
        self.history[-1] = replace(
            self.history[-1], mean_return=returns.mean, std_return=returns.std
        )
        return self.history[-1]

    def _updated(self, t: int, batch: Batch, loss: float, gather_seconds: float) -> Round:
        before = time.process_time()
        counts = self.update(batch)
        updated = time.process_time()
        if not all_finite(*self.policy.parameters()):
            raise Diverged(
                f"round {t}: the update left the finite numbers; the loss on its states was {loss:.3g}. "
                "Lower lr=, or use SSO with inner=to.Armijo() or to.LBFGS()."
            )
        return Round(
            round=t,
            interactions=self.gatherer.interactions,
            beta=self.behaviour.share(t),
            loss=loss,
            held_out_loss=self.measurement.loss(self.policy),
            mean_return=math.nan,
            std_return=math.nan,
            oracle_calls=counts.oracle_calls,
            value_calls=counts.value_calls,
            inner_steps=counts.inner_steps,
            forward_calls=counts.forward_calls,
            backward_calls=counts.backward_calls,
            gather_seconds=gather_seconds,
            update_seconds=updated - before,
        )

    def _evaluated(self) -> Evaluation:
        if not self.gatherer.copies.shared:
            return self.measurement.evaluate(self.policy)
        # the one instance there is serves both: its episode is played again afterwards
        state = self.gatherer.copies.state_dict()
        try:
            return self.measurement.evaluate(self.policy)
        finally:
            self.gatherer.copies.load_state_dict(state)

    @property
    def result(self) -> Result:
        """The run so far."""
        return Result(self.policy, list(self.history), self.measurement.expert.mean)

    @property
    def settings(self) -> dict[str, Any]:
        """What makes this run this run, for comparison with a checkpoint's."""
        policy, copies = self.policy, self.gatherer.copies
        return {
            "environment": self.gatherer.environment.name,
            "learner": [policy.mean, str(policy.dtype), policy.widths],
            "std": policy.std.tolist(),
            "behaviour": written(self.behaviour),
            "states_per_round": self.states_per_round,
            "seed": self.gatherer.seed,
            "copies": [type(copies).__name__, copies.count],
            "update": self.update.settings,
            "evaluation_episodes": self.measurement.episodes,
            checkpoints.FINGERPRINT: self.measurement.fingerprint,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, an unfinished round included; and for `Result.load`
        what its settings do not say.
        """
        return {
            "box": [self.policy.low, self.policy.high],
            "expert_return": self.measurement.expert.mean,
            "policy": self.policy.state_dict(),
            "update": self.update.state_dict(),
            "gatherer": self.gatherer.state_dict(),
            "history": [asdict(each) for each in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise."""
        history = [Round(**each) for each in state["history"]]
        self._check_shares(history)
        self.update.load_state_dict(state["update"])
        self.policy.load_state_dict(state["policy"])
        self.gatherer.load_state_dict(state["gatherer"])
        self.history = history

    def _check_shares(self, history: list[Round]) -> None:
        """Two functions β have no other difference to show than what they give."""
        for each in history:
            here = self.behaviour.share(each.round)
            if here != each.beta:
                raise BadArgument(
                    f"behaviour={self.behaviour!r} is not that of the saved run: the expert's share of round "
                    f"{each.round} is {each.beta!r} there, {here!r} here. Use the same beta, or begin anew."
                )
