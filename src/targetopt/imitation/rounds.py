"""A run of imitation learning, round by round: what a round did, and how it goes on bitwise."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from targetopt.imitation import checkpoint as checkpoints
from targetopt.imitation.data import DATA, Replay
from targetopt.imitation.expert import Expert
from targetopt.imitation.kept import Kept
from targetopt.imitation.measuring.evaluate import Evaluation
from targetopt.imitation.measuring.measure import Measurement, mean_loss
from targetopt.imitation.policies.base import Behaviour, Policy
from targetopt.imitation.prices import FREE, Prices
from targetopt.imitation.result import Result, Round
from targetopt.imitation.simulation.behaviour import Mixture
from targetopt.imitation.simulation.gather import Batch, Gatherer
from targetopt.imitation.teacher import Teacher
from targetopt.imitation.update import MeanParameters, Update, written
from targetopt.types import BadArgument, Counts, Diverged, all_finite, positive_int


class Training:
    """A run between two rounds. `train` drives one; so may you, round by round.

    A round is `gather` (states, and what the expert says there), `step` (the update) and `measure`;
    `round` is all three. Labels are paid for once: if the update fails, the policy is what it was
    before and the next call goes on with the same states.

    Args:
        gatherer: where states come from.
        expert: who labels them.
        policy: the learner.
        update: how it learns from a batch.
        behaviour: who drives.
        states_per_round: states gathered before each update.
        measurement: what the policy is measured on.
        data: what a round learns from; its own states by default.
        prices: of questions and interactions.
        expert_staggers: whether the expert may drive the copies apart before the first round, if that round is its own.
            It is asked about each of these states, and nothing is learned from them. Otherwise the learner does,
            as soon as it has a share in the driving; rounds that the expert drives alone show whole episodes.

    Attributes:
        teacher: the expert as this run asks it, with the count of what was asked.
        batch: states that were gathered and not learned from yet; None if there are none.
        history: the finished rounds.
        counts: what all updates together took.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        expert: Expert,
        policy: Policy,
        update: Update,
        *,
        behaviour: Mixture,
        states_per_round: int,
        measurement: Measurement,
        data: Replay = DATA["round"],
        prices: Prices = FREE,
        expert_staggers: bool = True,
    ) -> None:
        self.gatherer = gatherer
        self.teacher = Teacher.of(expert, gatherer.environment)
        self.policy = policy
        self.update = update
        self.behaviour = behaviour
        self.states_per_round = positive_int("states_per_round", states_per_round)
        self.measurement = measurement
        self.data = data
        self.prices = prices
        self.expert_staggers = expert_staggers
        self._store = Kept(data)
        self._kept: Batch | None = None
        self.batch: Batch | None = None
        self.history: list[Round] = []
        self.counts = Counts()
        self._gathering_time = self._loss = math.nan

    def round(self, *, evaluate: bool = False) -> Round:
        """Gather, update, measure.

        If the environment fails, what was gathered is kept and the next call goes on with it.

        Args:
            evaluate: also measure the return after the update.
        """
        self.step()  # the round is done, even if the environment fails from here on
        return self.measure(returns=evaluate)

    def gather(self) -> Batch:
        """The states of the next round, with their labels; kept until a `step` has learned from them."""
        if self.batch is None:
            t = len(self.history) + 1
            acting = self.behaviour.at(t, self.policy, self.teacher)
            whole = not self.expert_staggers and self.behaviour.share(t) == 1.0
            if not whole:
                self._stagger(t, acting)
            self.batch = self.gatherer.gather(
                self.states_per_round, acting, self.teacher, whole=whole
            )
            self._gathering_time = self.gatherer.gathering_time
            self._loss = math.nan
        return self.batch

    def _stagger(self, t: int, acting: Behaviour) -> None:
        """Drive the copies apart, where that is not done yet."""
        if not self.expert_staggers:  # the learner's noise is that of its own rounds
            acting = replace(self.behaviour, beta=0.0).at(t, self.policy, self.teacher)
        with self.teacher.asked_for("driving"):
            self.gatherer.stagger(acting)

    @property
    def loss(self) -> float:
        """The policy loss on the states that were gathered and not learned from yet, before the update."""
        batch = self.gather()
        if math.isnan(self._loss):
            self._loss = mean_loss(self.policy, batch.states, batch.labels)
        return self._loss

    def step(self) -> Round:
        """Learn from the states of the round; they are gathered if they were not."""
        batch, loss = self.gather(), self.loss
        t = len(self.history) + 1
        learned = self._store.joined(self._kept, batch)
        kept = copy.deepcopy((self.policy.state_dict(), self.update.state_dict()))
        try:
            latest = self._updated(t, learned, loss)
        except BaseException:  # Ctrl-C too: a policy is of as many rounds as the history
            self.policy.load_state_dict(kept[0])
            self.update.load_state_dict(kept[1])
            raise
        # nothing can come between these
        self.history, self._kept, self.batch = [*self.history, latest], learned, None
        return latest

    def measure(self, *, returns: bool = False) -> Round:
        """Put the held-out loss, and the return if it is wanted, down in the last round."""
        self.history[-1] = replace(
            self.history[-1], held_out_loss=self.measurement.loss(self.policy)
        )
        if returns:
            found = self._evaluated()
            self.history[-1] = replace(
                self.history[-1],
                mean_return=found.mean,
                std_return=found.std,
                return_share=found.mean / self.measurement.expert_return,
            )
        return self.history[-1]

    def _updated(self, t: int, batch: Batch, loss: float) -> Round:
        before = time.process_time()
        # what a module draws while it trains (dropout) belongs to the round: a run that goes on repeats it
        devices = {p.device.index for p in self.policy.parameters() if p.device.type == "cuda"}
        with torch.random.fork_rng(devices=sorted(devices)):
            torch.manual_seed(_drawing_seed(self.gatherer.seed, t))
            rng = np.random.default_rng([self.gatherer.seed, 4, t])
            counts = Counts()
            mean = MeanParameters(self.policy) if self.data.average else None
            for drawn in self.data.drawn(batch, rng):
                counts += self.update(drawn)
                if mean is not None:
                    mean.add()
            if mean is not None:
                mean.take()
            counts = replace(counts, oracle_calls=1)  # labels are bought once
        updated = time.process_time()
        if not all_finite(*self.policy.parameters()):
            raise Diverged(
                f"round {t}: the update left the finite numbers; the loss on its states was {loss:.3g}. "
                "Lower lr=, or use SSO with inner=to.Armijo() or to.LBFGS()."
            )
        self.counts += counts
        questions = self.teacher.questions - self.teacher.asked["checking"]
        interactions = self.gatherer.interactions
        return Round(
            round=t,
            interactions=interactions,
            questions=questions,
            cost=self.prices.of(questions=questions, interactions=interactions),
            states=len(batch.states),
            beta=self.behaviour.share(t),
            loss=loss,
            held_out_loss=math.nan,
            mean_return=math.nan,
            std_return=math.nan,
            return_share=math.nan,
            oracle_calls=counts.oracle_calls,
            value_calls=counts.value_calls,
            inner_steps=counts.inner_steps,
            forward_calls=counts.forward_calls,
            backward_calls=counts.backward_calls,
            gathering_time=self._gathering_time,
            updating_time=updated - before,
        )

    @property
    def _remembers(self) -> bool:
        """Whether later rounds learn from the states of earlier ones."""
        return self._kept is not None and self.data.reaches(self.states_per_round)

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
        return Result(
            self.policy,
            list(self.history),
            self.measurement.expert_return,
            dict(self.teacher.asked),
            self.prices.of(
                questions=self.teacher.questions, interactions=self.gatherer.interactions
            ),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What makes this run this run, for comparison with a checkpoint's."""
        policy, copies = self.policy, self.gatherer.copies
        return {
            "environment": self.gatherer.environment.name,
            "learner": policy.description,
            "loss": policy.objective,
            "extras": {name: value.tolist() for name, value in policy.extras().items()},
            "behaviour": written(self.behaviour),
            "data": written(self.data),
            "states_per_round": self.states_per_round,
            "seed": self.gatherer.seed,
            "copies": [type(copies).__name__, copies.count],
            "expert staggers": self.expert_staggers,
            "update": self.update.settings,
            "evaluation": self.measurement.settings,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, an unfinished round included; the expert's own episodes,
        which are not asked for again; and for `Result.load` what its settings do not say.
        """
        batch = self.batch
        return {
            "extras": self.policy.extras(),
            "expert_return": self.measurement.expert_return,
            "cost": self.result.cost,
            "measurement": self.measurement.state_dict(),
            "teacher": self.teacher.state_dict(),
            "policy": self.policy.state_dict(),
            "update": self.update.state_dict(),
            "gatherer": self.gatherer.state_dict(),
            "batch": {} if batch is None else dict(vars(batch)),
            "kept": {} if not self._remembers else dict(vars(self._kept)),
            "gathering_time": self._gathering_time,
            "counts": asdict(self.counts),
            "history": [asdict(each) for each in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise."""
        history = [Round(**each) for each in state["history"]]
        self._check_shares(history)
        asked = self.teacher.questions
        self.measurement.load_state_dict(checkpoints.unpacked(state["measurement"]))
        checking = self.teacher.questions - asked
        self.update.load_state_dict(state["update"])
        self.policy.load_state_dict(state["policy"])
        self.gatherer.load_state_dict(state["gatherer"])
        self.teacher.load_state_dict(checkpoints.unpacked(state["teacher"]))
        self.teacher.asked["checking"] += checking
        self.batch, self._kept = _batch(state["batch"]), _batch(state["kept"])
        self._gathering_time, self._loss = state["gathering_time"], math.nan
        self.counts = Counts(**state["counts"])
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


def _batch(state: dict[str, Any]) -> Batch | None:
    arrays = checkpoints.unpacked(state)
    return Batch(**{k: np.array(v) for k, v in arrays.items()}) if arrays else None


def _drawing_seed(seed: int, t: int) -> int:
    """Of what is drawn in the update of round t."""
    return int(np.random.default_rng([seed, 3, t]).integers(2**63))
