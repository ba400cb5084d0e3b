"""A film of a beam as it forms: SSO, L-BFGS and Adam at equal numbers of solves, from the same network.

Every picture shows the best beam that each method has found with so many calls of the finite element
solver, and its compliance. SSO has nothing chosen for this problem; Adam has the best of seven step sizes and L-BFGS
(strong Wolfe) the best of five first steps, in hindsight. The half MBB beam of 60 × 20 squares is drawn whole.

Run it with ``python examples/beam_film.py beam.gif`` (a minute or two).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.problems.physics.oracle import SolverProblem

CALLS, SCALE, SEED = 40, 4, 0
Found = list[tuple[float, NDArray[np.float64]]]
"""The compliance of every beam that the solver was asked about, and the beam."""


class Watched:
    """The solver, gradients only, with everything it was asked; no more than CALLS questions."""

    def __init__(self, problem: SolverProblem) -> None:
        self.problem = problem
        self.found: Found = []

    def query(self, z: torch.Tensor) -> to.TargetPoint:
        if len(self.found) == CALLS:
            raise StopIteration
        value, gradient, _ = self.problem.solver(z.numpy())
        self.found.append((value, z.numpy().copy()))
        return to.ScalarOracle(lambda _: (value, gradient)).query(z)


def with_sso(problem: SolverProblem) -> Found:
    net, oracle = problem.model(SEED), Watched(problem)
    opt = to.SSO(net.parameters())
    for _ in range(CALLS):
        opt.step(problem.forward(net), oracle)
    return oracle.found


def with_torch(
    problem: SolverProblem, make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
) -> Found:
    net, oracle = problem.model(SEED), Watched(problem)
    opt, forward = make(list(net.parameters())), problem.forward(net)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        z = forward()
        point = oracle.query(z.detach())
        z.backward(point.gradients / len(z))
        return point.loss

    try:
        while len(oracle.found) < CALLS:
            opt.step(closure)
    except StopIteration:
        pass
    return oracle.found


def lowest(runs: list[Found]) -> Found:
    return min(runs, key=lambda run: min(value for value, _ in run))


def compared(problem: SolverProblem) -> dict[str, Found]:
    """The best run of every method."""
    wolfe = {"max_iter": CALLS, "line_search_fn": "strong_wolfe"}
    return {
        "SSO, nothing chosen": with_sso(problem),
        "L-BFGS, best of 5": lowest(
            [
                with_torch(problem, lambda p, lr=lr: torch.optim.LBFGS(p, lr, **wolfe))
                for lr in (0.03, 0.1, 0.3, 1.0, 3.0)
            ]
        ),
        "Adam, best of 7": lowest(
            [
                with_torch(problem, lambda p, lr=lr: torch.optim.Adam(p, lr))
                for lr in (3e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 1e-1)
            ]
        ),
    }


def picture(problem: SolverProblem, runs: dict[str, Found], calls: int) -> Image.Image:
    """What each method has after so many solves."""
    columns, rows = problem.shape
    width, height, line = 2 * columns * SCALE, rows * SCALE, 22
    frame = Image.new("L", (width + 16, len(runs) * (height + line + 10) + line + 8), 255)
    draw, font = ImageDraw.Draw(frame), ImageFont.load_default(14)
    draw.text((8, 4), f"after {calls} solves", fill=0, font=font)
    for number, (name, run) in enumerate(runs.items()):
        value, densities = min(run[:calls], key=lambda each: each[0])
        half = densities.reshape(columns, rows).T
        whole = np.concatenate([half[:, ::-1], half], axis=1)
        beam = Image.fromarray(np.uint8(255 * (1 - whole))).resize((width, height), Image.NEAREST)
        top = line + 8 + number * (height + line + 10)
        draw.text((8, top), name, fill=0, font=font)
        label = f"compliance {value:.0f}"
        draw.text((width + 8 - draw.textlength(label, font=font), top), label, fill=0, font=font)
        frame.paste(beam, (8, top + line))
        draw.rectangle((7, top + line - 1, width + 8, top + line + height), outline=170)
    return frame.point(lambda grey: 17 * (grey // 17))  # sixteen greys make a small file


def main(out: str = "beam.gif", size: str = "quick") -> dict[str, float]:
    """Write the film; the best compliance of every method."""
    torch.set_num_threads(1)
    problem = problems.get("mbb-beam", size=size)
    assert isinstance(problem, SolverProblem)
    runs = compared(problem)
    frames = [picture(problem, runs, calls) for calls in range(1, CALLS + 1)]
    durations = [250] * (CALLS - 1) + [3000]
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=durations, loop=0)
    best = {name: min(value for value, _ in run) for name, run in runs.items()}
    for name, value in best.items():
        print(f"{name:22s} {value:7.1f}")
    print(f"{Path(out)}: {Path(out).stat().st_size / 1e3:.0f} kB")
    return best


if __name__ == "__main__":
    main(*sys.argv[1:])
