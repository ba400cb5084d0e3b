"""Train an expert: learn, keep the policies on the way, choose the best of them, measure it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from targetopt.imitation.expert import NetworkExpert, load_expert
from targetopt.imitation.experts import card, snapshot
from targetopt.imitation.experts.checkpoint import Checkpoint
from targetopt.imitation.experts.learner import Learner
from targetopt.imitation.experts.measure import CHOOSE, REPORT, WATCH, summary
from targetopt.imitation.experts.ppo import PPOLearner
from targetopt.imitation.experts.recipes import SAC, Recipe, default_steps, recipe_for
from targetopt.imitation.experts.sac import SACLearner
from targetopt.imitation.needs import package
from targetopt.imitation.simulation.environment import Environment
from targetopt.types import BadArgument, Diverged, positive_int

CANDIDATES = 5
"""Policies that are looked at more closely when the training is over."""

Watch = Callable[[str, int, int, str], None]
"""Told of progress: what is being done, how much of it, of how much, and how it goes."""


def _check_spaces(environment: str, family: str) -> None:
    """Refuse what the algorithm cannot be trained on here: experts are networks of rows of numbers."""
    opened = Environment(environment)
    actions, observations = opened.prototype.action_space, opened.prototype.observation_space
    opened.close()
    kinds = {"ppo": ("Box", "Discrete"), "sac": ("Box",)}[family]
    if type(actions).__name__ not in kinds or len(actions.shape) > 1:
        other = " PPO takes one choice, too: --algorithm ppo." if family == "sac" else ""
        raise BadArgument(
            f"environment={environment!r} has the actions {actions}. {family.upper()} experts are trained where these "
            f"are a {' or '.join(kinds)}.{other} Elsewhere train one with another library, and pass it as expert=."
        )
    if type(observations).__name__ != "Box" or (family == "sac" and len(observations.shape) != 1):
        raise BadArgument(
            f"environment={environment!r} has the observations {observations}. SAC experts are trained on vectors of "
            "numbers, PPO experts on small pictures as well; elsewhere train one with another library, and pass it as "
            "expert=."
        )


@dataclass(frozen=True)
class Glance:
    """What a policy on the way was worth over the episodes of ``WATCH``."""

    steps: int
    mean_return: float
    mean_length: float


def train_expert(
    environment: str,
    *,
    algorithm: str = "sac",
    seed: int = 0,
    steps: int | None = None,
    out: str | Path | None = None,
    recipe: Recipe | None = None,
    evaluate_every: int = 20_000,
    note: str = "",
    watch: Watch = lambda doing, done, total, note: None,
) -> NetworkExpert:
    """Train an expert and write it, with its model card, to ``out``.

    A training that was stopped, by whatever, goes on from its last checkpoint when it is called again
    with the same arguments; in environments of MuJoCo it is then bitwise the training that was never
    stopped. SAC may be prolonged by a larger ``steps``.

    Args:
        environment: id of a Gymnasium environment. SAC is for actions that are numbers and observations that are
            vectors; PPO takes one choice and small pictures, too.
        algorithm: ``"sac"`` or ``"ppo"``.
        seed: of networks, environments and exploration.
        steps: environment steps; None for those of the shipped expert.
        out: directory; None for ``results/experts/<environment>-<algorithm>-<seed>``.
        recipe: other settings than the shipped experts'.
        evaluate_every: steps between two evaluations, each with a checkpoint.
        note: a sentence for the model card, such as how many seeds were tried.
        watch: told of the progress.

    Returns:
        The expert, its card included. It lies in ``out`` as ``<environment>-<algorithm>.safetensors``.
    """
    recipe = recipe or recipe_for(algorithm, environment)
    if recipe.family != algorithm:
        raise BadArgument(f"recipe= is one of {recipe.family!r}, algorithm={algorithm!r} another")
    total = positive_int(
        "steps", default_steps(recipe.family, environment) if steps is None else steps
    )
    positive_int("evaluate_every", evaluate_every)
    _check_spaces(environment, recipe.family)  # before anything is written
    directory = Path(out or f"results/experts/{environment}-{algorithm}-{seed}")
    directory.mkdir(parents=True, exist_ok=True)
    training = Training(directory, environment, recipe, seed, total, evaluate_every, watch)
    with _alone(directory), _like_nobody_was_here():
        training.run()
        return training.finish(note)


class Training:
    """One training in one directory."""

    def __init__(
        self,
        directory: Path,
        environment: str,
        recipe: Recipe,
        seed: int,
        steps: int,
        evaluate_every: int,
        watch: Watch,
    ) -> None:
        self.directory = directory
        self.environment = environment
        self.recipe = recipe
        self.seed = seed
        self.steps = steps
        self.evaluate_every = evaluate_every
        self.watch = watch
        self.log: list[Glance] = []
        self.checkpoint = Checkpoint(directory)

    def run(self) -> None:
        """Learn to the last step, from the last checkpoint if there is one."""
        kept = self.checkpoint.read()
        if kept is not None:
            self._check(kept["about"])
            self.log = [Glance(**line) for line in kept["log"]]
            if kept["steps"] >= self.steps:
                return
        learner = _learner(self.environment, self.recipe, self.seed)
        if kept is not None:
            self.checkpoint.resume(learner, kept)
        learner.model.learn(
            self.steps - learner.model.num_timesteps,
            callback=_callback(self, learner),
            reset_num_timesteps=kept is None,
        )
        if not self.log or self.log[-1].steps < learner.model.num_timesteps:
            self.evaluate(learner)
        self.keep(learner)

    def evaluate(self, learner: Learner) -> None:
        """Measure the policy and keep it as a candidate."""
        expert = learner.expert()
        if not all(np.isfinite(array).all() for array in expert.network.arrays().values()):
            raise Diverged(
                f"the {self.recipe.family} policy is no longer finite at step "
                f"{learner.model.num_timesteps}. Try another --seed, or a smaller learning rate."
            )
        seen = WATCH.play(expert, self.environment)
        steps = int(learner.model.num_timesteps)
        self.log.append(Glance(steps, seen.mean, float(seen.lengths.mean())))
        expert.save(self.candidate(steps))
        self.advance(steps)

    def keep(self, learner: Learner) -> None:
        """Write a checkpoint."""
        lines = [asdict(line) for line in self.log]
        self.checkpoint.write(learner, {"about": self._about(), "log": lines})

    def advance(self, steps: int) -> None:
        """Tell how far it is."""
        note = ""
        if self.log:
            best = max(self.log, key=lambda line: line.mean_return)
            note = (
                f"return {self.log[-1].mean_return:.0f} at {self.log[-1].steps}, "
                f"best {best.mean_return:.0f} at {best.steps}"
            )
        self.watch("training", min(steps, self.steps), self.steps, note)

    def candidate(self, steps: int) -> Path:
        """Where the policy of that moment lies."""
        return self.directory / "policies" / f"{steps:09d}.safetensors"

    def finish(self, note: str) -> NetworkExpert:
        """Choose among the candidates, measure the chosen one and write it with its card."""
        best = sorted(self.log, key=lambda line: line.mean_return)[-CANDIDATES:]
        candidates = {line.steps: load_expert(self.candidate(line.steps)) for line in best}
        means = {}
        for done, (steps, expert) in enumerate(candidates.items()):
            self.watch("choosing", done, len(best), f"{CHOOSE.count} episodes each")
            means[steps] = CHOOSE.play(expert, self.environment).mean
        winner = max(means, key=lambda steps: means[steps])
        expert = candidates[winner]
        self.watch("measuring", 0, 1, f"{REPORT.count} episodes")
        report = REPORT.play(expert, self.environment)
        expert.card = card.make(
            recipe=self.recipe,
            seed=self.seed,
            steps=winner,
            trained_steps=self.log[-1].steps,
            command=self.command(),
            note=note,
            selection={
                "evaluate_every": self.evaluate_every,
                "watched_episodes": WATCH.count,
                "candidates": len(candidates),
                "chosen_episodes": CHOOSE.count,
                "chosen_mean_return": means[winner],
            },
            report={"seed": REPORT.seed, **summary(report)},
        )
        path = self.directory / f"{self.environment}-{self.recipe.family}.safetensors"
        expert.save(path)
        path.with_suffix(".md").write_text(card.text(expert), encoding="utf-8")
        return expert

    def command(self) -> str:
        """How to do this again: from the command line, or from Python if the settings are others."""
        if self.recipe != recipe_for(self.recipe.family, self.environment):
            return (
                f"to.imitation.train_expert({self.environment!r}, algorithm={self.recipe.family!r}, "
                f"seed={self.seed}, steps={self.steps}, evaluate_every={self.evaluate_every}, "
                f"recipe={self.recipe!r})"
            )
        words = ["targetopt", "expert", "train", self.environment]
        words += ["--algorithm", self.recipe.family, "--seed", str(self.seed)]
        words += ["--steps", str(self.steps), "--evaluate-every", str(self.evaluate_every)]
        return shlex.join(words)

    def _about(self) -> dict[str, Any]:
        about = {
            "environment": self.environment,
            "algorithm": self.recipe.family,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            **asdict(self.recipe),
        }
        return about if self.recipe.prolongable else {**about, "steps": self.steps}

    def _check(self, kept: dict[str, Any]) -> None:
        about = self._about()
        other = [name for name in {**kept, **about} if kept.get(name) != about.get(name)]
        if other:
            differences = "; ".join(
                f"{name} is {kept.get(name)!r} there and {about.get(name)!r} here" for name in other
            )
            raise BadArgument(
                f"{self.directory} holds another training: {differences}. "
                "Give the same settings to go on with it, or another --out."
            )


def _learner(environment: str, recipe: Recipe, seed: int) -> Learner:
    if isinstance(recipe, SAC):
        return SACLearner(environment, recipe, seed)
    return PPOLearner(environment, recipe, seed)


def _callback(training: Training, learner: Learner) -> Any:
    """Evaluates after a step, writes the checkpoint when nothing of the round is under way."""
    callbacks = package("stable_baselines3.common.callbacks", "Training an expert", "expert")

    class Keeper(callbacks.BaseCallback):  # type: ignore[misc, name-defined]
        due = False

        def _on_step(self) -> bool:
            done = self.num_timesteps // training.evaluate_every
            before = (self.num_timesteps - learner.model.n_envs) // training.evaluate_every
            if done > before:
                training.evaluate(learner)
                self.due = True
            elif self.num_timesteps % 100 < learner.model.n_envs:
                training.advance(self.num_timesteps)
            return True

        def _on_rollout_start(self) -> None:
            if self.due:
                training.keep(learner)
                self.due = False

    return Keeper()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    lock = FileLock(directory / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadArgument(
            f"{directory} is being trained in by another process. Wait for it, or give another --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _like_nobody_was_here() -> Iterator[None]:
    """One torch thread, which makes PPO bitwise reproducible; global generators are put back."""
    generators, threads = snapshot.take_generators(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        snapshot.put_generators(generators)
