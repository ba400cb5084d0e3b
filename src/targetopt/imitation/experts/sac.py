"""SAC by SBX, the JAX port of Stable-Baselines3."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.experts.recipes import SAC
from targetopt.imitation.needs import package
from targetopt.imitation.policies.network import Network
from targetopt.imitation.simulation.environment import Env, Environment

_ATTRIBUTES = (
    "num_timesteps",
    "_n_updates",
    "_episode_num",
    "_last_obs",
    "_last_original_obs",
    "_last_episode_starts",
)


class SACLearner:
    """See :class:`~targetopt.imitation.experts.learner.Learner`."""

    def __init__(self, environment: str, recipe: SAC, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of packages that SBX imports
            sbx = package("sbx", "Training a SAC expert", "expert")
        self.environment = environment
        self.model = sbx.SAC(
            "MlpPolicy",
            Environment(environment).prototype,
            seed=seed,
            learning_rate=recipe.learning_rate,
            qf_learning_rate=recipe.critic_learning_rate,
            buffer_size=recipe.replay_size,
            learning_starts=recipe.learning_starts,
            batch_size=recipe.batch_size,
            tau=recipe.target_rate,
            gamma=recipe.discount,
            train_freq=recipe.train_every,
            gradient_steps=recipe.gradient_steps,
            policy_delay=recipe.policy_delay,
            policy_kwargs={"net_arch": list(recipe.hidden)},
        )
        self.replay = self.model.replay_buffer

    def expert(self) -> NetworkExpert:
        # Dense_0, Dense_1, … are the hidden layers, then the mean, then the log of the deviation
        dense = self.model.policy.actor_state.params["params"]
        *layers, deviation = (dense[f"Dense_{number}"] for number in range(len(dense)))
        box = self.model.action_space
        return NetworkExpert(
            Network(
                [np.asarray(layer["kernel"]).T for layer in layers],
                [np.asarray(layer["bias"]) for layer in layers],
                "relu",
            ),
            "tanh",
            low=box.low,
            high=box.high,
            environment=self.environment,
            family="sac",
            log_std=(np.asarray(deviation["kernel"]).T, np.asarray(deviation["bias"])),
        )

    def environments(self) -> list[Env]:
        return list(self.model.env.envs)

    def take(self) -> dict[str, Any]:
        import jax
        from flax.serialization import to_state_dict

        model, policy = self.model, self.model.policy
        parts = {"actor": policy.actor_state, "critics": policy.qf_state}
        parts["entropy"] = model.ent_coef_state
        return {
            "attributes": {name: getattr(model, name) for name in _ATTRIBUTES},
            "networks": jax.device_get({name: to_state_dict(x) for name, x in parts.items()}),
            "keys": jax.device_get([model.key, policy.key, policy.noise_key]),
            "random_actions": model.action_space.np_random.bit_generator.state,
        }

    def put(self, state: dict[str, Any]) -> None:
        import jax
        from flax.serialization import from_state_dict

        model, policy, networks = self.model, self.model.policy, state["networks"]
        for name in _ATTRIBUTES:
            setattr(model, name, state["attributes"][name])
        policy.actor_state = from_state_dict(policy.actor_state, networks["actor"])
        policy.qf_state = from_state_dict(policy.qf_state, networks["critics"])
        model.ent_coef_state = from_state_dict(model.ent_coef_state, networks["entropy"])
        model.key, policy.key, policy.noise_key = map(jax.numpy.asarray, state["keys"])
        model.action_space.np_random.bit_generator.state = state["random_actions"]
