"""Imitation learning: the oracle is a simulator plus an expert. See ``docs/imitation.md``.

Also reachable as ``targetopt.imitation``. Needs the extra ``[rl]``.

>>> import targetopt as to
>>> policy = to.imitation.GaussianPolicy(11, 3, mean="linear")
"""

from targetopt.problems.imitation.behaviour import Behaviour, Geometric, Mixture, mixture, noisy
from targetopt.problems.imitation.environment import Environment, EnvironmentFailed
from targetopt.problems.imitation.evaluate import Evaluation, evaluate
from targetopt.problems.imitation.expert import Expert, NetworkExpert, labelled, load_expert
from targetopt.problems.imitation.gather import Batch, Gatherer, make_gatherer
from targetopt.problems.imitation.needs import MissingPackage
from targetopt.problems.imitation.network import Network
from targetopt.problems.imitation.policy import GaussianPolicy, load_policy

__all__ = [
    "Batch",
    "Behaviour",
    "Environment",
    "EnvironmentFailed",
    "Evaluation",
    "Expert",
    "Gatherer",
    "GaussianPolicy",
    "Geometric",
    "MissingPackage",
    "Mixture",
    "Network",
    "NetworkExpert",
    "evaluate",
    "labelled",
    "load_expert",
    "load_policy",
    "make_gatherer",
    "mixture",
    "noisy",
]
