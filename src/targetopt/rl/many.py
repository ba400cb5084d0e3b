"""The same training with several seeds, side by side in one process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from targetopt.display import Progress
from targetopt.imitation.simulation.environment import EnvLike
from targetopt.rl.recipes import Recipe
from targetopt.rl.recipes import preset as recipe_of
from targetopt.rl.result import Result
from targetopt.rl.training import Run, Training, until_the_end
from targetopt.types import BadArgument, TargetoptError, checked_whole, positive_int


class SeedsFailed(TargetoptError):
    """Some of several seeds could not be trained to the end; the others were.

    Attributes:
        errors: what went wrong, by seed.
        results: of all seeds, as far as they came, by seed.
    """

    def __init__(
        self, message: str, errors: dict[int, TargetoptError], results: dict[int, Result]
    ) -> None:
        super().__init__(message)
        self.errors, self.results = errors, results


def train_many(
    env: EnvLike,
    *,
    steps: int,
    seeds: Iterable[int],
    preset: str | Recipe = "sso",
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
    fast: Any = "auto",
    **changes: Any,
) -> list[Result]:
    """Train one policy for each seed, all in one process and side by side, with the numbers of each by itself.

    Every seed has simulators, networks, scales, a critic and random numbers of its own; nothing is shared but the
    time. The policies act at once, and mini-batches of Adam are taken by all networks at once, as batched matrix
    products. The results are those of `train` with each seed, bit by bit. It pays where networks and mini-batches are
    small, so that a run spends its time on calling operations: mini-batches of 64 rows rather than whole batches.

    Args:
        env: a Gymnasium id, or a function that makes an environment: each seed has copies of its own.
        steps: interactions of each seed.
        seeds: one run each, all different.
        preset: as for `train`.
        checkpoint: a folder with one file for each seed, ``seed-3.pt``. Such a file is that of `train` with this seed:
            each of the two goes on from what the other has saved.
        checkpoint_every: updates between two saves.
        progress: whether to show how far it is.
        fast: as for `train`.
        changes: any setting of `Recipe`.

    Returns:
        one `Result` for each seed, in their order.

    Raises:
        SeedsFailed: after all others have ended, if some could not.

    Example:
        >>> import targetopt as to
        >>> options = {"steps": 256, "batch": 128, "preset": "ppo", "progress": False}
        >>> both = to.rl.train_many("CartPole-v1", seeds=[0, 1], **options)
        >>> alone = to.rl.train("CartPole-v1", seed=1, **options)
        >>> both[1].history[-1].kl == alone.history[-1].kl
        True
    """
    positive_int("steps", steps)
    positive_int("checkpoint_every", checkpoint_every)
    wanted = [checked_whole("", "seeds", seed, least=0) for seed in seeds]
    if not wanted or len(set(wanted)) < len(wanted):
        raise BadArgument(f"seeds={wanted!r} must be different whole numbers ≥ 0, one or more")
    if not (isinstance(env, str) or callable(env)):
        raise BadArgument(
            f"env={env!r} is one environment, and every seed needs copies of its own: pass its id, or a function that "
            "makes it"
        )
    recipe = recipe_of(preset).changed(changes)
    runs: list[Run] = []
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for seed in wanted:
        path = None if folder is None else folder / f"seed-{seed}.pt"
        runs.append(
            Run(Training(env, recipe, seed, fast=fast), steps, path, checkpoint_every, None)
        )
    name = f"{runs[0].training.environment.name}, {len(runs)} seeds"
    with Progress(name, "steps", wanted=progress) as shown:
        until_the_end(runs, shown)
    results = [run.training.result for run in runs]
    errors = {run.training.seed: run.error for run in runs if run.error is not None}
    if errors:
        first = next(iter(errors))
        raise SeedsFailed(
            f"{len(errors)} of {len(runs)} seeds failed: {', '.join(map(str, errors))}. The others have ended, and all "
            f"are in error.results. Seed {first}: {errors[first]}",
            errors,
            dict(zip(wanted, results, strict=True)),
        ) from errors[first]
    return results
