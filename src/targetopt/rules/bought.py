"""Everything bought so far: labels that the oracle has given stay known, and all of them count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.losses import Loss
from targetopt.losses.base import Evaluation
from targetopt.rules.base import Proposal, Rule
from targetopt.rules.proximal import ProximalLoss
from targetopt.rules.tables import check_coverage, memory_kind
from targetopt.types import BadArgument, MissingCapability, State, TargetPoint, check_entries

LABELS = "labels "
"""What the names of tables begin with in the rule's state."""


class KnownRows(Loss):
    """The loss of the rows that are known, and nothing of the others, as a loss of all n rows.

    Each known row counts n/k times, where k of n are known: the mean over all rows is that over the known ones.
    """

    def __init__(self, loss: Loss, places: Tensor, n: int) -> None:
        self.loss = loss
        self.places = places
        self.n = n
        self.weight = present().rows(n) / max(present().rows(len(places)), 1)

    def value(self, z: Tensor) -> Tensor:
        return self._placed(self.loss.value(z[self.places]))

    def gradient(self, z: Tensor) -> Tensor:
        return self._placed(self.loss.gradient(z[self.places]))

    def evaluate(self, z: Tensor) -> Evaluation:
        inside = self.loss.evaluate(z[self.places])
        return Evaluation(self._placed(inside.values), self._placed(inside.gradient), inside.metric)

    def curve(self, metric: Tensor, u: Tensor) -> Tensor:
        return self._placed(self.loss.curve(metric, u[self.places]))

    def rows(self, index: Tensor) -> Self:
        raise MissingCapability(
            "Bought's surrogate cannot be taken by rows, which mini-batches inside the inner loop need. Leave "
            "batch_size= out of the inner solver."
        )

    def _placed(self, entries: Tensor) -> Tensor:
        whole = entries.new_zeros((self.n, *entries.shape[1:]))
        return whole.index_copy(0, self.places, self.weight * entries)


@dataclass(frozen=True)
class Bought(Rule):
    """min_z (1/k) Σ_{i bought} ℓ_i(z_i) + (1/2η)‖z − z_t‖²: the loss of all k examples whose labels were bought so far.

    A label that was paid for stays known. So where the oracle reveals the loss itself (labels, a teacher's
    probabilities), nothing forces a step to look at the newest batch alone: the surrogate is the loss of everything
    that was ever bought, and a new batch adds to it. An example that is asked about again has its newest labels.

    ``lr=None`` leaves the proximal term out (η = ∞): every known loss is minimised as it stands. A finite ``lr``
    keeps the first, small collections from pulling the model too far.

    The surrogate is of all examples, so the inner solver needs the targets of all of them: give
    ``step(..., index=rows, regularise_on=lambda: model(x_all))``, where ``rows`` are the batch's places in ``x_all``.
    (`to.linear.fit` needs neither.) What is kept is one row of labels for each example.

    Example:
        >>> import torch, targetopt as to
        >>> x = torch.tensor([[1.0], [2.0], [1.0], [3.0]], dtype=torch.float64)
        >>> y = torch.tensor([1.0, 0.0, 2.0, 1.0], dtype=torch.float64)
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> opt = to.SSO([w], rule=to.Bought(), inner=to.LBFGS(max_steps=20))
        >>> for rows in (torch.tensor([0, 3]), torch.tensor([1, 2])):  # every label is bought once
        ...     oracle = to.LossOracle(to.losses.Squared(y[rows]))
        ...     report = opt.step(
        ...         lambda: x[rows] @ w, oracle, index=rows, regularise_on=lambda: x @ w
        ...     )
        >>> bool(
        ...     torch.isclose(w[0], (x[:, 0] @ y) / (x[:, 0] @ x[:, 0]), rtol=1e-8)
        ... )  # least squares on all four
        True

    References: Ross, Gordon, Bagnell, *A reduction of imitation learning and structured prediction to no-regret
    online learning* (DAgger), AISTATS 2011; Rockafellar 1976 (the proximal term).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"revealed"})
    everywhere: ClassVar[bool] = True
    uniform: ClassVar[bool] = False
    unbounded: ClassVar[bool] = True

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        assert point.revealed is not None  # `check` has refused such oracles
        finite = lr is not None and lr != math.inf
        eta = self.representable(lr * decay, point) if finite and lr is not None else math.inf
        z = point.targets
        targets = z if point.everything is None else point.everything
        rows = torch.arange(len(z), device=z.device) if point.index is None else point.index
        bought = point.revealed.tables()
        n = len(targets) if point.index is None else max(len(targets), int(rows.max()) + 1)
        kept: State = {
            "known": state["known"].clone() if state else rows.new_zeros(n, dtype=torch.bool)
        }
        kept["known"][rows] = True
        for name, labels in bought.items():
            kept[LABELS + name] = self._table(name, labels, rows, n, state)
        if point.everything is None:  # the batch is all there is, in its own order
            loss: Loss = point.revealed
        else:
            places = kept["known"].nonzero()[:, 0]
            known = {name: kept[LABELS + name][places] for name in bought}
            loss = KnownRows(point.revealed.with_tables(known), places, n)
        return Proposal(ProximalLoss(targets, loss, eta), kept, eta, memory_kind(point))

    @staticmethod
    def _table(name: str, labels: Tensor, rows: Tensor, n: int, state: State) -> Tensor:
        """The labels of all examples with the newest ones in their places."""
        table = state.get(LABELS + name)
        if table is not None and table.shape[1:] != labels.shape[1:]:
            raise BadArgument(
                f"Bought holds labels {name!r} of shape {tuple(table.shape[1:])} for each example, and these have "
                f"{tuple(labels.shape[1:])}. One optimiser serves one kind of labels; use a second one."
            )
        whole = (
            labels.new_zeros((n, *labels.shape[1:]))
            if table is None
            else table.to(labels, copy=True)
        )
        whole[rows] = labels
        return whole

    def check_everything(
        self, z: Tensor, everything: Tensor | None, index: Tensor | None, state: State
    ) -> None:
        check_coverage("Bought", z, everything, index, state.get("known"))

    def check_state(self, state: State) -> None:
        check_entries("Bought", state)
        known = state.get("known")

        def one_row_each(table: Any) -> bool:
            finite = isinstance(table, Tensor) and bool(torch.isfinite(table).all())
            return finite and isinstance(known, Tensor) and table.shape[:1] == known.shape

        tables = [name for name in state if isinstance(name, str) and name.startswith(LABELS)]
        check_entries("Bought", state, **dict.fromkeys(tables, one_row_each))
        if state and not (
            isinstance(known, Tensor) and known.dtype == torch.bool and known.ndim == 1 and tables
        ):
            raise BadArgument(
                "Bought: the saved state must hold the table 'known', one truth for each example, and labels; it holds "
                f"{', '.join(sorted(map(str, state)))}. It was saved by another rule, or is damaged."
            )

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # without lr there is no proximal term
