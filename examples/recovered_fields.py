"""Two fields that nobody can see, recovered from measurements around and in them.

A network gives a conductivity (or a wave speed), a solver says how badly the temperatures (or the waves) that
follow from it fit what was measured, and with which gradient. A fit is over when its residuals are as large as
the noise (discrepancy principle). SSO runs until then; Adam, with the best of five step sizes in hindsight, gets
as many solves.

Run it with ``python examples/recovered_fields.py fields.png`` (a minute or two). It draws the true fields and
what both methods made of the same number of solves.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from numpy.typing import NDArray

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.problems.physics.inversion import STOPPING_LEVEL
from targetopt.lab.problems.physics.oracle import SolverProblem

MOST, SEED = 40, 0
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


class Fit(NamedTuple):
    """The best field that was asked about: its solves, misfit, error and logarithms."""

    solves: int
    misfit: float
    error: float
    targets: NDArray[np.float64]


def measured(problem: SolverProblem, asked: list[tuple[float, NDArray[np.float64]]]) -> Fit:
    misfit, targets = min(asked, key=lambda each: each[0])
    return Fit(len(asked), misfit, problem.measure(targets)["error"], targets)


def with_sso(problem: SolverProblem) -> Fit:
    net, oracle = problem.model(SEED), problem.oracle()
    opt = to.SSO(net.parameters())
    asked = []
    while len(asked) < MOST:
        before = problem.field(net)
        asked.append((opt.step(problem.forward(net), oracle).loss, before))
        if asked[-1][0] <= STOPPING_LEVEL:
            break
    return measured(problem, asked)


def with_adam(problem: SolverProblem, lr: float, solves: int) -> Fit:
    net, oracle = problem.model(SEED), problem.oracle()
    opt = torch.optim.Adam(net.parameters(), lr)
    asked = []
    for _ in range(solves):
        z = problem.forward(net)()
        point = oracle.query(z.detach())
        asked.append((float(point.loss), z.detach().numpy().copy()))
        opt.zero_grad()
        z.backward(point.gradients / len(z))
        opt.step()
    return measured(problem, asked)


def main(out: str = "fields.png", size: str = "quick") -> dict[str, tuple[Fit, Fit]]:
    """Draw truth, SSO's and Adam's field of both problems; the fits."""
    torch.set_num_threads(1)
    mpl.use("agg")
    figure, axes = plt.subplots(2, 3, figsize=(9.0, 6.2), layout="constrained")
    found = {}
    for row, (name, quantity) in zip(
        axes, [("conductivity", "conductivity"), ("waveform", "squared slowness")], strict=True
    ):
        problem = problems.get(name, size=size)
        assert isinstance(problem, SolverProblem)
        sso = with_sso(problem)
        adam = min((with_adam(problem, lr, sso.solves) for lr in RATES), key=lambda fit: fit.misfit)
        found[name] = (sso, adam)
        truth = problem.truth
        bound = float(np.abs(truth).max())
        for axis, (title, targets) in zip(
            row,
            [
                (f"{quantity}, true", truth),
                (f"SSO, {sso.solves} solves", sso.targets),
                (f"Adam, {sso.solves} solves", adam.targets),
            ],
            strict=True,
        ):
            shown = axis.imshow(
                targets.reshape(problem.shape).T,
                cmap="RdBu_r",
                vmin=-bound,
                vmax=bound,
                origin="lower",
                extent=(0, 1, 0, 1),
            )
            axis.set_title(title, fontsize=11)
            axis.set_xticks([])
            axis.set_yticks([])
        for axis, fit in zip(row[1:], (sso, adam), strict=True):
            axis.set_xlabel(
                f"residuals {np.sqrt(2 * fit.misfit):.2g} × noise, error {fit.error:.0%}"
            )
        bar = figure.colorbar(shown, ax=row.tolist(), shrink=0.8, ticks=[-bound, 0, bound])
        bar.ax.set_yticklabels([f"{np.exp(tick):.2f}" for tick in (-bound, 0, bound)])
    figure.savefig(out, dpi=80)
    plt.close(figure)
    for name, fits in found.items():
        for method, fit in zip(("SSO", "Adam"), fits, strict=True):
            print(
                f"{name:14s} {method:5s} {fit.solves:3d} solves, misfit {fit.misfit:.3f}, error {fit.error:.3f}"
            )
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
