"""How Newton's curvature floor decides what it does on mini-batches (the table of docs/choosing.md).

python examples/newton_floor.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer

import targetopt as to


def main() -> None:
    data = load_breast_cancer()
    X = (data.data - data.data.mean(0)) / data.data.std(0)
    y = 2.0 * data.target - 1.0
    rules = {f"{floor:g}": to.Newton(floor=floor) for floor in (1e-4, 1e-3, 1e-2, 3e-2, 1e-1)}
    for batch_size in (64, None):
        for name, rule in {**rules, "GradientStep": to.GradientStep()}.items():
            losses = []
            for m in (1, 20, 100):
                inner = to.Armijo(max_steps=m)
                found = to.linear.fit(
                    X, y, rule=rule, inner=inner, batch_size=batch_size, epochs=40, seed=0
                )
                losses.append(float(np.logaddexp(0, -y * (X @ found.theta)).mean()))
            batch = "full batch" if batch_size is None else f"batch {batch_size}"
            print(f"{batch:11} {name:13} " + "  ".join(f"{loss:.3g}" for loss in losses))


if __name__ == "__main__":
    main()
