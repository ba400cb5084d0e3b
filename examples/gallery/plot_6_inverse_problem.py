"""
An inverse problem
==================

What conducts heat inside a body, if only temperatures at some points were measured? After this example you will be
able to fit a network to measurements through a solver of partial differential equations, and to stop in time.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.problems.physics.inversion import STOPPING_LEVEL

# %%
# The problem
# -----------
#
# A network gives the logarithm of the conductivity everywhere. The oracle solves for the temperatures that follow from
# it, and answers with the misfit to noisy measurements and its gradient: one factorisation, and two solves for each
# source of heat.

problem = problems.get("conductivity", size="smoke")
oracle = problem.oracle()

# %%
# Until the residuals are as large as the noise
# ---------------------------------------------
#
# Fitting the measurements better than their noise would fit the noise. The loss is scaled so that this happens at
# a known level (the discrepancy principle).

net = problem.model(0)
opt = to.SSO(net.parameters())
sso = []
while len(sso) < 30:
    found = problem.field(net)
    sso.append(opt.step(problem.forward(net), oracle).loss)
    if sso[-1] <= STOPPING_LEVEL:
        break
print(
    f"SSO: misfit {sso[-1]:.2f} after {len(sso)} oracle calls, the noise is at {STOPPING_LEVEL:.2f}"
)

# %%
# Adam gets as many calls, with the best of three step sizes
# ----------------------------------------------------------


def adam(lr):
    net = problem.model(0)
    opt = torch.optim.Adam(net.parameters(), lr)
    losses = []
    for _ in sso:
        z = problem.forward(net)()
        point = oracle.query(z.detach())
        losses.append(float(point.loss))
        opt.zero_grad()
        z.backward(point.gradients / len(z))
        opt.step()
    return losses, z.detach().numpy()


losses, other = min((adam(lr) for lr in (3e-3, 1e-2, 3e-2)), key=lambda run: run[0][-1])
print(f"Adam: misfit {losses[-1]:.2f} after {len(losses)} oracle calls")

figure, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
bound = float(np.abs(problem.truth).max())
for ax, (title, field) in zip(
    axes, {"true": problem.truth, "SSO": found, "Adam": other}.items(), strict=True
):
    values = np.asarray(field).reshape(problem.shape).T
    shown = ax.imshow(values, cmap="RdBu_r", vmin=-bound, vmax=bound, origin="lower")
    ax.set_title(
        f"{title}, {len(sso)} calls" if title != "true" else "true log-conductivity", fontsize=10
    )
    ax.set_axis_off()
figure.colorbar(shown, ax=axes, shrink=0.8)
plt.show()
