"""Experts from Stable-Baselines3: their deterministic action, with the statistics they were trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import nn

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.policies.network import Array, Network
from targetopt.types import BadArgument

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
TOLERANCE = 1e-4
"""Largest difference from ``model.predict`` (float32) that the extracted network may show."""


class ModelExpert:
    """An expert that asks ``model.predict(..., deterministic=True)``, whatever is inside the model."""

    def __init__(self, model: Any, normalizer: Any = None) -> None:
        self.model = model
        self.normalizer = normalizer

    def __call__(self, states: Array, /) -> Array:
        seen = states if self.normalizer is None else self.normalizer.normalize_obs(states)
        actions, _ = self.model.predict(np.asarray(seen, dtype=np.float32), deterministic=True)
        return np.asarray(actions, dtype=np.float64)


def from_stable_baselines3(model: Any, normalizer: Any = None) -> NetworkExpert | ModelExpert:
    """The expert inside a Stable-Baselines3 model.

    Plain networks (SAC, TD3, DDPG, PPO, A2C with ``MlpPolicy``) are taken out of the model: the result
    is fast and has ``save``. It is compared with ``model.predict`` on states drawn at random first;
    any other model is asked through ``predict``.

    Args:
        model: a trained model, e.g. ``SAC.load("model.zip")``.
        normalizer: the ``VecNormalize`` it was trained with, if it was; its observation statistics
            are part of the expert. None takes the one the model still has.

    Example:
        >>> from stable_baselines3 import PPO
        >>> expert = from_stable_baselines3(PPO("MlpPolicy", "Pendulum-v1", device="cpu"))
        >>> expert(np.zeros((5, 3))).shape
        (5, 1)
    """
    if not callable(getattr(model, "predict", None)) or not hasattr(model, "action_space"):
        raise BadArgument(
            f"model={type(model).__name__} must be a trained Stable-Baselines3 model, e.g. SAC.load('model.zip'); "
            "any other expert can be passed as a function from states to mean actions"
        )
    if normalizer is not None and not callable(getattr(normalizer, "normalize_obs", None)):
        raise BadArgument(
            f"normalizer={type(normalizer).__name__} must be the VecNormalize the model was trained with: "
            "VecNormalize.load('statistics.pkl', DummyVecEnv([...]))"
        )
    if normalizer is None and callable(getattr(model, "get_vec_normalize_env", None)):
        normalizer = model.get_vec_normalize_env()
    asked = ModelExpert(model, normalizer)
    taken = _network_of(model, normalizer)
    if taken is None:
        return asked
    states = np.random.default_rng(0).standard_normal((64, taken.network.inputs))
    if taken.observation_mean is not None and taken.observation_std is not None:
        states = taken.observation_mean + taken.observation_std * states
    gap = np.abs(taken(states) - np.clip(asked(states), taken.low, taken.high)).max()
    scale = np.maximum(1.0, taken.high - taken.low).max()
    return taken if gap <= TOLERANCE * scale else asked


def _network_of(model: Any, normalizer: Any) -> NetworkExpert | None:
    """The model's mean as a network; None where it has another shape."""
    box = model.action_space
    layers, output = _parts(model.policy)
    found = _plain(layers)
    if found is None or not np.isfinite([box.low, box.high]).all():
        return None
    if model.observation_space.shape != (found.inputs,):  # something extracts features first
        return None
    statistics: dict[str, Any] = {}
    if normalizer is not None and getattr(normalizer, "norm_obs", True):
        rms = normalizer.obs_rms
        statistics = {
            "observation_mean": rms.mean,
            "observation_std": np.sqrt(rms.var + normalizer.epsilon),
            "observation_clip": normalizer.clip_obs,
        }
    name = type(model).__name__
    # Environments in other processes are not at hand; they would only give the name.
    envs = getattr(model.get_env(), "envs", None)
    spec = getattr(envs[0], "spec", None) if envs else None
    return NetworkExpert(
        found,
        output,
        low=box.low,
        high=box.high,
        environment="" if spec is None else spec.id,
        family=name.lower(),
        card={"algorithm": name, "library": "stable-baselines3", "steps": int(model.num_timesteps)},
        **statistics,
    )


def _parts(policy: Any) -> tuple[list[nn.Module], str]:
    """The modules from observation to action, and what is done to their result."""
    actor = getattr(policy, "actor", None)
    if actor is None:  # PPO, A2C
        extractor = getattr(policy, "mlp_extractor", None)
        if extractor is None or getattr(policy, "squash_output", False):
            return [], "clip"
        return [*_flat(extractor.policy_net), policy.action_net], "clip"
    if hasattr(actor, "latent_pi"):  # SAC
        return [*_flat(actor.latent_pi), *_flat(actor.mu)], "tanh"
    modules = _flat(actor.mu)  # TD3, DDPG
    return (modules[:-1], "tanh") if isinstance(modules[-1], nn.Tanh) else ([], "tanh")


def _flat(module: nn.Module) -> list[nn.Module]:
    return list(module) if isinstance(module, nn.Sequential) else [module]


def _plain(modules: Iterable[nn.Module]) -> Network | None:
    """Linear layers with one activation between them, as a `Network`; None for anything else."""
    modules = list(modules)
    linear, between = modules[::2], modules[1::2]
    kinds = {type(module) for module in between}
    if len(linear) != len(between) + 1 or len(kinds) > 1 or not kinds <= set(ACTIVATIONS):
        return None
    if not all(type(layer) is nn.Linear and layer.bias is not None for layer in linear):
        return None
    tensors = [(layer.weight.detach().cpu(), layer.bias.detach().cpu()) for layer in linear]  # type: ignore[operator]
    weights, biases = zip(*((w.numpy(), b.numpy()) for w, b in tensors), strict=True)
    return Network(weights, biases, ACTIVATIONS[kinds.pop()] if kinds else "relu")
