"""Imitation learning: the oracle is a simulator plus an expert. See ``docs/imitation.md``.

Also reachable as ``targetopt.imitation``. Needs the extra ``[rl]``.

>>> import targetopt as to
>>> policy = to.imitation.GaussianPolicy(11, 3, mean="linear")
"""

from targetopt.problems.imitation.behaviour import Behaviour, Geometric, Mixture, mixture, noisy
from targetopt.problems.imitation.environment import Environment, EnvironmentFailed
from targetopt.problems.imitation.evaluate import Evaluation, evaluate
from targetopt.problems.imitation.expert import Expert, NetworkExpert, labelled, load_expert
from targetopt.problems.imitation.experts.training import train_expert
from targetopt.problems.imitation.film import Film, film
from targetopt.problems.imitation.gather import Batch, Gatherer, make_gatherer
from targetopt.problems.imitation.measure import Measurement, mean_loss
from targetopt.problems.imitation.needs import MissingPackage
from targetopt.problems.imitation.network import Network
from targetopt.problems.imitation.policy import GaussianPolicy, load_policy
from targetopt.problems.imitation.reachable import best_loss
from targetopt.problems.imitation.rounds import Result, Round, Training
from targetopt.problems.imitation.stable_baselines import from_stable_baselines3
from targetopt.problems.imitation.training import train

__all__ = [
    "Batch",
    "Behaviour",
    "Environment",
    "EnvironmentFailed",
    "Evaluation",
    "Expert",
    "Film",
    "Gatherer",
    "GaussianPolicy",
    "Geometric",
    "Measurement",
    "MissingPackage",
    "Mixture",
    "Network",
    "NetworkExpert",
    "Result",
    "Round",
    "Training",
    "best_loss",
    "evaluate",
    "film",
    "from_stable_baselines3",
    "labelled",
    "load_expert",
    "load_policy",
    "make_gatherer",
    "mean_loss",
    "mixture",
    "noisy",
    "train",
    "train_expert",
]
