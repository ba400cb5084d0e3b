"""Experts out of Stable-Baselines3 models that are not the plainest ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from targetopt import imitation as im

STATES = np.random.default_rng(3).normal(size=(20, 3))


class Eight(BaseFeaturesExtractor):
    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, features_dim=8)
        self.layer = torch.nn.Linear(space.shape[0], 8)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(states))


def model(env: Any, **options: Any) -> Any:
    return PPO("MlpPolicy", env, device="cpu", seed=0, **options)


def expected(made: Any, states: np.ndarray) -> np.ndarray:
    return made.predict(states.astype(np.float32), deterministic=True)[0]


@pytest.mark.parametrize("normalised", [False, True])
def test_a_model_that_extracts_features_is_asked(normalised: bool) -> None:
    env: Any = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")])
    env = VecNormalize(env) if normalised else env
    made = model(env, policy_kwargs={"features_extractor_class": Eight})
    expert = im.from_stable_baselines3(made, env if normalised else None)
    seen = env.normalize_obs(STATES) if normalised else STATES
    np.testing.assert_allclose(expert(STATES), expected(made, seen), rtol=0, atol=1e-6)


def test_a_model_whose_environments_run_in_other_processes() -> None:
    env = SubprocVecEnv([lambda: gymnasium.make("Pendulum-v1")], start_method="spawn")
    try:
        made = model(env)
        expert = im.from_stable_baselines3(made)
    finally:
        env.close()
    np.testing.assert_allclose(expert(STATES), expected(made, STATES), rtol=0, atol=1e-5)


def test_statistics_that_the_model_still_has_are_not_forgotten() -> None:
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    made = model(env)
    env.obs_rms.mean[:] = [0.5, -0.5, 2.0]
    env.obs_rms.var[:] = [0.1, 4.0, 9.0]
    expert = im.from_stable_baselines3(made)
    wanted = expected(made, env.normalize_obs(STATES))
    np.testing.assert_allclose(expert(STATES), wanted, rtol=0, atol=1e-5)
    assert np.abs(wanted - expected(made, STATES)).max() > 1e-3
