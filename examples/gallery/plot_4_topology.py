"""
A beam from a finite element solver
===================================

A small network draws a beam, and every call of the oracle is one finite element solve. After this example you
will be able to train a network through a solver that gives one number and its gradient, and nothing else.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import targetopt as to
from targetopt.lab.problems.physics.fields import Density, Fourier
from targetopt.lab.problems.physics.structures import Structure

CALLS = 25
beam = Structure(30, 10, "mbb", radius=1.5)
shape = (beam.nelx, beam.nely)

# %%
# Model, forward, oracle
# ----------------------
#
# The network gives a number for every square. ``Density`` filters these numbers and shifts them so that half of
# the squares are filled; this belongs to the forward, which is cheap. The solver says how much the beam gives way
# under its load (its compliance), and the gradient of that.

to_density = Density(shape, beam.kernel, 0.5)


def network():
    torch.manual_seed(0)
    return Fourier(shape)


def solver(density):
    solution = beam.solve(density.numpy())
    return solution.compliance, torch.from_numpy(solution.gradient)


# %%
# SSO with nothing chosen
# -----------------------
#
# ``ScalarOracle`` is the oracle for one loss of all targets together.

net = network()
opt = to.SSO(net.parameters())
oracle = to.ScalarOracle(solver)
sso = [opt.step(lambda: to_density(net()), oracle).loss for _ in range(CALLS)]
opt.rewind()  # to the best beam that the solver has confirmed
drawn = {f"SSO: {min(sso):.0f}": to_density(net()).detach().numpy()}

# %%
# Adam with the best of three step sizes
# --------------------------------------


def adam(lr):
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr)
    losses, best = [], None
    for _ in range(CALLS):
        density = to_density(net())
        loss, gradient = solver(density.detach())
        if loss < min(losses, default=np.inf):
            best = density.detach().numpy().copy()
        losses.append(loss)
        opt.zero_grad()
        density.backward(gradient)
        opt.step()
    return losses, best


losses, best = min((adam(lr) for lr in (3e-3, 1e-2, 3e-2)), key=lambda run: min(run[0]))
drawn[f"Adam, best of three: {min(losses):.0f}"] = best
reached = next((k for k, loss in enumerate(sso, 1) if loss <= min(losses)), None)
print(f"SSO was where Adam ended after {reached} of {CALLS} solves.")

# %%
# What the same number of solves made of the beam
# -----------------------------------------------
#
# A lower compliance is a stiffer beam. The picture shows half of it; the other half is its mirror image.

figure, axes = plt.subplot_mosaic(
    [["curve", "0"], ["curve", "1"]], figsize=(8, 3.2), layout="constrained"
)
axes["curve"].plot(np.minimum.accumulate(sso), label="SSO, nothing chosen")
axes["curve"].plot(np.minimum.accumulate(losses), label="Adam, best of three step sizes")
axes["curve"].set(xlabel="finite element solves", ylabel="compliance, best so far", yscale="log")
axes["curve"].legend()
for place, (title, density) in enumerate(drawn.items()):
    ax = axes[str(place)]
    ax.imshow(density.reshape(shape).T, cmap="gray_r", vmin=0, vmax=1)
    ax.set_title(title, fontsize=10)
    ax.set_axis_off()
plt.show()
