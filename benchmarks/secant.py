"""What the secant metric with 40 pairs adds to an inner step, on 100 000 targets and on fewer."""

from __future__ import annotations

import torch

import targetopt as to
from benchmarks.harness import in_turns, one_thread, save, table, verdict
from targetopt.divergence import SquaredEuclidean
from targetopt.inner.objective import Objective
from targetopt.lab.problems.base import seeded
from targetopt.lab.problems.physics.fields import Fourier
from targetopt.rules.secant import LowRankQuadratic
from targetopt.surrogate import Surrogate
from targetopt.types import TargetPoint

PAIRS = 40
STEPS = 4
GRIDS = {1_200: (60, 20), 10_000: (200, 50), 100_000: (500, 200)}
LIMIT = 1.1


def surrogates(z: torch.Tensor) -> dict[str, Surrogate]:
    """The same gradient with B = I, and with a metric from 40 pairs of a loss with curvatures from 1 to 100."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    point = TargetPoint(z, torch.ones(len(z), dtype=z.dtype), gradient)
    curvature = torch.linspace(1.0, 100.0, len(z), dtype=z.dtype)
    secant, state = to.Secant(pairs=PAIRS), {}
    for _ in range(PAIRS):
        step = torch.randn(z.shape, generator=generator, dtype=z.dtype)
        state = secant.remember(state, step, curvature * step)
    metric = secant.metric(state, z)
    return {
        "B = I": SquaredEuclidean().surrogate(point, 0.01),
        f"{PAIRS} pairs": LowRankQuadratic(z, gradient, metric, point.loss),
    }


def inner_steps(targets: int) -> dict[str, float]:
    """CPU seconds of an L-BFGS step on a neural field of so many cells, with both metrics."""
    field = seeded(0, lambda: Fourier(GRIDS[targets]))
    begin = [p.detach().clone() for p in field.parameters()]
    solver = to.LBFGS(max_steps=STEPS)

    def minimise(surrogate: Surrogate) -> None:
        with torch.no_grad():
            for p, value in zip(field.parameters(), begin, strict=True):
                p.copy_(value)
            found = solver.minimise(Objective(field, list(field.parameters()), surrogate), {})
        assert found.steps == STEPS

    made = surrogates(field().detach())
    calls = {name: lambda s=s: minimise(s) for name, s in made.items()}
    return {name: took / STEPS for name, took in in_turns(calls, rounds=5).items()}


def main() -> None:
    one_thread()
    rows = []
    for targets in GRIDS:
        took = inner_steps(targets)
        plain, metric = took.values()
        rows.append({"targets": targets, **took, "ratio": metric / plain})
    save("secant", {"model": "Fourier features, 64-64-64-1, float64", "inner steps": rows})
    table(
        ("targets", *list(rows[0])[1:3], "ratio", ""),
        [
            (
                r["targets"],
                *(f"{1e3 * float(r[name]):.3g} ms" for name in list(r)[1:3]),
                f"{r['ratio']:.3f}",
                verdict(float(r["ratio"]), LIMIT) if r["targets"] == 100_000 else "",
            )
            for r in rows
        ],
    )
