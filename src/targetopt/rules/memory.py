"""Per-example memory: each example's last answer keeps counting until it is asked about again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.rules.tables import (
    averaged,
    check_coverage,
    memory_kind,
    on_disk,
    table_on_disk,
)
from targetopt.surrogate import Quadratic
from targetopt.types import (
    BadArgument,
    State,
    TargetPoint,
    check_entries,
    is_table,
)

KINDS = ("saga", "miso")


@dataclass(frozen=True)
class Memory(Rule):
    """The surrogate of *all* examples, from each one's last answer: noise goes to zero, not to a floor.

    A batch alone pulls the model towards itself. With memory, each data row i keeps the last gradient g_i
    that the oracle gave for it (zero before the first), and with ``"miso"`` also the targets a_i where it
    was given. After the answer g_i⁺ for the batch B, the surrogate of all n examples is ::

        saga:  q(z) = ℓ + (1/n) Σ_i [ u_i·(z_i − z_t,i) + (1/2η)‖z_i − z_t,i‖² ]
               u_i = g_i + (n/b)(g_i⁺ − g_i) on the batch, and u_i = g_i elsewhere
        miso:  q(z) = c + (1/n) Σ_i [ g_i·(z_i − a_i) + (1/2η)‖z_i − a_i‖² ],
               with a_i = z_t,i and g_i = g_i⁺ on the batch first

    ``"saga"`` is an unbiased estimate of the full gradient whose variance vanishes at the minimum; in batches
    of a few times the number of parameters it reaches the minimum in tens of epochs. ``"miso"`` minimises an
    upper bound of the loss (η ≤ 1/L), never overshoots, and needs as many epochs as full-batch SSO needs steps.
    On the full batch both are `GradientStep`. ``lr=None`` means 1/(2L).

    The surrogate is of all examples, so the inner solver needs the targets of all of them: give
    ``step(..., index=rows, regularise_on=lambda: model(x_all))``, where ``rows`` are the batch's places in
    ``x_all``. There is no cheaper form on the batch's rows alone: with g_i⁺ − g_i + mean(g) in their place the
    models' Jacobians do not average out, and the method would end somewhere else than at the minimum. The
    memory saves calls of the oracle, not of the model. (`to.linear.fit` needs neither: a linear model's
    Gram matrix stands for all examples, and is factored once.)

    With ``"saga"`` one example may be moved by h_i/b times its usual step, where h_i is its leverage (the mean
    is the number of parameters, or n if those are more). Where the model has many parameters for its batch,
    choose lr ≲ b/(n·L), or ``"miso"``. Where all examples can be fitted at once (interpolation), plain
    `GradientStep` has no noise to lose and is faster than either.

    Args:
        kind: ``"saga"`` or ``"miso"``.
        directory: where to keep the tables in a file that is mapped into memory and gone when the program
            ends; ``None`` keeps them in memory. A table has one row of targets per example. (``state_dict()``
            then refers to the file: save or copy it before the next step, as with torch's own optimisers.)

    Example:
        >>> import torch, targetopt as to
        >>> x = torch.tensor([[1.0], [2.0], [1.0], [3.0]], dtype=torch.float64)
        >>> y = torch.tensor([1.0, 0.0, 2.0, 1.0], dtype=torch.float64)  # no line fits all of them
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> opt = to.SSO([w], lr=0.5, rule=to.Memory(), inner=to.Exact())
        >>> for t in range(200):
        ...     rows = torch.tensor([t % 2, 3 - t % 2])
        ...     oracle = to.LossOracle(to.losses.Squared(y[rows]))
        ...     report = opt.step(
        ...         lambda: x[rows] @ w, oracle, index=rows, regularise_on=lambda: x @ w
        ...     )
        >>> bool(torch.isclose(w[0], (x[:, 0] @ y) / (x[:, 0] @ x[:, 0]), rtol=1e-12))
        True
        >>> report.memory
        'per example'

    References: Defazio, Bach, Lacoste-Julien, *SAGA*, NIPS 2014; Mairal, *Incremental
    majorization-minimization optimization* (MISO), SIAM J. Optim. 2015; Defazio, Domke, Caetano, *Finito*,
    ICML 2014.
    """

    kind: str = "saga"
    directory: str | PathLike[str] | None = None

    everywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadArgument(f"Memory: kind={self.kind!r} must be 'saga' or 'miso'")
        if self.directory is not None and not Path(self.directory).is_dir():
            raise BadArgument(
                f"Memory: directory={str(self.directory)!r} is not a directory. Make it first, on a disk with room "
                "for one row of targets per example, or pass None to keep the tables in memory."
            )

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        eta = self.step_size(point, lr, decay)
        z, g = averaged(point.targets, point), averaged(point.gradients, point)
        everything, rows = point.everything, self._rows(point)
        tables = self._tables(point, rows, state)
        before = tables["gradients"][rows]
        kept = self._remembered(tables, rows, {"gradients": g, "targets": z})
        memory = memory_kind(point)
        if everything is None:  # the batch is all there is, and every example is fresh
            return Proposal(SquaredEuclidean().surrogate(point, eta), kept, eta, memory)
        current = self._current(kept)
        metric = z.new_tensor(1.0 / eta)
        if self.kind == "miso":
            q = Quadratic(current["targets"], current["gradients"], metric, point.loss)
            q = replace(q, constant=2 * point.loss - q.value(everything))
            return Proposal(q, kept, eta, memory)
        # u = table after the step + the batch's changes, n/b − 1 times (each copy of a row is one of b)
        n, b = present().rows(everything.shape[0]), present().rows(z.shape[0])
        copies = torch.bincount(rows).to(z)[rows]
        weight = (n / b - copies.reciprocal()).reshape(-1, *([1] * (z.ndim - 1)))
        u = current["gradients"].index_add(0, rows, weight * (g - before))
        return Proposal(Quadratic(everything, u, metric, point.loss), kept, eta, memory)

    @staticmethod
    def _rows(point: TargetPoint) -> Tensor:
        if point.index is not None:
            return point.index
        return torch.arange(point.targets.shape[0], device=point.targets.device)

    @property
    def _names(self) -> list[str]:
        return ["gradients", "targets"] if self.kind == "miso" else ["gradients"]

    def _tables(self, point: TargetPoint, rows: Tensor, state: State) -> dict[str, Tensor]:
        """What is remembered before this step.

        On disk a table is not copied at every step: a step's rows wait beside it, and are written here, when
        the next step begins and that one has been adopted. To write them twice does no harm.
        """
        tables: dict[str, Tensor] = {}
        for name in self._names:
            table = state[name] if state else self._empty(name, point, rows)
            if self.directory is None:
                table = table.to(point.targets, copy="rows" in state)
            elif not on_disk(table):
                table = table_on_disk(table, self.directory)
            if "rows" in state:
                table[state["rows"]] = state[f"fresh_{name}"].to(table)
            tables[name] = table
        return tables

    def _remembered(
        self, tables: dict[str, Tensor], rows: Tensor, fresh: dict[str, Tensor]
    ) -> State:
        """What is remembered after this step; the tables that were given stay as they are."""
        if self.directory is not None:
            waiting = {f"fresh_{name}": fresh[name].clone() for name in tables}
            return {**tables, **waiting, "rows": rows}
        kept = {name: table.clone() for name, table in tables.items()}
        for name, table in kept.items():
            table[rows] = fresh[name]
        return kept

    @staticmethod
    def _empty(name: str, point: TargetPoint, rows: Tensor) -> Tensor:
        """Before an example was asked about: no gradient, at the targets where the run began."""
        z = point.targets
        if name == "targets" and point.everything is not None:
            return point.everything.clone()
        n = int(rows.max()) + 1 if point.everything is None else point.everything.shape[0]
        return z.new_zeros((n, *z.shape[1:]))

    def _current(self, kept: State) -> dict[str, Tensor]:
        """The tables with the rows that wait beside them."""
        if self.directory is None:
            return kept
        tables: dict[str, Tensor] = {name: kept[name].clone() for name in self._names}
        for name, table in tables.items():
            table[kept["rows"]] = kept[f"fresh_{name}"]
        return tables

    def check_everything(
        self, z: Tensor, everything: Tensor | None, index: Tensor | None, state: State
    ) -> None:
        check_coverage("Memory", z, everything, index, state.get("gradients"), z.shape[1:])

    def check_state(self, state: State) -> None:
        check_entries("Memory", state)
        if not state:
            return
        names = self._names
        if not (state.keys() >= set(names) and is_table(state["gradients"])):
            raise BadArgument(
                f"Memory(kind={self.kind!r}): the saved state must hold the tables {', '.join(names)}; it holds "
                f"{', '.join(sorted(map(str, state))) or 'nothing'}. It was saved with another kind, or is damaged."
            )
        shape, rows = state["gradients"].shape, state.get("rows")

        def waiting(value: Any) -> bool:
            same = isinstance(rows, Tensor) and rows.ndim == 1
            return same and is_table(value) and value.shape == (rows.shape[0], *shape[1:])  # type: ignore[union-attr]

        def are_rows(value: Any) -> bool:
            whole = isinstance(value, Tensor) and value.dtype == torch.long and value.ndim == 1
            if not whole or not {f"fresh_{name}" for name in names} <= state.keys():
                return False
            return value.numel() == 0 or bool((value >= 0).all() and (value < shape[0]).all())

        check_entries(
            "Memory",
            state,
            targets=lambda table: is_table(table) and table.shape == shape,
            rows=are_rows,
            fresh_gradients=waiting,
            fresh_targets=waiting,
        )
