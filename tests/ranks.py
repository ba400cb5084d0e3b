"""Real process groups for the tests: what each rank does, and the same done by one process on the joined batch."""

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

CUTS = {1: [0, 12], 2: [0, 5, 12], 3: [0, 3, 5, 12]}
"""Where the twelve rows are cut: every rank has another number of them."""

ONLY_ITERATIVE = {"proximal", "secant", "majoriser", "bundle", "automatic"}
"""Rules whose surrogates have no minimiser in closed form."""

MATRIX = [
    (rule, solver)
    for rule in ALL_RULES
    for solver in SOLVERS
    if not (solver == "exact" and rule in ONLY_ITERATIVE)
]

_numbers = torch.Generator().manual_seed(1)
X = torch.randn(12, 4, dtype=torch.float64, generator=_numbers)
Y = torch.randn(12, dtype=torch.float64, generator=_numbers).sign()
CLASSES = torch.randint(3, (12,), generator=_numbers)


def rows_of(rank: int, size: int) -> Tensor:
    return torch.arange(CUTS[size][rank], CUTS[size][rank + 1])


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def parts(rule: str, solver: str) -> tuple[nn.Module, Callable[[Tensor], Tensor], Any]:
    """A model, its targets and its oracle, both as functions of the rows."""
    if rule == "entropy":
        likelihood = lambda rows: to.LossOracle(  # noqa: E731
            partial(lambda label, p: -p.gather(1, label)[:, 0].log(), CLASSES[rows].unsqueeze(1))
        )
        if solver == "exact":
            shift = Shift(12, 3)
            return shift, shift, likelihood
        softmax = nn.Sequential(network(3), nn.Softmax(dim=1))
        return softmax, lambda rows: softmax(X[rows]), likelihood
    model: nn.Module = network()
    if solver == "exact":
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
    return (
        model,
        lambda rows: model(X[rows])[:, 0],
        lambda rows: to.LossOracle(to.losses.Logistic(Y[rows])),
    )


def trained(
    rule: str, solver: str, rows: Tensor, steps: int, **options: Any
) -> tuple[Tensor, list[dict[str, Any]]]:
    """All parameters after some steps on these rows, and the reports."""
    model, forward, oracle = parts(rule, solver)
    part, lr = ALL_RULES[rule]
    opt = to.SSO(model.parameters(), lr=lr, rule=part, inner=SOLVERS[solver], **options)
    reports = [asdict(opt.step(lambda: forward(rows), oracle(rows))) for _ in range(steps)]
    return flat(model), reports


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector, those that are sharded put together."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


def matrix(rank: int, size: int, cells: list[tuple[str, str]], steps: int) -> dict[Any, Any]:
    rows = rows_of(rank, size)
    return {
        cell: trained(*cell, rows, steps, weight_decay=0.0 if cell[0] == "entropy" else 0.01)
        for cell in cells
    }


def spawned(size: int, directory: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(rank, size, *arguments)`` gave on each rank of a gloo group."""
    directory.mkdir(exist_ok=True)
    mp.spawn(_entry, (size, str(directory), work, arguments), nprocs=size)
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
