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


def _rows(env: Env) -> Env:
    """The environment, with what it shows as one row of numbers, as experts take it."""
    gymnasium = package("gymnasium", "Training a PPO expert", "expert")
    space = env.observation_space
    if len(space.shape) == 1:
        return env

    class Rows(gymnasium.ObservationWrapper):  # type: ignore[misc, name-defined]
        def observation(self, observation: Any) -> Any:
            return observation.ravel()

    wrapped = Rows(env)
    wrapped.observation_space = gymnasium.spaces.flatten_space(space)
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
        self.normalizer = vectors.VecNormalize(stepped, gamma=recipe.discount)
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
        policy, seen, space = self.model.policy, self.normalizer.obs_rms, self.model.action_space
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
            observation_mean=seen.mean,
            observation_std=np.sqrt(seen.var + self.normalizer.epsilon),
            observation_clip=self.normalizer.clip_obs,
        )

    def environments(self) -> list[Env]:
        return list(self.normalizer.venv.envs)

    def take(self) -> dict[str, Any]:
        return {
            "attributes": {name: getattr(self.model, name) for name in _ATTRIBUTES},
            "policy": self.model.policy.state_dict(),
            "optimizer": self.model.policy.optimizer.state_dict(),
            "observations": {name: getattr(self.normalizer.obs_rms, name) for name in _MOMENTS},
            "rewards": {name: getattr(self.normalizer.ret_rms, name) for name in _MOMENTS},
            "returns": self.normalizer.returns,
        }

    def put(self, state: dict[str, Any]) -> None:
        for name in _ATTRIBUTES:
            setattr(self.model, name, state["attributes"][name])
        self.model.policy.load_state_dict(state["policy"])
        self.model.policy.optimizer.load_state_dict(state["optimizer"])
        for name in _MOMENTS:
            setattr(self.normalizer.obs_rms, name, state["observations"][name])
            setattr(self.normalizer.ret_rms, name, state["rewards"][name])
        self.normalizer.returns = state["returns"]
