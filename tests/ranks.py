"""Real process groups for the tests: what each rank does, and the same done by one process on the joined batch.

Ranks and one process add up the same numbers in another order, so they begin to differ in the last bit. What becomes of
that bit in twenty steps is up to the problem. Where a method stretches distances (a network far from its minimum, with
long steps), or where it has arrived and its decreases are rounding only, one process differs from itself as soon as its
rows come in another order. So the problem of `trained`, on which every rule meets every inner solver, is one that does
neither. Sixty rows in forty directions have singular values within a factor of 3.2; the forward bends each target,
z = u + ½ sin u, so that its slope lies between ½ and 1½; the loss is convex; and the inner solvers take so few steps
that the last of twenty steps still has a decrease far above rounding. Three rules stretch distances even there unless
they are held: `FTRL` sums up what an unfinished inner solve has left, so its η is small, as is that of the entropy;
`Secant` divides by the differences of steps that are nearly parallel, so it keeps the last three pairs only. In
another order of its rows, one process differs from itself by some 1e-13 at most on this problem.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import targetopt as to
from core_parts import ALL_RULES, SOLVERS, Shift
from targetopt.lab.run import origin

CUTS = {1: [0, 12], 2: [0, 5, 12], 3: [0, 3, 5, 12]}
"""Where the twelve rows are cut: every rank has another number of them."""

ONLY_ITERATIVE = {"proximal", "secant", "bundle", "bought", "automatic"}
"""Rules whose surrogates have no minimiser in closed form."""

RULES: dict[str, tuple[to.Rule, float | None]] = {
    **ALL_RULES,
    "entropy": (to.MirrorDescent(to.NegativeEntropy()), 0.1),
    "ftrl": (to.FTRL(), 0.2),
    "secant": (to.TrustRegion(metric=to.Secant(pairs=3)), None),
}
"""Every rule, three of them with settings that do not carry rounding further (see above)."""

SHORT: dict[str, to.Inner] = {
    **SOLVERS,
    "armijo": to.Armijo(max_steps=2),
    "lbfgs": to.LBFGS(max_steps=2),
    "gauss-newton": to.GaussNewton(max_steps=1, cg_steps=2),
    "torch-lbfgs": to.Torch(partial(torch.optim.LBFGS, max_iter=2, lr=0.3), max_steps=1),
}
"""Every inner solver, with so few steps that twenty of a rule do not end at a minimum."""

MATRIX = [
    (rule, solver)
    for rule in RULES
    for solver in SHORT
    if not (solver == "exact" and rule in ONLY_ITERATIVE)
]

_numbers = torch.Generator().manual_seed(1)
X = torch.randn(12, 4, dtype=torch.float64, generator=_numbers)
Y = torch.randn(12, dtype=torch.float64, generator=_numbers).sign()


def rows_of(rank: int, size: int) -> Tensor:
    return torch.arange(CUTS[size][rank], CUTS[size][rank + 1])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


ROWS, FEATURES = 60, 40


def _even() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs with known singular values, labels, and classes."""
    numbers = torch.Generator().manual_seed(1)
    drawn = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=numbers)
    scales = torch.logspace(0, -0.5, FEATURES, dtype=torch.float64)
    inputs = ROWS**0.5 * torch.linalg.qr(drawn).Q * scales
    labels = torch.randn(ROWS, dtype=torch.float64, generator=numbers).sign()
    return inputs, labels, torch.randint(3, (ROWS,), generator=numbers)


EVEN_X, EVEN_Y, EVEN_CLASSES = _even()


class Bent(nn.Module):
    """u ↦ u + ½ sin u: not linear, and nowhere flat or steep."""

    def forward(self, u: Tensor) -> Tensor:
        return u + 0.5 * torch.sin(u)


def even_rows_of(rank: int, size: int) -> Tensor:
    """A rank's rows of the sixty."""
    return torch.arange(ROWS).split([ROWS // 12 * len(rows_of(r, size)) for r in range(size)])[rank]


def parts(rule: str, solver: str) -> tuple[nn.Module, Callable[[Tensor], Tensor], Any]:
    """A model, its targets and its oracle, both as functions of the rows."""
    torch.manual_seed(0)
    if rule == "entropy":
        likelihood = lambda rows: to.LossOracle(  # noqa: E731
            partial(
                lambda label, p: -p.gather(1, label)[:, 0].log(), EVEN_CLASSES[rows].unsqueeze(1)
            )
        )
        if solver == "exact":
            shift = Shift(ROWS, 3)
            return shift, shift, likelihood
        softmax = nn.Sequential(nn.Linear(FEATURES, 3), nn.Softmax(dim=1)).double()
        return softmax, lambda rows: softmax(EVEN_X[rows]), likelihood
    linear = nn.Linear(FEATURES, 1)
    model = (linear if solver == "exact" else nn.Sequential(linear, Bent())).double()
    return (
        model,
        lambda rows: model(EVEN_X[rows])[:, 0],
        lambda rows: to.LossOracle(to.losses.Logistic(EVEN_Y[rows])),
    )


def trained(
    rule: str, solver: str, rows: Tensor, steps: int
) -> tuple[Tensor, list[dict[str, Any]]]:
    """All parameters after some steps on these rows, and the reports."""
    model, forward, oracle = parts(rule, solver)
    part, lr = RULES[rule]
    decay = 0.0 if rule == "entropy" else 0.001
    opt = to.SSO(model.parameters(), lr=lr, rule=part, inner=SHORT[solver], weight_decay=decay)
    reports = [asdict(opt.step(lambda: forward(rows), oracle(rows))) for _ in range(steps)]
    return flat(model), reports


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector, those that are sharded put together."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


def matrix(rank: int, size: int, cells: list[tuple[str, str]], steps: int) -> dict[Any, Any]:
    rows = even_rows_of(rank, size)
    return {cell: trained(*cell, rows, steps) for cell in cells}


def spawned(size: int, directory: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(rank, size, *arguments)`` gave on each rank of a gloo group."""
    directory.mkdir(exist_ok=True)
    origin.started()  # ranks are forked from the process that has imported torch for the laboratory's workers
    mp.start_processes(
        _entry, (size, str(directory), work, arguments), nprocs=size, start_method="forkserver"
    )
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _entry(rank: int, size: int, directory: str, work: Any, arguments: tuple[Any, ...]) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/meeting-point",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    torch.save(work(rank, size, *arguments), Path(directory) / f"{rank}.pt")
    dist.destroy_process_group()
