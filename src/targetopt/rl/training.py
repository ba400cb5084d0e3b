"""Training a policy by trying: batches of interactions, and one step of actor and critic after each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from targetopt.display import Progress
from targetopt.imitation import checkpoint as checkpoints
from targetopt.imitation.checkpoint import unpacked
from targetopt.imitation.simulation.environment import EnvLike
from targetopt.imitation.simulation.gather import make_copies
from targetopt.imitation.simulation.over_ray import OverRay
from targetopt.inner import InnerResult
from targetopt.rl.environment import ControlEnvironment
from targetopt.rl.gathering import Batch, Collector, gather_beside
from targetopt.rl.learner import JUDGES, Learner, Lesson, lesson
from targetopt.rl.networks import Actor, Critic
from targetopt.rl.normalise import Normaliser, RewardScale
from targetopt.rl.policy import Policy
from targetopt.rl.recipes import Recipe, preset
from targetopt.rl.result import Result, Update
from targetopt.rl.stack import Meeting, Task, acting, solve
from targetopt.types import Diverged, StepReport, TargetoptError, checked_whole, positive_int

REFUSALS = 20
"""So many refused policy steps in a row, and the run ends: its KL cannot be held."""

ADVICE = "Use the same settings (steps= alone may grow), or another file."


class CannotHold(Diverged):
    """The step rule has refused every policy step for a long time: what it wants to hold cannot be held.

    Attributes:
        result: the run so far.
    """

    result: Any = None


class RefusedStep(UserWarning):
    """A policy step was refused, and the policy stayed. It is said once a run; ``history`` has all of them."""


class Training:
    """A run that can be stepped, saved and resumed; `train` is the loop around it.

    Args:
        env: a Gymnasium id, an environment, or a function that makes one.
        recipe: of the run.
        seed: of everything random in it.
        fast: as for `targetopt.imitation.make_gatherer`.
        gather: where the copies live; see `train`.
        actor: a module of your own from observations to the family's targets; a perceptron by default.
        critic: a module of your own from observations to values, shape ``(n,)``.
    """

    def __init__(
        self,
        env: EnvLike,
        recipe: Recipe,
        seed: int,
        *,
        fast: Any = "auto",
        gather: OverRay | None = None,
        actor: nn.Module | None = None,
        critic: nn.Module | None = None,
    ) -> None:
        self.seed = checked_whole("", "seed", seed, least=0)
        self.recipe = recipe
        self.environment = ControlEnvironment(env)
        size, family = self.environment.observation_size, self.environment.family
        built: dict[str, Any] = {
            "hidden": recipe.hidden,
            "activation": recipe.activation,
            "dtype": recipe.torch_dtype,
        }
        if actor is None:
            actor = Actor(size, family, std=recipe.std, seed=2 * self.seed, **built)
        if critic is None:
            critic = Critic(size, seed=2 * self.seed + 1, **built)
        judge = None
        if recipe.advantage_critic is not None:
            recipe.advantage_critic.check(family)
            judge = Actor(size, family, seed=JUDGES + 2 * self.seed, **built)
        self.learner = Learner(actor, critic, family, recipe, 2 * self.seed, judge)
        self.normaliser = Normaliser(size, wanted=recipe.normalise_observations)
        self.scale = RewardScale(recipe.copies, recipe.discount, wanted=recipe.normalise_rewards)
        made = make_copies(self.environment, recipe.copies, fast, over=gather)
        self.collector = Collector(made, family, seed=self.seed)
        self.history: list[Update] = []
        self.episodes: list[tuple[int, float, int]] = []
        self.refused_in_a_row = 0

    @property
    def settings(self) -> dict[str, Any]:
        """By which a checkpoint knows its run."""
        return {
            "kind": "reinforcement learning",
            "environment": self.environment.name,
            "seed": self.seed,
            "recipe": self.recipe.described(),
        }

    @property
    def policy(self) -> Policy:
        """As it is now."""
        return Policy(
            self.learner.actor,
            self.environment.family,
            self.normaliser,
            low=self.environment.low,
            high=self.environment.high,
            environment=self.environment.name,
        )

    @property
    def result(self) -> Result:
        """The run so far."""
        episodes = np.array(self.episodes, dtype=np.float64).reshape(-1, 3)
        totals = self.learner.policy_step.totals
        return Result(self.policy, list(self.history), episodes, totals, self.settings)

    def step(self) -> Update:
        """One batch of interactions, and what is learned from it."""
        (update,) = step_beside([self])
        if isinstance(update, TargetoptError):
            raise update
        return update

    def learned(
        self,
        batch: Batch,
        taught: Lesson,
        reports: tuple[StepReport, StepReport],
        gathering: float,
        updating: float,
    ) -> Update:
        """Take in what a batch has taught, after both networks have made their steps."""
        size = self.environment.observation_size
        self.normaliser.learn(batch.observations.reshape(-1, size))
        update = self._recorded(batch, *reports, taught.explained, gathering, updating)
        self.history.append(update)
        self.episodes += batch.finished
        self.refused_in_a_row = self.refused_in_a_row + 1 if update.refused else 0
        return update

    def _recorded(
        self,
        batch: Batch,
        policy: StepReport,
        critic: StepReport,
        explained: float,
        gathering: float,
        updating: float,
    ) -> Update:
        returns, lengths = [f[1] for f in batch.finished], [f[2] for f in batch.finished]
        return Update(
            update=len(self.history) + 1,
            interactions=self.collector.interactions,
            episodes=len(returns),
            mean_return=float(np.mean(returns)) if returns else float("nan"),
            mean_length=float(np.mean(lengths)) if lengths else float("nan"),
            kl=policy.measures.get("kl", float("nan")),
            entropy=policy.measures.get("entropy", float("nan")),
            eta=policy.eta,
            solves=policy.solves,
            refused=policy.stop_reason == "refused",
            inner_steps=policy.inner_steps,
            critic_loss=critic.loss,
            explained=explained,
            gathering_time=gathering,
            updating_time=updating,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {
            "learner": self.learner.state_dict(),
            "normaliser": self.normaliser.state_dict(),
            "scale": self.scale.state_dict(),
            "collector": self.collector.state_dict(),
            "history": [asdict(update) for update in self.history],
            "episodes": np.array(self.episodes, dtype=np.float64).reshape(-1, 3),
            "refused_in_a_row": self.refused_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise."""
        self.learner.load_state_dict(state["learner"])
        self.normaliser.load_state_dict(unpacked(state["normaliser"]))
        self.scale.load_state_dict(unpacked(state["scale"]))
        self.collector.load_state_dict(state["collector"])
        self.history = [Update(**each) for each in state["history"]]
        rows = np.asarray(unpacked(state["episodes"])).tolist()
        self.episodes = [(int(at), float(earned), int(length)) for at, earned, length in rows]
        self.refused_in_a_row = int(state["refused_in_a_row"])

    def close(self) -> None:
        """Close the environment and its copies."""
        self.collector.close()


def step_beside(trainings: Sequence[Training]) -> list[Update | TargetoptError]:
    """One update of each of several runs of one recipe: what each would do by itself, bit by bit, in less time.

    Their policies act at once, and inner solves that can be done at once are. A run that fails does not keep the others
    from going on; its error stands in the place of its update.
    """
    begin = time.process_time()
    recipe, count = trainings[0].recipe, len(trainings)
    actors, scales = [t.learner.actor for t in trainings], [t.normaliser for t in trainings]
    act = acting(actors, scales, recipe.torch_dtype)
    steps = recipe.batch // recipe.copies
    outcomes: list[Any] = list(gather_beside([t.collector for t in trainings], steps, act))
    going = [i for i, found in enumerate(outcomes) if isinstance(found, Batch)]
    lessons = {}
    for i in going:
        t = trainings[i]
        lessons[i] = lesson(outcomes[i], t.learner.values(), t.normaliser, t.scale, recipe)
    between = time.process_time()
    if count == 1:
        reports: list[Any] = [trainings[i].learner.update(lessons[i]) for i in going]
    else:
        meeting: Meeting[Task, InnerResult] = Meeting(solve)
        reports = meeting.run(
            [partial(trainings[i].learner.update, lessons[i], meeting.ask) for i in going]
        )
    end = time.process_time()
    for i, found in zip(going, reports, strict=True):
        if isinstance(found, TargetoptError):
            outcomes[i] = found
        elif isinstance(found, Exception):
            raise found
        else:
            times = (between - begin) / count, (end - between) / count
            outcomes[i] = trainings[i].learned(outcomes[i], lessons[i], found, *times)
    return outcomes


def train(
    env: EnvLike,
    *,
    steps: int,
    preset: str | Recipe = "sso",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
    fast: Any = "auto",
    gather: OverRay | None = None,
    actor: nn.Module | None = None,
    critic_network: nn.Module | None = None,
    after: Callable[[Training], object] | None = None,
    **changes: Any,
) -> Result:
    """Train a policy in an environment: on-policy, actor and critic, any cell of the grid.

    After every batch of interactions the policy makes one step of `SSO`: the answer of the oracle is the policy
    gradient at the visited states, the rule builds the surrogate, and the inner solver decreases it as far as it can
    without another interaction. The critic makes one with the squared loss.

    Args:
        env: a Gymnasium id such as ``"Hopper-v5"``, an environment, or a function that makes one. Actions may be
            continuous (a 1-D ``Box``), ``Discrete`` or ``MultiDiscrete``. Episodes that terminate and episodes that are
            cut off are kept apart.
        steps: interactions in all; the last batch may go beyond.
        preset: which recipe to begin with: ``"sso"``, ``"ppo"``, ``"trpo"``, ``"mdpo"``, ``"fma-pg"``, ``"spma"``, or a
            `Recipe`.
        seed: of everything random.
        checkpoint: a file to save to. If it is there, the run goes on from it and ends with the same bits as if it had
            never stopped.
        checkpoint_every: updates between two saves; the last update is saved in any case.
        progress: whether to show how far it is.
        fast: ``"auto"`` steps MuJoCo's runners in native code; False is the plain Gymnasium loop.
        gather: where the copies of the environment live: here by default, or on a Ray cluster,
            ``to.imitation.OverRay(workers=4)``, with the same numbers; it pays where one step takes longer than a
            millisecond.
        actor: a torch module of your own from observations to the targets of the environment's family.
        critic_network: a torch module of your own from observations to values, shape ``(n,)``.
        after: called with the `Training` after every update.
        changes: any setting of `Recipe`: ``surrogate=``, ``divergence=``, ``step=``, ``inner=``, ``copies=``, ….

    Example:
        >>> import targetopt as to
        >>> result = to.rl.train("CartPole-v1", steps=512, batch=256, seed=0, progress=False)
        >>> [update.interactions for update in result.history], result.counts.interactions
        ([256, 512], 512)
        >>> result.policy.act([[0.0, 0.0, 0.1, 0.0]]).shape
        (1,)

    References: Lavington et al., ICML 2023 (SSO); Vaswani et al., AISTATS 2022 (policy steps as surrogates); Schulman
    et al., 2015–2017 (TRPO, GAE, PPO); Tomar et al., 2022 (MDPO); Asad et al., 2025 (SPMA).
    """
    positive_int("steps", steps)
    positive_int("checkpoint_every", checkpoint_every)
    recipe = _preset(preset).changed(changes)
    training = Training(
        env, recipe, seed, fast=fast, gather=gather, actor=actor, critic=critic_network
    )
    path = None if checkpoint is None else Path(checkpoint)
    run = Run(training, steps, path, checkpoint_every, after)
    with Progress(training.environment.name, "steps", wanted=progress) as shown:
        until_the_end([run], shown)
    if run.error is not None:
        raise run.error
    return training.result


_preset = preset


class Run:
    """A training with its length, its file, and what is to be said of it.

    Args:
        training: what is stepped; it goes on from the file, if that is there.
        steps: interactions in all.
        path: its checkpoint.
        every: updates between two saves.
        after: called after every update.

    Attributes:
        error: why it has ended early.
    """

    def __init__(
        self,
        training: Training,
        steps: int,
        path: Path | None,
        every: int,
        after: Callable[[Training], object] | None,
    ) -> None:
        self.training, self.steps, self.path = training, steps, path
        self.every, self.after = every, after
        self.error: TargetoptError | None = None
        self._said = False

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self.path is not None:
            saved = checkpoints.load(self.path, self.training.settings, ADVICE)
            if saved is not None:
                self.training.load_state_dict(saved)

    @property
    def goes_on(self) -> bool:
        return self.error is None and self.training.collector.interactions < self.steps

    def take(self, outcome: Update | TargetoptError) -> None:
        """Save, say and judge what an update did."""
        if isinstance(outcome, TargetoptError):
            self._fail(outcome)
            return
        training, over = self.training, not self.goes_on
        if self.path is not None and (over or outcome.update % self.every == 0):
            checkpoints.save(self.path, training.settings, training.state_dict())
        if self.after is not None:
            self.after(training)
        if outcome.refused and not self._said:
            self._said = True
            warnings.warn(_refusal(outcome, training), RefusedStep, stacklevel=4)
        if training.refused_in_a_row >= REFUSALS:
            self._fail(
                CannotHold(
                    f"the last {REFUSALS} policy steps were refused, the policy has stood still since update "
                    f"{outcome.update - REFUSALS}. {_refusal(outcome, training)}"
                )
            )

    def _fail(self, error: TargetoptError) -> None:
        if hasattr(error, "result"):
            error.result = self.training.result
        self.error = error


def until_the_end(runs: Sequence[Run], progress: Progress) -> None:
    """Step all runs until each has its interactions or has failed; they are closed afterwards."""
    try:
        for run in runs:
            run.resume()
        while going := [run for run in runs if run.goes_on]:
            found = step_beside([run.training for run in going])
            for run, outcome in zip(going, found, strict=True):
                run.take(outcome)
            told = [outcome for outcome in found if isinstance(outcome, Update)]
            if told:
                progress.show(told[0].interactions, going[0].steps, _said_of_all(told))
    finally:
        for run in runs:
            run.training.close()


def _said_of_all(updates: list[Update]) -> str:
    if len(updates) == 1:
        return said_of(updates[0])
    earned = [update.mean_return for update in updates if update.episodes]
    if not earned:
        return f"{len(updates)} seeds, no episode ended"
    spread = f"{min(earned):.4g} to {max(earned):.4g}"
    return f"{len(updates)} seeds, mean return {np.mean(earned):.4g} ({spread})"


def _refusal(update: Update, training: Training) -> str:
    return (
        f"{training.recipe.step!r} refused the policy step of update {update.update} after {update.solves} solves, the "
        f"last with a KL of {update.kl:.3g}: the inner solver goes too far whatever η is. Give it smaller or fewer "
        "steps (inner=), allow a larger KL or more tries (step=), or hold the step by a divergence that is finer there."
    )


def said_of(update: Update) -> str:
    """One line on where the training stands."""
    earned = f"return {update.mean_return:.4g} ({update.episodes} episodes)"
    words = earned if update.episodes else "no episode ended"
    step = "refused" if update.refused else f"KL {update.kl:.2g}, η {update.eta:.2g}"
    more = f", {update.solves} solves" if update.solves > 1 else ""
    return f"{words}, {step}{more}, entropy {update.entropy:.3g}, critic explains {update.explained:.0%}"
