"""
Imitating an expert
===================

A learner drives a simulated hopper, and an expert says after each round what it would have done. After this example
you will be able to train a policy from such answers, and to see what a round and a question to the expert bring.
"""

import matplotlib.pyplot as plt
import torch

import targetopt as to

# %%
# One round is one oracle call
# ----------------------------
#
# In every round the learner visits 250 states, the expert gives its action in each of them, and the learner takes one
# step of SSO: a hundred cheap steps of Adam on a surrogate that the answer gave. ``std=0.2`` and ``lr=0.04`` belong
# together, because the smoothness of the loss is L = 1/std², and ``lr`` is 1/L here. At this ``lr`` the
# surrogate is the loss of the gathered states itself.

settings = {
    "env": "Hopper-v5",
    "expert": "ppo",
    "std": 0.2,
    "behaviour": "online",  # the paper's way: the learner drives, and
    "data": "round",  # the states of a round are forgotten after it
    "rounds": 8,
    "states_per_round": 250,
    "held_out": 300,
    "evaluate_every": 0,
    "evaluation_episodes": 1,
    "progress": False,
}
sso = to.imitation.train(lr=0.04, **settings)

# %%
# Rivals
# ------
#
# Adam with one step for each answer is the usual way. Adam with a hundred steps for each answer is the honest
# control: it does with the same answers what SSO does, without a surrogate.

once = to.imitation.train(optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), **settings)
often = to.imitation.train(optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), steps=100, **settings)
print(f"the expert was asked {sso.questions['labels']} questions for labels in each run")

# %%
# The loss on states that the expert visits
# -----------------------------------------
#
# At this ``lr`` the surrogate is the loss itself, so SSO and the control take the same steps, and their lines lie on
# each other. With eight short rounds all lines are still rough; at the end a hundred steps for each answer are ahead of
# one. If labels are what you buy, you need no surrogate; it is for oracles that sell gradients alone.

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, result in {
    "SSO": sso,
    "Adam, one step a round": once,
    "Adam, 100 steps a round": often,
}.items():
    ax.semilogy(result.columns()["held_out_loss"], label=name)
ax.set(xlabel="rounds", ylabel="held-out loss")
ax.legend()
plt.show()
