"""
Choosing a rule
===============

A rule turns an answer of the oracle into a surrogate. Which rule is best depends on what the answer reveals.
After this example you will be able to tell which rule fits your oracle, and to ask ``to.SSO`` what it chose.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import targetopt as to

digits = load_digits()
x = torch.tensor(digits.data / 16.0)
y = torch.tensor(digits.target)


def network():
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 24), torch.nn.Tanh(), torch.nn.Linear(24, 10)
    return torch.nn.Sequential(*layers).double()


# %%
# Two oracles with the same loss
# ------------------------------
#
# The first one has the labels, and it says so: it reveals the loss itself. The second one is a black box that gives
# losses and gradients. Both are asked about all images in every step.

labels = to.LossOracle(to.losses.CrossEntropy(y))


def black_box(z):
    exact = to.losses.CrossEntropy(y)
    return exact.value(z), exact.gradient(z)


gradients = to.GradientOracle(black_box)

# %%
# Nothing chosen
# --------------
#
# ``to.SSO(params)`` looks at the first answer and takes the rule that uses all of it. ``explain()`` says which one that
# is, and why.

chosen = {}
for name, oracle in (("labels", labels), ("gradients only", gradients)):
    model = network()
    opt = to.SSO(model.parameters())
    chosen[name] = [opt.step(lambda model=model: model(x), oracle).loss for _ in range(10)]
    print(f"With {name}:")
    opt.explain()

# %%
# Rules by hand
# -------------
#
# ``GradientStep`` is the rule of the paper's theorems. It takes η = 1/(2L) and needs the smoothness L of the loss,
# which every loss in ``to.losses`` knows. ``Newton`` asks for curvature, which labels reveal and a black box does not.

by_hand = {
    "GradientStep": (to.GradientStep(), labels),
    "Newton": (to.Newton(), labels),
    "TrustRegion": (to.TrustRegion(), gradients),
}
for name, (rule, oracle) in by_hand.items():
    model = network()
    opt = to.SSO(model.parameters(), rule=rule, inner=to.LBFGS(max_steps=20))
    chosen[name] = [opt.step(lambda model=model: model(x), oracle).loss for _ in range(10)]

try:
    model = network()
    to.SSO(model.parameters(), rule=to.Newton()).step(lambda: model(x), gradients)
except to.MissingCapability as error:
    print(f"Newton on the black box: {error}")

# %%
# What each rule made of ten answers
# -------------------------------------
#
# Every line has paid for the same number of answers. Who has labels has bought the loss itself, and the line "labels"
# takes as many steps on it as it likes. The lines "gradients only" and "TrustRegion" show what gradients are worth.

figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, losses in chosen.items():
    ax.semilogy(np.arange(len(losses)), losses, label=name)
    ax.annotate(
        name, (len(losses) - 1, losses[-1]), xytext=(4, 0), textcoords="offset points", fontsize=8
    )
ax.set(xlabel="oracle calls", ylabel="cross-entropy", xlim=(0, 12))
plt.show()
