"""Several ranks do one step: each has its own rows, and all agree on every number that decides.

In a process group of ``torch.distributed`` the batch of a step is the rows of all ranks together, as many on each as
it likes. Every mean over rows, every slope, norm and ratio is added up over the ranks in float64, exactly rounded, so
that all ranks compute with the same bits, take the same decisions, and keep the same parameters; their fingerprints are
compared at the beginning and end of each step. A step that one rank cannot do, no rank does.

Nothing has to be called for this: `targetopt.SSO` sees that there is a process group. ``SSO(..., group=None)`` keeps a
rank to itself, and ``group=some_group`` joins a part of the ranks.
"""

from typing import TYPE_CHECKING

from targetopt.lazy import attach

if TYPE_CHECKING:  # what the table below offers, for type checkers
    from targetopt.distributed.on_first_rank import OnFirstRank as OnFirstRank
    from targetopt.distributed.ranks import Ranks as Ranks
    from targetopt.distributed.ranks import world_of as world_of
    from targetopt.errors import RankFailed as RankFailed

__getattr__, __dir__, __all__ = attach(
    __name__,
    {"on_first_rank": ["OnFirstRank"], "ranks": ["RankFailed", "Ranks", "world_of"]},
)
