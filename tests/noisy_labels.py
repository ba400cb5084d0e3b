"""Small data that no linear model fits, and the minimum on it."""

from __future__ import annotations

import numpy as np
import torch


def noisy(n=40, d=3, seed=0, flips=0.2):
    """Labels that no linear model fits: every batch pulls elsewhere."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sign(X @ rng.normal(size=d))
    return X, np.where(rng.random(n) < flips, -y, y)


def minimised(loss, A, weight_decay):
    """The minimum by Newton's method, and its θ."""
    theta = np.zeros(A.shape[1])
    for _ in range(30):
        z = torch.tensor(A @ theta)
        slope = A.T @ loss.gradient(z).numpy() / len(A) + weight_decay * theta
        curved = (A.T * loss.curvature(z).numpy()) @ A / len(A)
        theta = theta - np.linalg.solve(curved + weight_decay * np.eye(len(theta)), slope)
    value = float(loss.value(torch.tensor(A @ theta)).mean())
    return value + 0.5 * weight_decay * float(theta @ theta), theta
