"""Runs on identical batches: {interpolating, noisy} × batch × m, for SSO, the loss itself, Adam, and Memory.

Where labels are bought, a batch's loss is known from then on, and m steps on it cost nothing: that is data echoing,
η = ∞. SSO uses the gradient at one point and keeps near that point. This study gives all of them the same batches in
the same order, the same m, and asks who ends lower. One batch is one oracle call.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.baselines.smoothness import linear_smoothness
from targetopt.inner import LBFGS, Armijo, GradientDescent, Stopping
from targetopt.lab import problems
from targetopt.lab.problems.linear import LinearProblem
from targetopt.lab.spec.lists import beyond
from targetopt.lab.store import provenance
from targetopt.lab.store.files import write_whole
from targetopt.linear import Batches, Run
from targetopt.linear.baselines import SLS, Adam
from targetopt.rules import Automatic, GradientStep, Memory, Proximal

SEEDS = (0, 1, 2)
TUNING_SEED = 1000
EPOCHS = 3
STEPS = (1, 10, 100)
FILE = "control.json"


@dataclass(frozen=True)
class Case:
    """A problem of the study.

    Attributes:
        name: what is typed, and the key in the results.
        title: what the figure calls it.
        noisy: whether no model fits every example.
        problem: its name and options.
        batches: the sizes of batches.
        steps: the m that are tried.
        wide: whether it has too many features for `Memory` to factor their Gram matrix.
    """

    name: str
    title: str
    noisy: bool
    problem: Mapping[str, Any]
    batches: Sequence[int] = (25, 125, 625)
    steps: Sequence[int] = STEPS
    wide: bool = False


RCV1 = {"name": "rcv1-v2-subset", "weight_decay": 1 / 20242}
CASES = (
    Case("squares-exact", "least squares, no noise", False, {"name": "quadratic"}, (25, 125)),
    Case("squares-noisy", "least squares, noise 1", True, {"name": "quadratic", "noise": 1.0}, (25, 125)),
    Case("interpolation", "interpolation, 200 × 1000", False, {"name": "interpolation"}, (25, 100)),
    Case("mushrooms", "mushrooms", False, {"name": "mushrooms"}),
    Case("ijcnn1", "ijcnn1", True, {"name": "ijcnn1"}, (125, 625)),
    Case("rcv1", "RCV1-v2 subset, λ = 1/n", True, RCV1, (625,), (1, 10), wide=True),
    Case("rcv1-bare", "RCV1-v2 subset", False, {"name": "rcv1-v2-subset"}, (625,), (1, 10), wide=True),
)  # fmt: skip


Made = tuple[dict[str, Any], int]
"""The arguments of `linear.Run`, and how often a batch is echoed."""


@dataclass(frozen=True)
class Arm:
    """A method on linear problems.

    Attributes:
        label: what the figure calls it.
        make: the method on a problem for a batch size, m and a setting.
        grid: the settings that are tried first, each a constant factor above the one before; none if left out.
        by_steps: whether m matters to it.
        compiled: whether its steps are compiled; others take part at m ≤ 10 only.
        gradient_only: whether it needs no more of an answer than gradients.
    """

    label: str
    make: Callable[[Bench, int, int, float], Made]
    grid: tuple[float, ...] = ()
    by_steps: bool = True
    compiled: bool = True
    gradient_only: bool = False


def _sso(share: float) -> Callable[[Bench, int, int, float], Made]:
    def make(bench: Bench, batch: int, m: int, _: float) -> Made:
        rule, inner = GradientStep(), Armijo(max_steps=m)
        return {"rule": rule, "inner": inner, "lr": share / bench.smoothness}, 1

    return make


def _nothing_chosen(bench: Bench, batch: int, m: int, _: float) -> Made:
    return {"rule": Automatic(), "inner": LBFGS("auto", stopping=Stopping(price=100.0))}, 1


def _proximal(bench: Bench, batch: int, m: int, eta: float) -> Made:
    return {"rule": Proximal(), "inner": Armijo(max_steps=m), "lr": eta / bench.smoothness}, 1


def _memory(bench: Bench, batch: int, m: int, _: float) -> Made:
    """Each surrogate solved exactly; with many features one gradient step, which is SAGA in parameter space."""
    if not bench.case.wide:
        return {"rule": Memory()}, 1
    inner = GradientDescent(bench.smooth_step(batch), max_steps=1)
    return {"rule": Memory(), "inner": inner, "lr": 1.0}, 1


DECADES = tuple(10.0**k for k in range(-4, 3))
ARMS = (
    Arm("SSO, η = 1/(8L)", _sso(1 / 8), gradient_only=True),
    Arm("SSO, η = 1/(2L)", _sso(1 / 2), gradient_only=True),
    Arm("SSO, η = 1/L", _sso(1.0), gradient_only=True),
    Arm("SSO, nothing chosen", _nothing_chosen, by_steps=False, compiled=False),
    Arm("Proximal, η tuned", _proximal, tuple(8.0**k for k in range(-1, 4)), compiled=False),
    Arm("echoing, η = ∞ (SLS × m)", lambda _, b, m, __: ({"baseline": SLS(), "lr": 1.0}, m)),
    Arm("Adam × m, tuned", lambda _, b, m, lr: ({"baseline": Adam(), "lr": lr}, m), DECADES),
    Arm(
        "Adam, one step a batch, tuned",
        lambda _, b, m, lr: ({"baseline": Adam(), "lr": lr}, 1),
        DECADES,
        by_steps=False,
        gradient_only=True,
    ),
    Arm("Memory", _memory, by_steps=False, gradient_only=True),
)


@dataclass
class Cell:
    """One arm on one problem, batch size and m.

    Attributes:
        chosen: its setting, chosen on a seed that is not shown; None if it has none.
        tried: every setting and the gap that it came to on that seed.
        gaps: for every shown seed, what is left at the end of the way from the start to the optimum.
        seconds: processor time of the shown runs.
    """

    case: str
    batch: int
    m: int
    arm: str
    chosen: float | None = None
    tried: dict[str, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """The geometric mean of the gaps; at least rounding."""
        return float(np.exp(np.mean(np.log(np.maximum(self.gaps, 1e-16)))))


class Bench:
    """A case with its data and its optimum at hand."""

    def __init__(self, case: Case) -> None:
        self.case = case
        found = problems.get(**case.problem)
        assert isinstance(found, LinearProblem)
        self.problem = found
        reference = found.reference()
        assert reference is not None
        self.optimum = reference.value
        smoothness = found.target_smoothness
        assert smoothness is not None
        self.smoothness = smoothness
        self.begin = found.metrics_at(np.zeros(found.design.shape[1]))["loss"]

    def smooth_step(self, batch: int) -> float:
        """1/(ℒ + λ + 2σL_max) with ℒ the expected smoothness of a batch: twice what the proof of SAGA asks for."""
        n, L = self.problem.n, self.smoothness
        sigma = (n - batch) / (batch * (n - 1))
        largest = L * float(self.problem.design.row_norms_squared().max())
        expected = (1 - sigma) * linear_smoothness(self.problem.linear.X, L) + sigma * largest
        return 1.0 / (expected + self.problem.weight_decay + 2.0 * sigma * largest)

    def gap(self, arm: Arm, batch: int, m: int, setting: float, seed: int) -> float:
        """What is left after the epochs; infinite if the run left the finite numbers."""
        method, echo = arm.make(self, batch, m, setting)
        problem = self.problem
        run = Run(
            problem.design,
            problem.linear.y,
            loss=problem.linear.loss,
            batch_size=batch,
            seed=seed,
            weight_decay=problem.weight_decay,
            **method,
        )
        run.batches = Batches(run.n, batch, seed, echo=echo)
        if not run.advance(EPOCHS * run.batches.steps_per_epoch):
            return math.inf
        loss = float(run.measure()["loss"])
        return (
            (loss - self.optimum) / (self.begin - self.optimum) if math.isfinite(loss) else math.inf
        )

    def cell(self, arm: Arm, batch: int, m: int) -> Cell:
        """Tuned if it has a setting, then the seeds that are shown."""
        made = Cell(self.case.name, batch, m, arm.label)
        began = time.process_time()
        if arm.grid:
            made.chosen, made.tried = self._tuned(arm, batch, m)
        setting = math.nan if made.chosen is None else made.chosen
        made.gaps = [self.gap(arm, batch, m, setting, seed) for seed in SEEDS]
        made.seconds = time.process_time() - began
        return made

    def _tuned(self, arm: Arm, batch: int, m: int) -> tuple[float, dict[str, float]]:
        """The best of a list that grows until its best lies inside, on a seed that is not shown."""
        values = list(arm.grid)
        found: dict[float, float] = {}
        while True:
            for value in values:
                if value not in found:
                    found[value] = self.gap(arm, batch, m, value, TUNING_SEED)
            best = min(values, key=lambda value: found[value])
            further = beyond(values, best)
            if len(values) >= len(arm.grid) + 6 or further is None:
                return best, {f"{value:.3g}": found[value] for value in values}
            values = sorted([*values, further])


def run(folder: Path, *, names: Sequence[str] = (), tell: Callable[[str], None] = print) -> None:
    """Do what is missing in ``folder/control.json``, which is written after every cell."""
    cells = read(folder)
    known = {(c.case, c.batch, c.m, c.arm) for c in cells}
    for case in CASES:
        if names and case.name not in names:
            continue
        bench: Bench | None = None
        for batch in case.batches:
            for arm in ARMS:
                for m in case.steps if arm.by_steps else (1,):
                    key = (case.name, batch, m, arm.label)
                    if key in known or (not arm.compiled and m > 10):
                        continue
                    bench = bench or Bench(case)
                    cells.append(bench.cell(arm, batch, m))
                    write(folder, cells)
                    tell(f"{case.title}, batch {batch}, m = {m}, {arm.label}: {cells[-1].gap:.2g}")


def write(folder: Path, cells: Sequence[Cell]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamped = {
        **provenance.machine(),
        "commit": provenance.commit(),
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "tuning_seed": TUNING_SEED,
        "cells": [_plain(asdict(cell)) for cell in cells],
    }
    write_whole(folder / FILE, json.dumps(stamped, indent=1, allow_nan=False).encode())


def read(folder: Path) -> list[Cell]:
    path = folder / FILE
    if not path.exists():
        return []
    written = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(**_restored(each)) for each in written]


def _plain(value: Any) -> Any:
    """JSON knows no infinity: a gap that diverged is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _restored(cell: dict[str, Any]) -> dict[str, Any]:
    gaps = [math.inf if gap is None else gap for gap in cell["gaps"]]
    tried = {k: math.inf if v is None else v for k, v in cell["tried"].items()}
    return {**cell, "gaps": gaps, "tried": tried}
