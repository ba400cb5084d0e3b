"""Imitation learning: the oracle is a simulator plus an expert. See ``docs/imitation.md``.

Also reachable as ``targetopt.imitation``. Needs the extra ``[rl]``.

>>> import targetopt as to
>>> policy = to.imitation.GaussianPolicy(11, 3, mean="linear")
"""

from targetopt.imitation.data import Replay
from targetopt.imitation.expert import Expert, NetworkExpert, load_expert
from targetopt.imitation.experts.training import train_expert
from targetopt.imitation.measuring.evaluate import Evaluation, evaluate
from targetopt.imitation.measuring.film import Film, film
from targetopt.imitation.measuring.measure import Measurement, mean_loss
from targetopt.imitation.measuring.reachable import best_loss
from targetopt.imitation.needs import MissingPackage
from targetopt.imitation.person import AwaitingAnswers, Person
from targetopt.imitation.policies.base import Behaviour, Policy
from targetopt.imitation.policies.choices import ChoicePolicy
from targetopt.imitation.policies.files import load_policy
from targetopt.imitation.policies.network import Network
from targetopt.imitation.policies.policy import GaussianPolicy
from targetopt.imitation.prices import Prices
from targetopt.imitation.result import Result, Round
from targetopt.imitation.rounds import Training
from targetopt.imitation.simulation.behaviour import First, Geometric, Mixture, mixture, noisy
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed
from targetopt.imitation.simulation.gather import Batch, Gatherer, make_gatherer
from targetopt.imitation.simulation.over_ray import OverRay
from targetopt.imitation.stable_baselines import from_stable_baselines3
from targetopt.imitation.teacher import Teacher, labelled
from targetopt.imitation.training import train

__all__ = [
    "AwaitingAnswers",
    "Batch",
    "Behaviour",
    "ChoicePolicy",
    "Environment",
    "EnvironmentFailed",
    "Evaluation",
    "Expert",
    "Film",
    "First",
    "Gatherer",
    "GaussianPolicy",
    "Geometric",
    "Measurement",
    "MissingPackage",
    "Mixture",
    "Network",
    "NetworkExpert",
    "OverRay",
    "Person",
    "Policy",
    "Prices",
    "Replay",
    "Result",
    "Round",
    "Teacher",
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
