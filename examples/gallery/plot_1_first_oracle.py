"""
Your first oracle
=================

A black box gives losses and gradients, and nothing else. After this example you will be able to put your
own code in its place, and to see how many of its calls SSO saves.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import targetopt as to

torch.manual_seed(0)
x = torch.randn(200, 5, dtype=torch.float64)
wanted = torch.tanh(x @ torch.randn(5, 2, dtype=torch.float64)).numpy()


# %%
# The black box
# -------------
#
# Imagine a simulator behind this function. It is given targets, one row for each example, and answers with
# one loss for each row and the gradient of that loss. It runs outside autograd.


def simulator(z):
    error = z.numpy() - wanted
    return np.sqrt(1 + error**2).sum(axis=1) - 2, error / np.sqrt(1 + error**2)


def network():
    torch.manual_seed(1)
    layers = torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)
    return torch.nn.Sequential(*layers).double()


# %%
# SSO
# ---
#
# ``TrustRegion`` needs gradients alone and has nothing to choose. Every call of ``step`` asks the simulator once.

model = network()
opt = to.SSO(model.parameters(), rule=to.TrustRegion(), inner=to.LBFGS(max_steps=20))
sso = [opt.step(lambda: model(x), to.GradientOracle(simulator)).loss for _ in range(40)]
print(f"SSO: loss {sso[-1]:.2g} after {opt.totals.oracle_calls} oracle calls")

# %%
# Adam, with the best of three step sizes
# ---------------------------------------
#
# Adam takes one step for each answer.


def adam(lr):
    model = network()
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(40):
        z = model(x)
        values, gradients = simulator(z.detach())
        losses.append(float(values.mean()))
        opt.zero_grad()
        z.backward(torch.from_numpy(gradients) / len(x))
        opt.step()
    return losses


best = min((adam(lr) for lr in (0.003, 0.01, 0.03)), key=lambda losses: losses[-1])
print(f"Adam: loss {best[-1]:.2g} after 40 oracle calls")

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.semilogy(sso, label="SSO, TrustRegion")
ax.semilogy(best, label="Adam, best of three step sizes")
ax.set(xlabel="oracle calls", ylabel="loss")
ax.legend()
plt.show()
