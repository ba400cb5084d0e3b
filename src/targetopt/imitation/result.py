"""What came out of a run: a record of each round, and the policy with its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
from torch import nn

from targetopt.imitation import checkpoint as checkpoints
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.files import rebuilt
from targetopt.imitation.policies.network import Array


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        round: its number, from 1.
        interactions: states gathered so far, this round's included.
        questions: states that the expert was asked about so far: for labels, to drive while copies were
            staggered, and in its own episodes.
        cost: what questions and interactions so far cost, by the prices given.
        states: what this round learned from: its own states, and older ones if they are kept.
        beta: the expert's share of the driving.
        loss: policy loss on this round's states, before the update (the paper's measure).
        held_out_loss: policy loss on the fixed expert states, after the update; nan if there are none.
        mean_return: return of the mean action after the update, over the evaluation episodes; nan in
            rounds without an evaluation.
        std_return: its standard deviation between episodes.
        return_share: mean_return as a share of the expert's on the same episodes.
        oracle_calls: rounds are oracle calls, 1 each; the other counts are of this round's update.
        value_calls: losses evaluated without a gradient.
        inner_steps: updates of the parameters.
        forward_calls: of the policy on the whole batch.
        backward_calls: through it.
        gathering_time: CPU seconds of gathering and labelling (without the first round's burn-in).
        updating_time: CPU seconds of the update.
    """

    round: int
    interactions: int
    questions: int
    cost: float
    states: int
    beta: float
    loss: float
    held_out_loss: float
    mean_return: float
    std_return: float
    return_share: float
    oracle_calls: int
    value_calls: int
    inner_steps: int
    forward_calls: int
    backward_calls: int
    gathering_time: float
    updating_time: float


@dataclass(frozen=True)
class Result:
    """A trained policy and how it came about.

    Attributes:
        policy: the learner; `evaluate` it, or use its ``save`` and ``act``.
        history: one `Round` each.
        expert_return: mean return of the expert, over as many episodes as the learner's; nan if it was
            not asked to play any.
        questions: states that the expert was asked about: ``labels`` of the rounds; ``driving`` while
            copies were staggered (none in `train`); ``measuring``, its own episodes; and ``checking``, whether
            it was still the same expert when the run went on.
        cost: what all questions and interactions cost, by the prices given.
    """

    policy: Policy
    history: list[Round]
    expert_return: float
    questions: Mapping[str, int] = field(default_factory=dict)
    cost: float = 0.0

    def columns(self) -> dict[str, Array]:
        """The history as one array per attribute of `Round`, for plots and data frames."""
        return {
            item.name: np.array([getattr(r, item.name) for r in self.history], dtype=np.float64)
            for item in fields(Round)
        }

    @classmethod
    def load(cls, path: str | Path, learner: nn.Module | None = None) -> Result:
        """The run in a checkpoint as far as it went, without its expert, environment or settings.

        Args:
            path: the checkpoint.
            learner: the module that was trained, built as it was then, if it was one of your own.

        Example:
            >>> import tempfile, targetopt as to
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = to.imitation.train(
            ...         "Swimmer-v5",
            ...         lambda states: 0.5 * np.tanh(states[:, 3:5]),
            ...         learner="linear",
            ...         rounds=2,
            ...         states_per_round=50,
            ...         copies=2,
            ...         evaluate_every=0,
            ...         checkpoint=f"{folder}/run.pt",
            ...         progress=False,
            ...     )
            ...     result = Result.load(f"{folder}/run.pt")
            >>> len(result.history), result.policy.environment
            (2, 'Swimmer-v5')
        """
        settings, state = checkpoints.read(Path(path))
        source = f"checkpoint {str(path)!r}"
        extras = checkpoints.unpacked(state["extras"])
        policy = rebuilt(settings["learner"], state["policy"], extras, learner, source)
        policy.train_by(settings["loss"])
        policy.environment = policy.environment or settings["environment"]
        history = [Round(**each) for each in state["history"]]
        policy.provenance = {"rounds": len(history), "settings": settings}
        asked, cost = state["teacher"]["asked"], state["cost"]
        return cls(policy, history, state["expert_return"], asked, cost)
