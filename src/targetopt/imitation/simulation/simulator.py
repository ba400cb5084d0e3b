"""The fast path: all copies of a MuJoCo environment stepped in one native call.

A Gymnasium step of ``Hopper-v5`` spends as much time around the physics (observation, reward, health,
wrappers, each on one small array) as in it. Here `mujoco.batch` steps every copy in native code and
the rest is done once for all copies, on arrays. A copy's state is MuJoCo's full integration state,
the solver's warm start included, so that trajectories are Gymnasium's bit for bit; resets are made
by the environment itself.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.copies import Copies, Failure, Flags, Ids, Outcome, unusable
from targetopt.imitation.simulation.environment import Environment, wrappers

TRANSPARENT = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"}
"""Gymnasium's own wrappers, which change neither states nor rewards (the limit is kept here)."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Runner:
    """What Gymnasium's runners say of their physics: observation, reward and health, for many copies.

    The observation is (positions without the first few, velocities, clipped if the environment does);
    the reward is weight · x-velocity + healthy reward − control cost; unhealthy copies end.
    """

    skipped_positions: int
    velocity_bound: float
    dt: float
    forward_weight: float
    control_weight: float
    healthy_reward: float
    ends_unhealthy: bool
    z_range: Range | None
    angle_range: Range | None
    state_range: Range | None

    @classmethod
    def of(cls, env: Any) -> Runner:
        """Read off an environment object, with whatever options it was made."""
        return cls(
            skipped_positions=env.observation_structure["skipped_qpos"],
            velocity_bound=10.0 if hasattr(env, "_healthy_z_range") else np.inf,
            dt=float(env.dt),
            forward_weight=env._forward_reward_weight,
            control_weight=env._ctrl_cost_weight,
            healthy_reward=getattr(env, "_healthy_reward", 0.0),
            ends_unhealthy=getattr(env, "_terminate_when_unhealthy", False),
            z_range=getattr(env, "_healthy_z_range", None),
            angle_range=getattr(env, "_healthy_angle_range", None),
            state_range=getattr(env, "_healthy_state_range", None),
        )

    def observe(self, qpos: Array, qvel: Array) -> Array:
        if self.velocity_bound < np.inf:
            qvel = np.clip(qvel, -self.velocity_bound, self.velocity_bound)
        return np.concatenate([qpos[:, self.skipped_positions :], qvel], axis=1)

    def healthy(self, qpos: Array, qvel: Array) -> Flags:
        good = np.ones(len(qpos), dtype=bool)
        if self.z_range is not None:
            good &= _within(qpos[:, 1], self.z_range)
        if self.angle_range is not None:
            good &= _within(qpos[:, 2], self.angle_range)
        if self.state_range is not None:
            good &= _within(qpos[:, 2:], self.state_range).all(axis=1)
            good &= _within(qvel, self.state_range).all(axis=1)
        return good

    def reward(self, moved: Array, healthy: Flags, actions: NDArray[Any]) -> Array:
        # in the actions' own precision, as Gymnasium does
        cost = self.control_weight * np.square(actions).sum(axis=1)
        reward: Array = (
            self.forward_weight * (moved / self.dt) + healthy * self.healthy_reward - cost
        )
        return reward


def _within(values: Array, bounds: Range) -> Flags:
    low, high = bounds
    return (low < values) & (values < high)


RUNNERS = {
    ("gymnasium.envs.mujoco.hopper_v5", "HopperEnv"),
    ("gymnasium.envs.mujoco.walker2d_v5", "Walker2dEnv"),
    ("gymnasium.envs.mujoco.half_cheetah_v5", "HalfCheetahEnv"),
    ("gymnasium.envs.mujoco.swimmer_v5", "SwimmerEnv"),
}
"""Environments whose every number is a function of positions, velocities and actions."""


def obstacle(environment: Environment) -> str | None:
    """Why an environment cannot take the fast path; None if it can."""
    kind = type(environment.prototype.unwrapped)
    if (kind.__module__, kind.__qualname__) not in RUNNERS:
        known = ", ".join(sorted(name.removesuffix("Env") + "-v5" for _, name in RUNNERS))
        return f"it is a {kind.__qualname__}; there is a fast path for {known}"
    changed = [type(w).__name__ for w in wrappers(environment.prototype)]
    changed = [name for name in changed if name not in TRANSPARENT]
    if changed:
        return f"it is wrapped in {', '.join(changed)}"
    try:
        importlib.import_module("mujoco.batch")
    except ImportError:
        return "the installed mujoco has no mujoco.batch; it comes with mujoco ≥ 4"
    return None


class SimulatorCopies(Copies):
    """Copies stepped by `mujoco.batch`; make them only where `obstacle` says None.

    Args:
        environment: one of the runners.
        count: copies.
        threads: native threads; the results are the same bits whatever their number.
    """

    def __init__(self, environment: Environment, count: int, threads: int = 1) -> None:
        super().__init__(environment, count)
        mujoco = importlib.import_module("mujoco")
        batch = importlib.import_module("mujoco.batch")
        self._env = environment.prototype.unwrapped
        self._runner = Runner.of(self._env)
        self._simulation_error = batch.SimulationError
        self._batch = batch.Batch(self._env.model, count, nthread=threads)
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._ctrl = self._batch.bind("ctrl")
        self._get_state = mujoco.mj_getState
        self._integration = mujoco.mjtState.mjSTATE_INTEGRATION
        self._elapsed = np.zeros(count, dtype=np.int64)

    def reset(self, copy: int, seed: int) -> Failure | None:
        try:
            observation, _ = self._env.reset(seed=seed)
        except Exception as error:
            return Failure(copy, f"reset(seed={seed}) raised {error!r}", error)
        env = self._env
        self._get_state(env.model, env.data, self._batch.state[copy], self._integration)
        self.observations[copy] = observation
        self._elapsed[copy] = 0
        return None

    def step(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        before = self._qpos[ids, 0]
        self._ctrl[ids] = actions
        failures = []
        try:
            everyone = len(ids) == self.count
            self._batch.step(None if everyone else np.sort(ids), nstep=self._env.frame_skip)
        except self._simulation_error as error:
            failures = [
                Failure(int(copy), f"MuJoCo says {self._batch.error(int(copy))}", error)
                for copy in error.ids
            ]
        self._elapsed[ids] += 1
        qpos, qvel = self._qpos[ids], self._qvel[ids]
        healthy = self._runner.healthy(qpos, qvel)
        never = np.zeros(len(ids), dtype=bool)
        terminated = ~healthy if self._runner.ends_unhealthy else never
        limit = self.environment.limit
        truncated = never if limit is None else self._elapsed[ids] >= limit
        seen = self.observations[ids] = self._runner.observe(qpos, qvel)
        if not np.isfinite(seen).all():
            known = {failure.copy for failure in failures}
            bad = np.flatnonzero(~np.isfinite(seen).all(axis=1))
            failures += [unusable(int(ids[r]), seen[r]) for r in bad if int(ids[r]) not in known]
        rewards = self._runner.reward(qpos[:, 0] - before, healthy, actions)
        return Outcome(rewards, terminated, truncated, failures)

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": self._batch.state.copy(),
            "elapsed": self._elapsed.copy(),
            "observations": self.observations.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch.state[:] = state["state"]
        self._elapsed[:] = state["elapsed"]
        self.observations[:] = state["observations"]
