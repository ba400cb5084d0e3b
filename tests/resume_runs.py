"""Training runs that write checkpoints and may be killed: what `test_resume` starts in processes.

Every call of user code (forward, oracle, value) and every save is an *event*; a run told to die at
its k-th event sends itself SIGKILL there, inside the step.
"""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import targetopt as to
from core_parts import identical, optimiser, problem

STEPS = 4


class Events:
    def __init__(self, die_at: int | None = None) -> None:
        self.seen = 0
        self.die_at = die_at

    def __call__(self) -> None:
        self.seen += 1
        if self.seen == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


class EventfulOracle:
    def __init__(self, oracle: to.Oracle, event: Events) -> None:
        self.oracle = oracle
        self.event = event

    def query(self, z: Tensor) -> to.TargetPoint:
        self.event()
        point = self.oracle.query(z)

        def value(other: Tensor) -> Tensor:
            self.event()
            return point.value(other)

        return replace(point, value=value)


def save(
    path: Path, model: nn.Module, opt: to.SSO, event: Events | None = None, **more: Any
) -> None:
    half_written = path.with_suffix(".tmp")
    rng = torch.get_rng_state()
    torch.save(
        {"model": model.state_dict(), "opt": opt.state_dict(), "rng": rng, **more}, half_written
    )
    if event is not None:
        event()
    os.replace(half_written, path)


def load(path: Path, model: nn.Module, opt: to.SSO) -> dict[str, Any]:
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    torch.set_rng_state(saved["rng"])
    return saved


def run(rule: str, solver: str, path: Path, die_at: int | None = None) -> int:
    """Train to the end, from the checkpoint if there is one; the number of events."""
    fresh = not path.exists()
    # A resumed process builds another model first: all that matters must come from the file.
    p = problem(rule, solver, seed=0 if fresh else 1)
    opt = optimiser(p.model, rule, solver, weight_decay=1e-3)
    losses = [] if fresh else load(path, p.model, opt)["losses"]
    event = Events(die_at)
    for step in range(len(losses), STEPS):
        rows = p.index(step)

        def forward(rows: Tensor = rows) -> Tensor:
            event()
            return p.forward(rows)

        oracle, everything = EventfulOracle(p.oracle(rows), event), p.wanted_by(opt)
        report = opt.step(forward, oracle, index=rows, regularise_on=everything)
        losses = [*losses, [report.loss, report.eta, report.surrogate_decrease]]
        save(path, p.model, opt, event, losses=losses)
    return event.seen


class SpectralNet(nn.Module):
    """Dropout, BatchNorm and a spectral norm whose power iteration is far from converged."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(4, 16))
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x)).tanh()))[:, 0]


def spectral_run(seed: int) -> tuple[SpectralNet, to.SSO, Tensor]:
    torch.manual_seed(seed)
    model = SpectralNet().double()
    opt = to.SSO(model.parameters(), lr=0.7, rule=to.AdaGradNorm(), inner=to.Armijo(max_steps=5))
    x = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return model, opt, x


def answer(z: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (z - 1).square(), z - 1


def ask_and_leave(directory: Path) -> None:
    """Two steps, then a question that outlives the process."""
    model, opt, x = spectral_run(0)
    for _ in range(2):
        opt.step(lambda: model(x), to.GradientOracle(answer))
    query = opt.ask(lambda: model(x))
    save(directory / "asked.pt", model, opt)
    (directory / "query.pickle").write_bytes(pickle.dumps(query))


def tell_and_go_on(directory: Path) -> None:
    """The answer arrives in a new process, which then goes on for a step."""
    model, opt, x = spectral_run(1)
    load(directory / "asked.pt", model, opt)
    query = pickle.loads((directory / "query.pickle").read_bytes())
    opt.tell(query, lambda: model(x), *answer(query.targets))
    opt.step(lambda: model(x), to.GradientOracle(answer))
    save(directory / "told.pt", model, opt)


def same_files(a: Path, b: Path) -> bool:
    return identical(torch.load(a, weights_only=True), torch.load(b, weights_only=True))
