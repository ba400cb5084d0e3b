"""
Learning to decide
==================

A network predicts the costs of roads, and a solver finds the shortest path for the prediction. What matters is how good
the paths are. After this example you will be able to train predictions for the decisions that follow from them.
"""

import matplotlib.pyplot as plt
import torch

import targetopt as to
from targetopt.lab import problems

# %%
# The oracle solves a shortest path for every instance
# ----------------------------------------------------
#
# The loss is SPO+ of Elmachtoub and Grigas, which is convex and has kinks, and bounds the regret of the decisions. Its
# gradient needs one solved path for every instance, so every call of the oracle is a batch of solves.

problem = problems.get("shortest-path", size="smoke")
CALLS = 15


def trained(make, step):
    """The loss and the regret before the first and after every call, and the paths taken in the end."""
    model = problem.model(0)
    opt = make(model.parameters())
    measured = [problem.metrics(model)]
    for _ in range(CALLS):
        step(opt, model)
        measured.append(problem.metrics(model))
    curves = {name: [each[name] for each in measured] for name in ("loss", "regret")}
    return {**curves, "taken": problem.taken(model)}


def sso_step(opt, model):
    opt.step(problem.forward(model), problem.oracle())


def torch_step(opt, model):
    z = problem.forward(model)()
    point = problem.oracle().query(z.detach())
    opt.zero_grad()
    z.backward(point.gradients / len(z))
    opt.step()


# %%
# Two rules of SSO, and Adam
# --------------------------
#
# ``Bundle`` keeps the planes of earlier answers, which suits losses with kinks. Adam has the best of three step sizes.

found = {
    "SSO, nothing chosen": trained(to.SSO, sso_step),
    "SSO, Bundle": trained(lambda p: to.SSO(p, rule=to.Bundle()), sso_step),
    "Adam, best of three step sizes": min(
        (
            trained(lambda p, lr=lr: torch.optim.Adam(p, lr), torch_step)
            for lr in (3e-3, 1e-2, 3e-2)
        ),
        key=lambda run: run["regret"][-1],
    ),
}
for name, run in found.items():
    print(f"{name}: loss {run['loss'][-1]:.3g}, held-out paths {run['regret'][-1]:.1%} too dear")

# %%
# A lower loss is not a lower regret
# ----------------------------------
#
# This is a problem on which SSO does not win. The training loss is one thing, and the regret on instances that nobody
# has trained on is another: a method that minimises the loss faster can decide worse.

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for name, run in found.items():
    axes[0].plot(run["loss"], label=name)
    axes[1].plot(run["regret"])
axes[0].set(xlabel="oracle calls", ylabel="SPO+ loss, training")
axes[1].set(xlabel="oracle calls", ylabel="regret on held-out instances")
axes[0].legend()
plt.show()

# %%
# Routes chosen
# -------------
#
# The first three instances that nobody has trained on, from the north-west to the south-east. A grey road is the wider
# the dearer it is. Every line beside a road is a route that goes there; where they part, somebody pays too much. The
# titles say how much dearer than the cheapest the routes are, in the order of the legend.

solver, costs = problem.data.solver, problem.data.held_out_costs
routes = {"cheapest": problem.held_out_best, **{name: run["taken"] for name, run in found.items()}}
figure, axes = plt.subplots(1, 3, figsize=(8, 3.2), layout="constrained")
for instance, ax in enumerate(axes):
    cost = costs[instance]
    for place, (name, taken) in enumerate(routes.items()):
        aside = 0.07 * (place - 1.5)
        label = name
        for arc, (tail, head) in enumerate(solver.arcs):
            (south, east), (further, on) = (divmod(k, solver.columns) for k in (tail, head))
            if place == 0:
                width = 1 + 5 * cost[arc] / cost.max()
                ax.plot([east, on], [-south, -further], color="0.85", lw=width, zorder=0)
            if taken[instance, arc]:
                x, y = [east + aside, on + aside], [-south - aside, -further - aside]
                ax.plot(x, y, color="k" if place == 0 else f"C{place - 1}", label=label)
                label = None
    least = cost @ problem.held_out_best[instance]
    dearer = [cost @ run["taken"][instance] / least - 1 for run in found.values()]
    said = ", ".join(f"{share:+.0%}" for share in dearer)
    ax.set(title=said, aspect="equal", xticks=[], yticks=[])
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()
