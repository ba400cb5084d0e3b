"""Reinforcement learning in target space: surrogate × divergence × step size × inner solver. See ``docs/rl.md``.

Also reachable as ``targetopt.rl``. Needs the extra ``[rl]``.

>>> import targetopt as to
>>> to.rl.HeldKL(0.01)
HeldKL(target=0.01, most=1.5, least=0.0, tries=8, eta=1.0)
"""

from targetopt.rl.adam import Adam, full_adam, minibatch_adam
from targetopt.rl.advantages import advantages
from targetopt.rl.decision_aware import DecisionAware
from targetopt.rl.environment import ControlEnvironment
from targetopt.rl.gathering import Batch, Collector
from targetopt.rl.many import SeedsFailed, train_many
from targetopt.rl.networks import Actor, Critic
from targetopt.rl.oracle import PolicyOracle
from targetopt.rl.policy import Policy
from targetopt.rl.recipes import PRESETS, Recipe
from targetopt.rl.result import Result, Update
from targetopt.rl.rule import PolicyStep
from targetopt.rl.steps import ArmijoStep, ConstantStep, HeldKL, Landing, StepSize, TrustRatio
from targetopt.rl.surrogates import Clipped, Linear, LogRatio, PolicySurrogate, Ratio, Term
from targetopt.rl.tabular import MDP, cliff_world, deep_sea, solve
from targetopt.rl.training import CannotHold, RefusedStep, Training, train

__all__ = [
    "MDP",
    "PRESETS",
    "Actor",
    "Adam",
    "ArmijoStep",
    "Batch",
    "CannotHold",
    "Clipped",
    "Collector",
    "ConstantStep",
    "ControlEnvironment",
    "Critic",
    "DecisionAware",
    "HeldKL",
    "Landing",
    "Linear",
    "LogRatio",
    "Policy",
    "PolicyOracle",
    "PolicyStep",
    "PolicySurrogate",
    "Ratio",
    "Recipe",
    "RefusedStep",
    "Result",
    "SeedsFailed",
    "StepSize",
    "Term",
    "Training",
    "TrustRatio",
    "Update",
    "advantages",
    "cliff_world",
    "deep_sea",
    "full_adam",
    "minibatch_adam",
    "solve",
    "train",
    "train_many",
]
