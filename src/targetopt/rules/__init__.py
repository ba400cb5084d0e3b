"""Target-space rules: each turns one oracle answer into a surrogate. One rule a file."""

from targetopt.rules.adagrad import AdaGrad
from targetopt.rules.adagrad_norm import AdaGradNorm
from targetopt.rules.automatic import Automatic
from targetopt.rules.base import Proposal, Reconsidered, Rule
from targetopt.rules.bought import Bought
from targetopt.rules.bundle import Bundle
from targetopt.rules.ftrl import FTRL
from targetopt.rules.gradient_step import GradientStep
from targetopt.rules.line_search import LineSearch
from targetopt.rules.majoriser import Majoriser
from targetopt.rules.memory import Memory
from targetopt.rules.mirror_descent import MirrorDescent
from targetopt.rules.newton import Newton
from targetopt.rules.polyak import Polyak
from targetopt.rules.proximal import Proximal
from targetopt.rules.secant import Secant
from targetopt.rules.trust_region import TrustRegion

__all__ = [
    "FTRL",
    "AdaGrad",
    "AdaGradNorm",
    "Automatic",
    "Bought",
    "Bundle",
    "GradientStep",
    "LineSearch",
    "Majoriser",
    "Memory",
    "MirrorDescent",
    "Newton",
    "Polyak",
    "Proposal",
    "Proximal",
    "Reconsidered",
    "Rule",
    "Secant",
    "TrustRegion",
]
