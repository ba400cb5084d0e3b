"""Have the kernels compiled that most tests call, so that none of them waits for it."""

import numpy as np
import torch

import targetopt as to

if __name__ == "__main__":
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    to.linear.fit(X, y, batch_size=2, epochs=1)
    to.linear.fit(X, y, rule=to.Memory(), batch_size=2, epochs=1)
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    oracle = to.LossOracle(to.losses.Logistic(torch.tensor(y)))
    to.SSO([weight], inner=to.Armijo(max_steps=2)).step(to.Linear(weight, X), oracle)
    to.linear.fit(X, y, baseline=to.linear.baselines.SGD(), lr=0.1, epochs=1)
