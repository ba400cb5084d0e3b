"""PPO by Stable-Baselines3, observations and rewards normalised by its VecNormalize."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.experts.recipes import PPO
from targetopt.imitation.needs import package
from targetopt.imitation.policies.network import Network
from targetopt.imitation.simulation.actions import Box
from targetopt.imitation.simulation.environment import Env, Environment

_ATTRIBUTES = ("num_timesteps", "_n_updates", "_last_obs", "_last_episode_starts")

_MOMENTS = ("mean", "var", "count")


BRIGHTEST = 255.0
"""Bytes of a picture are divided by it; statistics of single pixels, which are mostly dark, say little."""


def _rows(env: Env) -> Env:
    """The environment as it is; where it shows a picture, with that as one row of numbers between 0 and 1."""
    gymnasium = package("gymnasium", "Training a PPO expert", "expert")
    space = env.observation_space
    if len(space.shape) == 1:
        return env

    class Rows(gymnasium.ObservationWrapper):  # type: ignore[misc, name-defined]
        def observation(self, observation: Any) -> Any:
            return observation.ravel().astype(np.float32) / np.float32(BRIGHTEST)

    wrapped = Rows(env)
    wrapped.observation_space = gymnasium.spaces.Box(0.0, 1.0, (int(np.prod(space.shape)),))
    return wrapped


class PPOLearner:
    """See :class:`~targetopt.imitation.experts.learner.Learner`."""

    replay = None

    def __init__(self, environment: str, recipe: PPO, seed: int) -> None:
        baselines = package("stable_baselines3", "Training a PPO expert", "expert")
        vectors = package("stable_baselines3.common.vec_env", "Training a PPO expert", "expert")
        self.environment = environment
        opened = Environment(environment)
        self.numbers = isinstance(opened.actions, Box)
        copies = opened.copies(recipe.environments)
        stepped = vectors.DummyVecEnv([partial(_rows, copy) for copy in copies])
        self.pictures = len(opened.prototype.observation_space.shape) > 1
        self.normalizer = vectors.VecNormalize(
            stepped, gamma=recipe.discount, norm_obs=not self.pictures
        )
        self.model = baselines.PPO(
            "MlpPolicy",
            self.normalizer,
            seed=seed,
            learning_rate=lambda left: recipe.learning_rate * left,
            n_steps=recipe.rollout,
            batch_size=recipe.batch_size,
            n_epochs=recipe.epochs,
            gamma=recipe.discount,
            gae_lambda=recipe.gae,
            clip_range=recipe.clip,
            policy_kwargs={"net_arch": list(recipe.hidden), "log_std_init": recipe.log_std},
            device="cpu",
        )

    def expert(self) -> NetworkExpert:
        policy, space = self.model.policy, self.model.action_space
        box: dict[str, Any] = {}
        if self.numbers:
            noise = policy.log_std.detach().numpy()
            box = {"low": space.low, "high": space.high, "log_std": noise}
        layers = [*policy.mlp_extractor.policy_net[::2], policy.action_net]
        return NetworkExpert(
            Network(
                [layer.weight.detach().numpy() for layer in layers],
                [layer.bias.detach().numpy() for layer in layers],
                "tanh",
            ),
            "clip" if self.numbers else "logits",
            **box,
            environment=self.environment,
            family="ppo",
            **self._statistics(),
        )

    def _statistics(self) -> dict[str, Any]:
        """How states are normalised before the network sees them."""
        if self.pictures:
            return {"observation_mean": 0.0, "observation_std": BRIGHTEST}
        seen = self.normalizer.obs_rms
        return {
            "observation_mean": seen.mean,
            "observation_std": np.sqrt(seen.var + self.normalizer.epsilon),
            "observation_clip": self.normalizer.clip_obs,
        }

    def _seen(self) -> list[Any]:
        """The running statistics of the observations, if there are any."""
        return [] if self.pictures else [self.normalizer.obs_rms]

    def environments(self) -> list[Env]:
        return list(self.normalizer.venv.envs)

    def take(self) -> dict[str, Any]:
        return {
            "attributes": {name: getattr(self.model, name) for name in _ATTRIBUTES},
            "policy": self.model.policy.state_dict(),
            "optimizer": self.model.policy.optimizer.state_dict(),
            "observations": {
                name: getattr(each, name) for each in self._seen() for name in _MOMENTS
            },
            "rewards": {name: getattr(self.normalizer.ret_rms, name) for name in _MOMENTS},
            "returns": self.normalizer.returns,
        }

    def put(self, state: dict[str, Any]) -> None:
        for name in _ATTRIBUTES:
            setattr(self.model, name, state["attributes"][name])
        self.model.policy.load_state_dict(state["policy"])
        self.model.policy.optimizer.load_state_dict(state["optimizer"])
        for name in _MOMENTS:
            for each in self._seen():
                setattr(each, name, state["observations"][name])
            setattr(self.normalizer.ret_rms, name, state["rewards"][name])
        self.normalizer.returns = state["returns"]
