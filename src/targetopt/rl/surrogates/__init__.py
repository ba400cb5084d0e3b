"""What a step in policies promises, from the advantages at the visited states alone. One surrogate a file.

All of them have the policy gradient as their gradient at the policy that was visited, and differ away from it::

    linear      −A ⟨∇ log π_t(a), z − z_t⟩        functional mirror ascent
    ratio       −A (π_z(a)/π_t(a) − 1)            importance sampling: TRPO, MDPO
    log-ratio   −A log π_z(a)/π_t(a)              SPMA
    clipped     −min(A ρ, A clip(ρ)) + A          PPO
"""

from targetopt.rl.surrogates.base import Reading, Term, Visits
from targetopt.rl.surrogates.clipped import Clipped
from targetopt.rl.surrogates.linear import Linear
from targetopt.rl.surrogates.log_ratio import LogRatio
from targetopt.rl.surrogates.policy import PolicySurrogate
from targetopt.rl.surrogates.ratio import Ratio

__all__ = [
    "Clipped",
    "Linear",
    "LogRatio",
    "PolicySurrogate",
    "Ratio",
    "Reading",
    "Term",
    "Visits",
]
