"""
What an oracle call must cost
=============================

SSO trades oracle calls for inner steps. After this example you will be able to compute from which price of
an oracle call on that trade pays.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import targetopt as to

data = load_breast_cancer()
x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0))
y = torch.tensor(2.0 * data.target - 1.0, dtype=torch.float64)
oracle = to.LossOracle(to.losses.Logistic(y))


def spent(max_steps, level=0.08):
    """Oracle calls and inner steps until the loss is at the level."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 1), torch.nn.Flatten(0)).double()
    opt = to.SSO(model.parameters(), rule=to.GradientStep(), inner=to.Armijo(max_steps=max_steps))
    while opt.step(lambda: model(x), oracle).loss > level:
        pass
    return opt.totals.oracle_calls, opt.totals.inner_steps


# %%
# More inner steps, fewer calls
# -----------------------------

counts = {m: spent(m) for m in (1, 5, 20)}
for m, (calls, inner) in counts.items():
    print(f"m = {m:>2}: {calls:>4} oracle calls, {inner:>4} inner steps")

# %%
# The price decides
# -----------------
#
# With τ for the price of an oracle call in inner steps, a run costs ``calls * τ + inner``. The lowest line is
# the best choice at that price; at the left, where a call costs as much as an inner step, many inner steps
# are wasted.

prices = np.logspace(0, 4, 50)
figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for m, (calls, inner) in counts.items():
    ax.loglog(prices, calls * prices + inner, label=f"m = {m}")
ax.set(xlabel="τ, the price of an oracle call in inner steps", ylabel="cost of the run")
ax.legend()
plt.show()
