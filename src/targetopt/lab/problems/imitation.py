"""Imitation as a problem of the experiment engine: the parts of an `imitation.Training`, by their options.

A step of a run is a round of that training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.baselines.smoothness import linear_smoothness
from targetopt.distributions import KLProximity
from targetopt.imitation.data import Replay, replay
from targetopt.imitation.expert import Expert, NetworkExpert, load_expert
from targetopt.imitation.measuring.measure import MEASURED_SEED, Measurement
from targetopt.imitation.measuring.reachable import BATCH, best_loss
from targetopt.imitation.policies.base import Behaviour, Policy
from targetopt.imitation.policies.learner import Asked
from targetopt.imitation.policies.policy import made_for
from targetopt.imitation.rounds import Training
from targetopt.imitation.simulation.actions import Box
from targetopt.imitation.simulation.behaviour import Mixture, mixture, noisy
from targetopt.imitation.simulation.environment import Environment
from targetopt.imitation.simulation.gather import Gatherer, make_gatherer
from targetopt.imitation.simulation.shared import SharedGatherer, stream
from targetopt.imitation.teacher import Teacher, labelled
from targetopt.imitation.update import Update, targets
from targetopt.lab.problems.base import BatchSize, Problem, as_rows
from targetopt.lab.problems.registry import register
from targetopt.lab.problems.session import Session
from targetopt.oracle import LossOracle, Oracle
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward, positive_int

if TYPE_CHECKING:
    from targetopt.lab.spec.config import RunConfig

PolicyClass = Literal["mlp", "linear"]
BehaviourName = Literal["cloning", "online", "dagger"]
HeldOutBy = Literal["expert", "noisy expert"]
DataName = Literal["round", "all"]
GathererName = Literal["auto", "gymnasium", "torch"]

_WORDS = {"mlp": "MLP", "torch": "torch loop", "gymnasium": "Gymnasium loop"}


class ImitationProblem(Problem):
    """Learn what an expert does, in states that the expert or the learner visits.

    What runs learn from is gathered round by round (:meth:`training`). Its oracle, and what is known of
    its loss, are of a fixed set of states that the expert visits, the same for every run and every
    behaviour. The arguments are those of the problem ``"imitation"``, see :func:`imitation`.
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
        data: DataName = "round",
        held_out_by: HeldOutBy = "expert",
    ) -> None:
        if evaluate_every < 0:
            raise BadArgument(f"evaluate_every={evaluate_every!r} must be at least 0 (0: never)")
        if gatherer == "torch" and behaviour != "online":
            raise BadArgument(
                f"gatherer='torch' is the learner acting through torch; behaviour={behaviour!r} must be 'online'"
            )
        self.environment, self.policy, self.gatherer_name = environment, policy, gatherer
        driver = replace(mixture(behaviour), learner_noise=noise)
        self.mixture = TorchLoop(0.0, noise) if gatherer == "torch" else driver
        self.noise = std if noise is None else noise
        self.expert = _answering(environment, expert)
        self.expert_name = expert
        self.std = std
        self.copies = positive_int("copies", copies)
        self.burn_in = burn_in
        self.evaluate_every = evaluate_every
        self.episodes = positive_int("episodes", episodes)
        self.held_out_size = positive_int("held_out", held_out)
        self.held_out_noise = self.noise if held_out_by == "noisy expert" else 0.0
        self.data = data
        space = _space(environment)
        labelled(self.expert, np.zeros((1, space.observation_size)), space)  # does it fit?
        first = self.model(0)
        self.divergence = KLProximity(first.family)
        self.loss = first.loss(np.zeros((1, space.action_size)))
        words = [environment.partition("-")[0], behaviour, policy]
        words += [] if expert == "sac" else [f"{expert} expert"]
        words += [] if noise is None else [f"noise {noise:g}"]
        words += [] if gatherer == "auto" else [gatherer]
        words += [] if data == "round" else ["all states"]
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

    def training(self, policy: Policy, update: Update, *, states: int, seed: int) -> Training:
        """A run of ``update`` on rounds of so many states, before its first round.

        While the expert drives, runs of a process share what the simulators do.
        """
        gatherer = self.gatherer(seed)
        if self.mixture.beta == 1.0:
            described = (self.environment, self.expert_name, self.gatherer_name, self.copies)
            rounds = stream(*described, self.burn_in, seed)
            gatherer = SharedGatherer(gatherer.copies, rounds, seed=seed, burn_in=self.burn_in)
        return Training(
            gatherer,
            self.expert,
            policy,
            update,
            behaviour=self.mixture,
            states_per_round=states,
            measurement=self.measurement,
            data=replay("round") if self.data == "round" else Replay("all", batch=states),
        )

    # -- what is measured -----------------------------------------------------------------------

    @property
    def measurement(self) -> Measurement:
        """Episodes of the expert: the held-out states, and what returns are compared with."""
        named = self.environment, self.expert_name, self.episodes, self.held_out_size
        return _measurement(*named, self.held_out_noise)

    def returns(self, policy: Policy) -> dict[str, float]:
        """``mean_return`` of the mean action, and its share of the expert's on the same episodes."""
        value = self.measurement.evaluate(policy).mean
        return {"mean_return": value, "return_share": value / self.measurement.expert_return}

    def refused_batch(self, batch_size: BatchSize) -> str | None:
        """Any number of states will do: a simulator does not run out of them."""
        if batch_size == "full":
            return f"{self.name!r} makes its examples as it goes: say how many a step takes"
        return None

    def session(self, config: RunConfig) -> Session:
        """A run whose steps are rounds."""
        from targetopt.lab.run.imitation import ImitationSession

        return ImitationSession(config, self)

    def model(self, seed: int) -> Policy:
        space = _space(self.environment)
        std = self.std if isinstance(space.actions, Box) else None
        return made_for(space, self.policy, std, seed)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        rows = slice(None) if index is None else as_rows(index).numpy()
        return targets(learner(model), self.measurement.states[rows])

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        rows = slice(None) if index is None else as_rows(index).numpy()
        labels = self.measurement.labels[rows]
        shaped = labels[:, 0] if self.is_linear and labels.shape[1] == 1 else labels
        return LossOracle(self.model(0).loss(shaped))

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return {"loss": self.measurement.loss(learner(model))}

    @property
    def is_linear(self) -> bool:
        return self.policy == "linear"

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ = λ_max(mean of [s 1]ᵀ[s 1])/std² of the held-out states; None for an MLP, and for choices."""
        if not self.is_linear or not self.model(0).is_quadratic:
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
    data: DataName = "round",
    held_out_by: HeldOutBy = "expert",
) -> ImitationProblem:
    """Imitation of an expert in a simulator (paper §5 and App. E.6).

    Where actions are choices, the expert answers with its odds, and the loss is KL(π_e ‖ π) between them.
    Mirror descent (``rule = "mirror-descent"``) measures steps by KL between the policy and the last one.

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
        data: what a round is learned from: its own states (``"round"``, as in the paper), or as many states drawn
            from all that were labelled so far (``"all"``).
        held_out_by: who drives to the held-out states: the ``"expert"``, or the ``"noisy expert"``, which acts with
            the learner's noise. The latter's states are those of a perfect learner: a yardstick for online runs
            that is the same for all of them.
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
        data=data,
        held_out_by=held_out_by,
    )


def best_reachable(
    problem: ImitationProblem, driver: Mixture | str, states: int, *, passes: int
) -> Reference:
    """The best loss of the problem's policy class in states that a perfect learner would visit.

    Where ``driver`` is the learner (β = 0), its place is taken by the expert's mean with the learner's
    noise (of choices, by draws from the expert's odds), else the expert drives. A network is fitted in as many
    steps as go over the states ``passes`` times.
    """
    learner_drives = mixture(driver).share(1) == 0.0
    teacher, policy = Teacher.of(problem.expert, _space(problem.environment)), problem.model(0)
    if isinstance(_space(problem.environment).actions, Box):
        behaviour = noisy(problem.expert, problem.noise if learner_drives else 0.0)
    else:  # a policy of choices draws by its odds, and so does a perfect one
        noise: Literal["own"] | float = "own" if learner_drives else 0.0
        behaviour = Mixture(1.0, expert_noise=noise).at(1, policy, teacher)
    gatherer = problem.gatherer(MEASURED_SEED)
    try:
        batch = gatherer.gather(states, behaviour, teacher)
    finally:
        gatherer.close()
    steps = max(1, passes * states // BATCH)
    return best_loss(policy, batch.states, batch.labels, steps=steps)


@lru_cache(maxsize=8)
def find_expert(environment: str, expert: str) -> NetworkExpert:
    """The expert of a family, or the one in a file."""
    if expert.endswith(".safetensors"):
        return load_expert(expert)
    return load_expert(environment, family=expert)


def _answering(environment: str, expert: str) -> Expert:
    """The expert as a run asks it: for its mean action, or for its odds where actions are choices."""
    found = find_expert(environment, expert)
    return found if isinstance(_space(environment).actions, Box) else found.stochastic()


@lru_cache(maxsize=4)
def _measurement(
    environment: str, expert: str, episodes: int, held_out: int, held_out_noise: float
) -> Measurement:
    return Measurement(
        Environment(environment),
        _answering(environment, expert),
        episodes=episodes,
        seed=MEASURED_SEED,
        held_out=held_out,
        held_out_noise=held_out_noise,
    )


@lru_cache(maxsize=8)
def _space(environment: str) -> Environment:
    return Environment(environment)


def learner(model: nn.Module) -> Policy:
    """The model of an imitation problem, known to be one."""
    if not isinstance(model, Policy):
        raise BadArgument(
            f"model is a {type(model).__name__}; this problem's model is a Policy. Make one with "
            "problem.model(seed)."
        )
    return model


@dataclass(frozen=True)
class TorchLoop(Mixture):
    """The learner drives and is asked through torch, state by state: how the paper's code acts."""

    def at(self, t: int, policy: Policy, expert: Expert) -> Behaviour:
        targets = Asked(policy)
        return lambda states, rng: policy.draws(targets(states), rng, self.noise_of(policy))
