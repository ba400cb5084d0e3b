"""Nothing chosen against the paper's theoretical step: the table of docs/choosing.md.

    python benchmarks/defaults.py FOLDER     # with ijcnn1.tr.bz2 and mushrooms.bz2 in it

Rows are scaled to unit length. Losses are over all data, at the end.
"""

from __future__ import annotations

import bz2
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_svmlight_file

import targetopt as to

BATCH = 125
PROBLEMS = {"ijcnn1.tr.bz2": 2, "mushrooms.bz2": 4}


def labels(y: torch.Tensor) -> Any:
    return to.LossOracle(to.losses.Logistic(y))


def gradients(y: torch.Tensor) -> Any:
    loss = to.losses.Logistic(y)
    return to.GradientOracle(lambda z: (loss.value(z), loss.gradient(z)))


ARMS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Any]]] = {
    "GradientStep, 1/(2L), LBFGS(20)": (
        {"rule": to.GradientStep(), "inner": to.LBFGS(max_steps=20)},
        labels,
    ),
    "nothing chosen, labels": ({}, labels),
    "nothing chosen, gradients only": ({}, gradients),
}


def trained(
    x: torch.Tensor, y: torch.Tensor, epochs: int, options: dict[str, Any], oracle: Any
) -> tuple[float, float]:
    """The loss over all data at the end, and the inner steps per oracle call."""
    n = len(y)
    generator = torch.Generator().manual_seed(0)
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    opt = to.SSO([w], **options)
    for _ in range(epochs):
        for rows in torch.randperm(n, generator=generator)[: n // BATCH * BATCH].split(BATCH):
            opt.step(lambda rows=rows: x[rows] @ w, oracle(y[rows]))
    loss = to.losses.Logistic(y).value((x @ w).detach()).mean()
    return float(loss), opt.totals.inner_steps / opt.totals.oracle_calls


def main(folder: Path) -> None:
    for name, epochs in PROBLEMS.items():
        X, y = load_svmlight_file(io.BytesIO(bz2.decompress((folder / name).read_bytes())))
        dense = np.asarray(X.todense())
        dense /= np.linalg.norm(dense, axis=1, keepdims=True) + 1e-12
        x, signs = torch.tensor(dense), torch.tensor(np.where(y == y.max(), 1.0, -1.0))
        for arm, (options, oracle) in ARMS.items():
            loss, steps = trained(x, signs, epochs, options, oracle)
            print(
                f"{name:16} {epochs} epochs  {arm:34} loss {loss:.3g}  {steps:.1f} inner steps per call"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
