"""Training: rounds of gathering and updating, measured, and resumed bitwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from targetopt.inner import Inner
from targetopt.problems.base import positive_int
from targetopt.problems.imitation import checkpoint as checkpoints
from targetopt.problems.imitation.behaviour import Mixture, mixture
from targetopt.problems.imitation.environment import Environment, EnvironmentFailed, EnvLike
from targetopt.problems.imitation.evaluate import Evaluation
from targetopt.problems.imitation.expert import FAMILIES, Expert, load_expert
from targetopt.problems.imitation.gather import Gatherer, make_gatherer
from targetopt.problems.imitation.measure import Measurement, mean_loss
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.policy import GaussianPolicy
from targetopt.problems.imitation.progress import display
from targetopt.problems.imitation.update import (
    OptimizerFactory,
    SsoUpdate,
    TorchUpdate,
    Update,
    written,
)
from targetopt.rules import Rule
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, Diverged, all_finite

EVALUATION_SEED = 2**40
"""Added to a run's seed for the episodes it is measured on: none of them is trained on."""


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

        If the environment fails, what was gathered is kept and the next call goes on with it.

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
        before = time.process_time()
        counts = self.update(batch)
        updated = time.process_time()
        if not all_finite(*self.policy.parameters()):
            raise Diverged(
                f"round {t}: the update left the finite numbers; the loss on its states was {loss:.3g}. "
                "Lower lr=, or use SSO with inner=to.Armijo() or to.LBFGS()."
            )
        latest = Round(
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
            gather_seconds=gathered - begin,
            update_seconds=updated - before,
        )
        self.history.append(latest)  # the round is done, even if the environment fails from here on
        if evaluate:
            returns = self._evaluated()
            latest = replace(latest, mean_return=returns.mean, std_return=returns.std)
            self.history[-1] = latest
        return latest

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
            "expert and held-out states": self.measurement.fingerprint,
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes during a run, an unfinished round included."""
        return {
            "policy": self.policy.state_dict(),
            "update": self.update.state_dict(),
            "gatherer": self.gatherer.state_dict(),
            "history": [asdict(each) for each in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise."""
        self.policy.load_state_dict(state["policy"])
        self.update.load_state_dict(state["update"])
        self.gatherer.load_state_dict(state["gatherer"])
        self.history = [Round(**each) for each in state["history"]]


def train(
    env: EnvLike,
    expert: Expert | str | Path,
    *,
    learner: Literal["mlp", "linear"] | GaussianPolicy = "mlp",
    std: ArrayLike = 1.0,
    behaviour: Literal["online", "cloning", "dagger"] | Mixture = "online",
    lr: float | None = None,
    rule: Rule | None = None,
    inner: Inner | None = None,
    schedule: Schedule | None = None,
    optimizer: OptimizerFactory | None = None,
    steps: int = 1,
    rounds: int = 50,
    states_per_round: int = 1000,
    seed: int = 0,
    copies: int | None = None,
    fast: bool | Literal["auto"] = "auto",
    evaluate_every: int = 10,
    evaluation_episodes: int = 10,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    callback: Callable[[Round], None] | None = None,
) -> Result:
    """Imitate an expert: gather states, let the expert label them, take one step, and again.

    Each round is one oracle call. The loss of a state is KL(N(μ_e, std²) ‖ N(μ_θ, std²)) =
    ½‖(μ_θ − μ_e)/std‖², so at std 1 its smoothness is L = 1: ``lr=1`` (1/L) makes the surrogate
    the batch loss itself, and ``lr=None`` is the paper's 1/(2L) = ½.

    Args:
        env: a Gymnasium id, an environment, or a function that makes one. Continuous actions.
        expert: a function ``states (n, d) -> mean actions (n, k)``; ``"sac"`` or ``"ppo"`` for the
            one that comes with targetopt; or the path of an expert file.
        learner: ``"mlp"`` (256, 256, relu; float32), ``"linear"`` (float64), or a `GaussianPolicy`,
            which is then trained in place.
        std: of the policy, one number or one per action.
        behaviour: who drives: ``"online"`` (the learner), ``"cloning"`` (the expert), ``"dagger"``
            (from the one to the other), or a `Mixture`.
        lr: η, the step in target space.
        rule: of `SSO`; `GradientStep` by default.
        inner: of `SSO`; by default 100 steps of Adam for a network, `Exact` for a linear mean.
        schedule: of `SSO`; multiplies lr round by round, e.g. ``to.schedules.inverse_sqrt()``.
        optimizer: a torch optimiser instead of SSO: ``lambda parameters: torch.optim.Adam(parameters)``.
        steps: of that optimiser on each batch.
        rounds: rounds altogether, those of a resumed run included.
        states_per_round: states gathered before each update.
        seed: of the policy's weights and of everything random in gathering.
        copies: simulators that take turns; 20 by default.
        fast: as for `make_gatherer`.
        evaluate_every: rounds between two evaluations of the return; the last is always evaluated.
            0 for never.
        evaluation_episodes: episodes of an evaluation.
        checkpoint: a file to save the run in after each round. If it is there already, the run goes
            on from it and ends with the same bits as if it had never stopped.
        progress: show where the training stands, on stderr.
        callback: called with each finished `Round`.

    Example:
        >>> import targetopt as to
        >>> result = to.imitation.train(
        ...     env="Swimmer-v5",
        ...     expert=lambda states: 0.5 * np.tanh(states[:, 3:5]),  # any function
        ...     rule=to.GradientStep(),
        ...     inner=to.Armijo(max_steps=10),
        ...     rounds=2,
        ...     states_per_round=100,
        ...     copies=2,
        ...     evaluation_episodes=1,
        ...     progress=False,
        ... )
        >>> result.history[-1].interactions, result.policy.action_size
        (200, 2)
    """
    positive_int("rounds", rounds)
    if evaluate_every < 0:
        raise BadArgument(f"evaluate_every={evaluate_every!r} must be at least 0 (0: never)")
    environment = Environment(env)
    teacher = _expert(expert, environment)
    policy = _policy(learner, std, environment, seed)
    update = _update(policy, lr, rule, inner, schedule, optimizer, steps)
    training = Training(
        make_gatherer(environment, copies=copies, seed=seed, fast=fast),
        teacher,
        policy,
        update,
        behaviour=mixture(behaviour),
        states_per_round=states_per_round,
        measurement=Measurement(
            environment,
            teacher,
            episodes=evaluation_episodes,
            seed=EVALUATION_SEED + seed,
            fast=fast,
        ),
    )
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        state = checkpoints.load(path, training.settings)
        if state is not None:
            training.load_state_dict(state)
        checkpoints.save(path, training.settings, training.state_dict())  # or fail before the work
    done = len(training.history)
    expert_return = training.measurement.expert.mean
    with display(rounds, done, expert_return, wanted=progress) as show:
        for t in range(done + 1, rounds + 1):
            due = evaluate_every > 0 and (t % evaluate_every == 0 or t == rounds)
            try:
                latest = training.round(evaluate=due)
            except EnvironmentFailed as error:
                _keep(training, path, error)
                raise
            if path is not None:
                checkpoints.save(path, training.settings, training.state_dict())
            show(latest)
            if callback is not None:
                callback(latest)
    training.gatherer.close()
    policy.provenance = {"rounds": len(training.history), "settings": training.settings}
    return training.result


def _expert(expert: Expert | str | Path, environment: Environment) -> Expert:
    if isinstance(expert, str) and expert in FAMILIES:
        return load_expert(environment.name, expert)
    if isinstance(expert, (str, Path)):
        return load_expert(expert)
    if not callable(expert):
        raise BadArgument(
            f"expert={expert!r} must be a function from states to mean actions, {' or '.join(map(repr, FAMILIES))}, "
            "or the path of an expert file; SB3 models go through to.imitation.from_stable_baselines3"
        )
    return expert


def _policy(
    learner: str | GaussianPolicy, std: ArrayLike, environment: Environment, seed: int
) -> GaussianPolicy:
    if not isinstance(learner, GaussianPolicy):
        return GaussianPolicy(
            environment.observation_size,
            environment.action_size,
            mean=learner,  # type: ignore[arg-type]
            std=std,
            low=environment.low,
            high=environment.high,
            seed=seed,
            environment=environment.name,
        )
    sizes = (learner.observation_size, learner.action_size)
    if sizes != (environment.observation_size, environment.action_size):
        raise BadArgument(
            f"learner= takes {sizes[0]} numbers and gives {sizes[1]}; env={environment.name!r} shows "
            f"{environment.observation_size} and takes {environment.action_size}"
        )
    return learner


def _update(
    policy: GaussianPolicy,
    lr: float | None,
    rule: Rule | None,
    inner: Inner | None,
    schedule: Schedule | None,
    optimizer: OptimizerFactory | None,
    steps: int,
) -> Update:
    if optimizer is None:
        if steps != 1:
            raise BadArgument(
                f"steps={steps} is for optimizer=; the steps of SSO are its inner solver's: "
                f"inner=to.Armijo(max_steps={steps})"
            )
        return SsoUpdate(policy, lr, rule, inner, schedule)
    parts = {"lr": lr, "rule": rule, "inner": inner, "schedule": schedule}
    given = [name for name, part in parts.items() if part is not None]
    if given:
        raise BadArgument(
            f"{', '.join(given)} belong to SSO, which optimizer= replaces; give the optimiser its own options, "
            "e.g. optimizer=lambda p: torch.optim.SGD(p, lr=0.1)"
        )
    return TorchUpdate(policy, optimizer, steps)


def _keep(training: Training, path: Path | None, error: EnvironmentFailed) -> None:
    """Save an unfinished round and say where."""
    error.result = training.result
    if path is None:
        error.add_note(
            f"{len(training.history)} rounds were finished: error.result has their policy. With checkpoint= the "
            "run could go on from here."
        )
        return
    checkpoints.save(path, training.settings, training.state_dict())
    error.add_note(
        f"The run so far is in {str(path)!r}: train again with this checkpoint to go on."
    )
