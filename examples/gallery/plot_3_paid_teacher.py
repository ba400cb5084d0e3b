"""
A teacher that is paid for
==========================

A teacher labels images for money. After this example you will be able to keep a ledger of what was bought, to set a
budget that is never exceeded, and to go on after a crash without paying for anything twice.
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import targetopt as to

digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
seen, asked_about, held_out = images[:600], images[600:1200], images[1200:]
forest = ExtraTreesClassifier(60, random_state=0).fit(seen.numpy(), digits.target[:600])


# %%
# The teacher, and what it costs
# ------------------------------
#
# The function below stands for a service: it gets some images and answers with the probabilities of ten digits.
# ``RemoteOracle`` splits a question into requests, holds their price in the budget, and writes every answer to the
# ledger before it is used. The cache keeps answers by image, for other questions and other runs. An image costs a
# tenth of a cent here.


def teacher(pictures):
    return forest.predict_proba(pictures.numpy())


folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "answers.ledger"


@contextmanager
def paid_oracle(budget):
    kept = {"ledger": to.Ledger(path), "cache": to.Cache(path.with_suffix(".cache"))}
    answers = to.teachers.from_probabilities()
    with (
        kept["ledger"],
        to.RemoteOracle(
            teacher, answers=answers, price=0.001, batch=50, budget=budget, **kept
        ) as oracle,
    ):
        yield oracle


def student():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def agreement(model):
    with torch.no_grad():
        said = model(held_out).argmax(1)
    return float((said == torch.tensor(teacher(held_out)).argmax(1)).float().mean())


# %%
# Buying until the money is gone
# ------------------------------
#
# Every step asks about 100 images that were not asked about before. The budget allows 35 cents, so the fourth
# step does not fit. It is refused as a whole, before anything of it is sent, and the model stays as it was.

model = student()
opt = to.SSO(model.parameters())
spent, agreed = [0.0], [agreement(model)]
budget = to.Budget(money=0.35)
with paid_oracle(budget) as oracle:
    for start in range(0, 600, 100):
        batch = asked_about[start : start + 100]
        try:
            opt.step(lambda batch=batch: model(batch), oracle.about(batch))
        except to.BudgetExceeded as refusal:
            print(f"step {start // 100 + 1} was refused: {refusal}")
            break
        spent.append(float(budget.spent.money))
        agreed.append(agreement(model))
print(f"bought {spent[-1]:.2f}, agreement with the teacher {agreed[-1]:.0%}")

# %%
# After a crash
# -------------
#
# Suppose the process died here. A new process opens the same ledger, begins with the same student, and asks the same
# questions. Their answers lie in the ledger, so that nothing is sent and nothing is paid.

model = student()
opt = to.SSO(model.parameters())
again = to.Budget(money=0.35)
with paid_oracle(again) as oracle:
    for start in range(0, 300, 100):
        batch = asked_about[start : start + 100]
        opt.step(lambda batch=batch: model(batch), oracle.about(batch))
print(f"the same three steps again: agreement {agreement(model):.0%}")

# %%
# Everything that was bought
# --------------------------
#
# Probabilities reveal the loss, so that the answers stay worth something. A question about all 300 images at once is a
# new one, but the cache has the answer about each of them: it costs nothing, and the student can be trained on
# them for as long as it improves.

opt = to.SSO(model.parameters(), rule=to.Proximal(), lr=float("inf"), inner=to.LBFGS(max_steps=60))
bought = asked_about[:300]
with paid_oracle(to.Budget(money=0.35)) as oracle:
    for _ in range(5):
        opt.step(lambda: model(bought), oracle.about(bought))
print(f"trained on everything bought: agreement {agreement(model):.0%}")

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.plot(spent, agreed, "o-", label="a step on each new batch")
ax.plot(spent[-1], agreement(model), "s", label="then on everything bought")
ax.set(xlabel="money spent", ylabel="agreement with the teacher", ylim=(0, 1))
ax.legend(loc="lower right")
plt.show()
folder.cleanup()
