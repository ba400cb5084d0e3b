"""How the shipped experts were trained: every setting, and nothing that is not one.

Two families. SAC (Haarnoja et al. 2018, arXiv:1812.05905) is the paper's. PPO (Schulman et al. 2017,
arXiv:1707.06347) needs a fraction of the time and gives experts of another kind, so that no result
hangs on one of them. The implementations are Stable-Baselines3's, SAC in its JAX port SBX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from targetopt.types import BadArgument

Family = Literal["sac", "ppo"]


@dataclass(frozen=True)
class SAC:
    """Soft actor-critic: off policy, sample-efficient, an hour or more per million steps.

    Nothing depends on how many steps are planned, so a training may be prolonged afterwards.

    Attributes:
        hidden: widths of the hidden layers (relu) of the actor and of both critics.
        learning_rate: of the actor and of the entropy coefficient (Adam).
        critic_learning_rate: of the critics (Adam).
        batch_size: transitions per gradient step.
        train_every: environment steps between two rounds of gradient steps.
        gradient_steps: gradient steps per round.
        policy_delay: critic steps per actor step.
        learning_starts: first steps, taken at random, without learning.
        replay_size: transitions kept.
        discount: γ.
        target_rate: τ of the target critics' moving average.
    """

    family: ClassVar[Family] = "sac"
    prolongable: ClassVar[bool] = True

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    batch_size: int = 128
    train_every: int = 8
    gradient_steps: int = 8
    policy_delay: int = 2
    learning_starts: int = 10_000
    replay_size: int = 1_000_000
    discount: float = 0.99
    target_rate: float = 0.005


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation: on policy, observations and rewards normalised, minutes.

    The learning rate falls linearly to zero over the planned steps, so these belong to the recipe.

    Attributes:
        hidden: widths of the hidden layers (tanh) of the policy and of the value function.
        environments: copies stepped together.
        rollout: steps of each copy per round.
        batch_size: transitions per gradient step.
        epochs: passes over a round's transitions.
        learning_rate: at the beginning (Adam).
        discount: γ.
        gae: λ of generalised advantage estimation.
        clip: bound on the ratio of probabilities.
        log_std: logarithm of the initial standard deviation of the actions.
    """

    family: ClassVar[Family] = "ppo"
    prolongable: ClassVar[bool] = False

    hidden: tuple[int, ...] = (64, 64)
    environments: int = 16
    rollout: int = 256
    batch_size: int = 512
    epochs: int = 10
    learning_rate: float = 3e-4
    discount: float = 0.99
    gae: float = 0.95
    clip: float = 0.2
    log_std: float = 0.0


Recipe = SAC | PPO

FAMILIES: Mapping[str, type[SAC] | type[PPO]] = MappingProxyType({"sac": SAC, "ppo": PPO})

STEPS: Mapping[tuple[Family, str], int] = MappingProxyType(
    {
        ("sac", "Hopper-v5"): 320_000,
        ("sac", "Walker2d-v5"): 420_000,
        ("sac", "HalfCheetah-v5"): 60_000,
        ("sac", "Ant-v5"): 700_000,
        ("ppo", "Hopper-v5"): 1_000_000,
        ("ppo", "Walker2d-v5"): 2_000_000,
        ("ppo", "CartPole-v1"): 200_000,
        ("ppo", "Catch-v0"): 400_000,
    }
)
"""Environment steps that gave the shipped experts."""


OTHERWISE: Mapping[tuple[str, str], Recipe] = MappingProxyType(
    {("ppo", "Catch-v0"): PPO(learning_rate=1e-3)}
)
"""Shipped experts whose settings are not their family's usual ones."""


def recipe_for(family: str, environment: str = "") -> Recipe:
    """The settings of a family's shipped experts, or of that of one environment.

    >>> recipe_for("sac").batch_size
    128
    >>> recipe_for("td3")
    Traceback (most recent call last):
    targetopt.errors.BadArgument: algorithm='td3' is none we train experts with. Choose 'sac' or 'ppo'.
    """
    if family not in FAMILIES:
        raise BadArgument(
            f"algorithm={family!r} is none we train experts with. "
            f"Choose {' or '.join(map(repr, FAMILIES))}."
        )
    return OTHERWISE.get((family, environment), FAMILIES[family]())


def default_steps(family: Family, environment: str) -> int:
    """Steps of the shipped expert; a million where none is shipped.

    >>> default_steps("ppo", "Swimmer-v5")
    1000000
    """
    return STEPS.get((family, environment), 1_000_000)


def settings(recipe: Recipe) -> dict[str, object]:
    """A recipe as a model card lists it."""
    return asdict(recipe)
