"""targetopt: train models whose gradients are expensive, by surrogates in target space.

>>> import torch, targetopt as to
>>> w = torch.zeros(3, requires_grad=True)
>>> x, y = torch.eye(3), torch.tensor([1.0, -1.0, 1.0])
>>> opt = to.SSO([w], lr=2.0, rule=to.GradientStep(), inner=to.Armijo(max_steps=20))
>>> report = opt.step(lambda: x @ w, to.LossOracle(to.losses.Logistic(y)))  # one oracle call
>>> report.oracle_calls
1
"""

from typing import TYPE_CHECKING

from targetopt._version import __version__ as __version__
from targetopt.lazy import attach

if TYPE_CHECKING:  # what the table below offers, for type checkers
    from targetopt import baselines as baselines
    from targetopt import distributed as distributed
    from targetopt import distributions as distributions
    from targetopt import errors as errors
    from targetopt import imitation as imitation
    from targetopt import inner as inner
    from targetopt import linear as linear
    from targetopt import losses as losses
    from targetopt import oracle as oracle
    from targetopt import rl as rl
    from targetopt import rules as rules
    from targetopt import schedules as schedules
    from targetopt import surrogate as surrogate
    from targetopt import theory as theory
    from targetopt import types as types
    from targetopt import vocabulary as vocabulary
    from targetopt.chunked import Chunked as Chunked
    from targetopt.divergence import Divergence as Divergence
    from targetopt.divergence import NegativeEntropy as NegativeEntropy
    from targetopt.divergence import SquaredEuclidean as SquaredEuclidean
    from targetopt.errors import BadAnswer as BadAnswer
    from targetopt.errors import BadArgument as BadArgument
    from targetopt.errors import BadForward as BadForward
    from targetopt.errors import Diverged as Diverged
    from targetopt.errors import MissingCapability as MissingCapability
    from targetopt.errors import TargetoptError as TargetoptError
    from targetopt.heads import Heads as Heads
    from targetopt.inner import LBFGS as LBFGS
    from targetopt.inner import Armijo as Armijo
    from targetopt.inner import Exact as Exact
    from targetopt.inner import GaussNewton as GaussNewton
    from targetopt.inner import GradientDescent as GradientDescent
    from targetopt.inner import Inner as Inner
    from targetopt.inner import InnerResult as InnerResult
    from targetopt.inner import Stopping as Stopping
    from targetopt.inner import Torch as Torch
    from targetopt.linear import Linear as Linear
    from targetopt.optim import SSO as SSO
    from targetopt.oracle import GradientOracle as GradientOracle
    from targetopt.oracle import LossOracle as LossOracle
    from targetopt.oracle import Oracle as Oracle
    from targetopt.oracle import ScalarOracle as ScalarOracle
    from targetopt.oracle import teachers as teachers
    from targetopt.oracle.answers import Answers as Answers
    from targetopt.oracle.asynchronous import Asynchronous as Asynchronous
    from targetopt.oracle.budget import Budget as Budget
    from targetopt.oracle.cache import Cache as Cache
    from targetopt.oracle.errors import BudgetExceeded as BudgetExceeded
    from targetopt.oracle.ledger import Ledger as Ledger
    from targetopt.oracle.progress import show_progress as show_progress
    from targetopt.oracle.ray_oracle import RayOracle as RayOracle
    from targetopt.oracle.remote import RemoteOracle as RemoteOracle
    from targetopt.oracle.remote import Retries as Retries
    from targetopt.oracle.remote import Service as Service
    from targetopt.rules import FTRL as FTRL
    from targetopt.rules import AdaGrad as AdaGrad
    from targetopt.rules import AdaGradNorm as AdaGradNorm
    from targetopt.rules import Bought as Bought
    from targetopt.rules import Bundle as Bundle
    from targetopt.rules import GradientStep as GradientStep
    from targetopt.rules import LineSearch as LineSearch
    from targetopt.rules import Majoriser as Majoriser
    from targetopt.rules import Memory as Memory
    from targetopt.rules import MirrorDescent as MirrorDescent
    from targetopt.rules import Newton as Newton
    from targetopt.rules import Polyak as Polyak
    from targetopt.rules import Proposal as Proposal
    from targetopt.rules import Proximal as Proximal
    from targetopt.rules import Reconsidered as Reconsidered
    from targetopt.rules import Rule as Rule
    from targetopt.rules import Secant as Secant
    from targetopt.rules import TrustRegion as TrustRegion
    from targetopt.step.by_rows import ByRows as ByRows
    from targetopt.surrogate import EntropicProximal as EntropicProximal
    from targetopt.surrogate import Quadratic as Quadratic
    from targetopt.surrogate import Surrogate as Surrogate
    from targetopt.types import Counts as Counts
    from targetopt.types import Query as Query
    from targetopt.types import StepReport as StepReport
    from targetopt.types import TargetPoint as TargetPoint

_GROUPED = {
    "divergence": ["Divergence"],
    "errors": [
        "BadAnswer",
        "BadArgument",
        "BadForward",
        "Diverged",
        "MissingCapability",
        "TargetoptError",
    ],
    "inner": ["InnerResult", "Stopping"],
    "oracle.errors": ["BudgetExceeded"],
    "oracle.progress": ["show_progress"],
    "oracle.remote": ["Retries", "Service"],
    "rules": ["Proposal", "Reconsidered"],
    "step.by_rows": ["ByRows"],
    "surrogate": ["EntropicProximal", "Quadratic", "Surrogate"],
    "types": ["Counts", "Query", "StepReport", "TargetPoint"],
}
"""What is listed in its module (``to.errors``, ``to.surrogate``, …) and not here, though it is found here too."""

__getattr__, __dir__, _public = attach(
    __name__,
    {
        "chunked": ["Chunked"],
        "divergence": ["NegativeEntropy", "SquaredEuclidean"],
        "heads": ["Heads"],
        "inner": [
            "LBFGS",
            "Armijo",
            "Exact",
            "GaussNewton",
            "GradientDescent",
            "Inner",
            "Torch",
        ],
        "linear": ["Linear"],
        "optim": ["SSO"],
        "oracle": ["GradientOracle", "LossOracle", "Oracle", "ScalarOracle"],
        "oracle.answers": ["Answers"],
        "oracle.asynchronous": ["Asynchronous"],
        "oracle.budget": ["Budget"],
        "oracle.cache": ["Cache"],
        "oracle.ledger": ["Ledger"],
        "oracle.ray_oracle": ["RayOracle"],
        "oracle.remote": ["RemoteOracle"],
        "rules": [
            "FTRL",
            "AdaGrad",
            "AdaGradNorm",
            "Bought",
            "Bundle",
            "GradientStep",
            "LineSearch",
            "Majoriser",
            "Memory",
            "MirrorDescent",
            "Newton",
            "Polyak",
            "Proximal",
            "Rule",
            "Secant",
            "TrustRegion",
        ],
    },
    modules=[
        "baselines",
        "distributed",
        "distributions",
        "errors",
        "imitation",
        "inner",
        "linear",
        "losses",
        "oracle",
        "oracle.teachers",
        "rl",
        "rules",
        "schedules",
        "surrogate",
        "theory",
        "types",
        "vocabulary",
    ],
    extras={"anyio": "remote", "stamina": "remote", "httpx2": "remote", "httpcore2": "remote"},
    unlisted=_GROUPED,
)
__all__ = ["__version__", *_public]
