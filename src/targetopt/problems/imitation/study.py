"""Imitation as a problem of the experiment engine: what is gathered, and what is measured of a policy.

A step of a run is a round: the trainer sees the states of the round (:class:`LabelledStates`) as it would
see a mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.baselines.smoothness import linear_smoothness
from targetopt.losses import GaussianKL
from targetopt.oracle import LossOracle
from targetopt.problems.base import Problem, Reference, as_rows, positive_int
from targetopt.problems.imitation.behaviour import Behaviour, Mixture, mixture, noisy
from targetopt.problems.imitation.environment import Environment
from targetopt.problems.imitation.expert import NetworkExpert, labelled, load_expert
from targetopt.problems.imitation.gather import Gatherer, make_gatherer
from targetopt.problems.imitation.measure import Measurement, mean_loss
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.policy import GaussianPolicy
from targetopt.problems.imitation.reachable import BATCH, best_loss
from targetopt.problems.imitation.update import targets
from targetopt.problems.registry import register
from targetopt.types import BadArgument, Forward

MEASURED_SEED = 2**63
"""Of the episodes that policies are measured on. No run can have it."""

PolicyClass = Literal["mlp", "linear"]
BehaviourName = Literal["cloning", "online", "dagger"]
GathererName = Literal["auto", "gymnasium", "torch"]

_WORDS = {"mlp": "MLP", "torch": "torch loop", "gymnasium": "Gymnasium loop"}


class LabelledStates(Problem):
    """Some states, the expert's actions there, and a policy's loss on them: mean ½‖(μ_θ − μ_e)/std‖².

    Args:
        whole: the problem they belong to, which makes the models.
        states: ``(n, d)``.
        labels: ``(n, k)``.
    """

    loss: GaussianKL

    def __init__(self, whole: ImitationProblem, states: Array, labels: Array) -> None:
        self.name, self.label, self.whole = whole.name, whole.label, whole
        self.take(states, labels)

    def take(self, states: Array, labels: Array) -> None:
        """Be other states from now on: those of the next round."""
        self.states, self.labels = states, labels
        # the targets of a linear policy with one action are a vector
        vector = self.is_linear and labels.shape[1] == 1
        shaped = labels[:, 0] if vector else labels
        self.loss = GaussianKL(torch.from_numpy(shaped), self.whole.std**2)

    @property
    def n(self) -> int:
        return len(self.states)

    def model(self, seed: int) -> GaussianPolicy:
        return self.whole.model(seed)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        rows = slice(None) if index is None else as_rows(index).numpy()
        return targets(_learner(model), self.states[rows])

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {"loss": mean_loss(_learner(model), self.states, self.labels)}

    @property
    def is_linear(self) -> bool:
        return self.whole.is_linear

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """That of the whole problem: it does not change from round to round."""
        return self.whole.parameter_smoothness


class ImitationProblem(Problem):
    """Learn what an expert does, in states that the expert or the learner visits.

    What runs learn from is gathered round by round (:meth:`gatherer`, :meth:`behaviour`). As a
    problem with rows it is a fixed set of states that the expert visits, the same for every run and
    every behaviour. The arguments are those of the problem ``"imitation"``, see :func:`imitation`.
    """

    def __init__(
        self,
        environment: str,
        behaviour: BehaviourName,
        policy: PolicyClass,
        expert: str,
        *,
        std: float,
        noise: float | None,
        gatherer: GathererName,
        copies: int,
        burn_in: int | None,
        held_out: int,
        evaluate_every: int,
        episodes: int,
    ) -> None:
        if evaluate_every < 0:
            raise BadArgument(f"evaluate_every={evaluate_every!r} must be at least 0 (0: never)")
        if gatherer == "torch" and behaviour != "online":
            raise BadArgument(
                f"gatherer='torch' is the learner acting through torch; behaviour={behaviour!r} must be 'online'"
            )
        self.environment, self.policy, self.gatherer_name = environment, policy, gatherer
        self.mixture = replace(mixture(behaviour), learner_noise=noise)
        self.noise = std if noise is None else noise
        self.expert = find_expert(environment, expert)
        self.expert_name = expert
        self.std = std
        self.copies = positive_int("copies", copies)
        self.burn_in = burn_in
        self.evaluate_every = evaluate_every
        self.episodes = positive_int("episodes", episodes)
        self.held_out_size = positive_int("held_out", held_out)
        space = _space(environment)
        labelled(self.expert, np.zeros((1, space.observation_size)), space)  # does it fit?
        self.loss = GaussianKL(torch.zeros(1, space.action_size), std**2)
        words = [environment.partition("-")[0], behaviour, policy]
        words += [] if expert == "sac" else [f"{expert} expert"]
        words += [] if noise is None else [f"noise {noise:g}"]
        words += [] if gatherer == "auto" else [gatherer]
        self.label = ", ".join(_WORDS.get(word, word) for word in words)

    # -- what runs learn from -------------------------------------------------------------------

    def gatherer(self, seed: int) -> Gatherer:
        """Simulators, staggered, that a run of this seed gathers its rounds with."""
        torch_loop = self.gatherer_name == "torch"
        return make_gatherer(
            self.environment,
            copies=1 if torch_loop else self.copies,
            seed=seed,
            fast="auto" if self.gatherer_name == "auto" else False,
            burn_in=self.burn_in,
        )

    def behaviour(self, t: int, policy: GaussianPolicy) -> Behaviour:
        """Who acts in round t = 1, 2, …, with the learner as it is now."""
        if self.gatherer_name == "torch":
            return noisy(_by_torch(policy), self.noise)
        return self.mixture.at(t, policy, self.expert)

    # -- what is measured -----------------------------------------------------------------------

    @property
    def measurement(self) -> Measurement:
        """Episodes of the expert: the held-out states, and what returns are compared with."""
        return _measurement(self.environment, self.expert_name, self.episodes, self.held_out_size)

    @cached_property
    def held_out(self) -> LabelledStates:
        return LabelledStates(self, self.measurement.states, self.measurement.labels)

    def returns(self, policy: GaussianPolicy) -> dict[str, float]:
        """``return`` of the mean action, and its share of the expert's on the same episodes."""
        value = self.measurement.evaluate(policy).mean
        return {"return": value, "return_share": value / self.measurement.expert.mean}

    @property
    def n(self) -> int:
        return self.held_out.n

    @property
    def largest_batch(self) -> None:
        """None: a simulator does not run out of states."""
        return

    def model(self, seed: int) -> GaussianPolicy:
        space = _space(self.environment)
        return GaussianPolicy(
            space.observation_size,
            space.action_size,
            mean=self.policy,
            std=self.std,
            low=space.low,
            high=space.high,
            seed=seed,
            environment=self.environment,
        )

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        return self.held_out.forward(model, index)

    def oracle(self, index: ArrayLike | Tensor | None = None) -> LossOracle:
        return self.held_out.oracle(index)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return self.held_out.metrics(model)

    @property
    def is_linear(self) -> bool:
        return self.policy == "linear"

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ = λ_max(mean of [s 1]ᵀ[s 1])/std² of the held-out states; None for an MLP."""
        if not self.is_linear:
            return None
        return linear_smoothness(self.measurement.states, 1.0 / self.std**2, bias=True)


@register("imitation", "an expert's actions in a simulator, gathered round by round (extra [rl])")
def imitation(
    environment: str = "Hopper-v5",
    behaviour: BehaviourName = "online",
    policy: PolicyClass = "mlp",
    expert: str = "sac",
    std: float = 1.0,
    noise: float | None = None,
    gatherer: GathererName = "auto",
    copies: int = 20,
    burn_in: int | None = None,
    held_out: int = 2000,
    evaluate_every: int = 5,
    episodes: int = 10,
) -> ImitationProblem:
    """Imitation of an expert in a continuous-control environment (paper §5 and App. E.6).

    A step is a round of ``batch_size`` states, an epoch one round; ``loss`` is the policy loss on
    the states of the round that begins, before the policy is updated on them.

    Args:
        environment: a Gymnasium id.
        behaviour: who drives: the expert (``"cloning"``), the learner (``"online"``), or first the one
            and then the other (``"dagger"``).
        policy: the mean of the learner: ``"mlp"`` (256, 256, relu) or ``"linear"``.
        expert: ``"sac"`` or ``"ppo"`` for those that come with the package, or the path of an expert file.
        std: of the policies.
        noise: standard deviation of the learner's actions when it drives; None: ``std``, as in the paper.
        gatherer: ``"auto"``, batched simulators where there are some; ``"gymnasium"``, a loop over environments
            with a numpy policy; ``"torch"``, a loop over one environment with the torch policy, as in the
            paper.
        copies: of the environment, taking turns.
        burn_in: the longest time in steps that a copy runs before the first round; None: one episode.
        held_out: states in the held-out set, at most.
        evaluate_every: rounds between two evaluations of the return; 0 for none at all.
        episodes: episodes per evaluation, and of the expert that held-out states are taken from.
    """
    return ImitationProblem(
        environment,
        behaviour,
        policy,
        expert,
        std=std,
        noise=noise,
        gatherer=gatherer,
        copies=copies,
        burn_in=burn_in,
        held_out=held_out,
        evaluate_every=evaluate_every,
        episodes=episodes,
    )


def best_reachable(
    problem: ImitationProblem, driver: Mixture | str, states: int, *, passes: int
) -> Reference:
    """The best loss of the problem's policy class in states that a perfect learner would visit.

    Where ``driver`` is the learner (β = 0), its place is taken by the expert's mean with the learner's
    noise, else the expert drives. A network is fitted in as many steps as go over the states ``passes`` times.
    """
    learner_drives = mixture(driver).share(1) == 0.0
    behaviour = noisy(problem.expert, problem.noise if learner_drives else 0.0)
    gatherer = problem.gatherer(MEASURED_SEED)
    try:
        batch = gatherer.gather(states, behaviour, problem.expert)
    finally:
        gatherer.close()
    steps = max(1, passes * states // BATCH)
    return best_loss(problem.model(0), batch.states, batch.labels, steps=steps)


@lru_cache(maxsize=8)
def find_expert(environment: str, expert: str) -> NetworkExpert:
    """The expert of a family, or the one in a file."""
    if expert.endswith(".safetensors"):
        return load_expert(expert)
    return load_expert(environment, family=expert)


@lru_cache(maxsize=4)
def _measurement(environment: str, expert: str, episodes: int, held_out: int) -> Measurement:
    return Measurement(
        Environment(environment),
        find_expert(environment, expert),
        episodes=episodes,
        seed=MEASURED_SEED,
        held_out=held_out,
    )


@lru_cache(maxsize=8)
def _space(environment: str) -> Environment:
    return Environment(environment)


def _learner(model: nn.Module) -> GaussianPolicy:
    if not isinstance(model, GaussianPolicy):
        raise BadArgument(
            f"model is a {type(model).__name__}; this problem's model is a GaussianPolicy. Make one with "
            "problem.model(seed)."
        )
    return model


def _by_torch(policy: GaussianPolicy) -> Callable[[Array], Array]:
    """The mean through torch, state by state: how the paper's code acts."""

    @torch.no_grad()
    def mean(states: Array) -> Array:
        z: Tensor = policy(torch.from_numpy(states).to(policy.dtype))
        return z.double().numpy()

    return mean
