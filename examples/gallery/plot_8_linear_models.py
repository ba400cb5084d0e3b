"""
Linear models
=============

For linear models the library has fast loops, and estimators that scikit-learn takes for its own. After this
example you will be able to fit them, and to tell when to use them instead of scikit-learn's.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import targetopt as to
from targetopt.linear import backend
from targetopt.sklearn import SSOClassifier

X, y = load_breast_cancer(return_X_y=True)

# %%
# Estimators
# ----------
#
# ``SSOClassifier`` needs no learning rate. It stands in pipelines and searches as every estimator does.

for estimator in (LogisticRegression(), SSOClassifier()):
    scores = cross_val_score(
        make_pipeline(StandardScaler(), estimator), X, y, scoring="neg_log_loss"
    )
    print(f"{type(estimator).__name__}: held-out log-loss {-scores.mean():.3f}")

# %%
# Whole runs, counted
# -------------------
#
# ``to.linear.fit`` is for studies of optimisation: it counts oracle calls and inner steps, and records the loss as
# it goes. Here it compares the rule of the paper with ``Memory``, which remembers the last answer about every
# example, so that the noise of mini-batches goes to zero.
#
# With the extra ``[fast]`` these loops are compiled, once after installation; that takes about half a minute, and a
# run like this one then takes a second. This page does without, and gets the same numbers up to rounding.

Z = StandardScaler().fit_transform(X)
signs = 2.0 * y - 1.0
figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, rule in {"GradientStep": to.GradientStep(), "Memory": to.Memory()}.items():
    with backend.use("numpy"):  # leave this line out for compiled loops
        found = to.linear.fit(Z, signs, rule=rule, batch_size=32, epochs=20, weight_decay=1e-2)
    ax.semilogy(np.asarray(found.records["loss"]), label=name)
    print(
        f"{name}: {found.counts.oracle_calls} oracle calls, {found.counts.inner_steps} inner steps"
    )
ax.set(xlabel="epochs", ylabel="objective")
ax.legend()
plt.show()
