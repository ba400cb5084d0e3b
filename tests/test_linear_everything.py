"""`linear.fit` is looping over `SSO.step`: every rule × inner solver × loss × matrix × weight decay.

The list of parts is the registry's; subclasses and parts from outside the package are among them. The
reference goes through autograd on a dense matrix and knows nothing of coordinates or kernels.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import own_parts as own
import targetopt as to
from targetopt import registry
from targetopt.linear import Run, backend, fit

BACKENDS = backend.available()
N, D, BATCH, STEPS = 9, 5, 5, 3

RULES = {name: entry.item for name, entry in registry.rules.items()} | {
    "mirror-descent": to.MirrorDescent(),
    "secant": to.TrustRegion(metric=to.Secant()),
    "subclass": own.HalfStep(),
    "own": own.Counting(),
}
INNERS = {name: entry.item.make(3, 0.05) for name, entry in registry.inner.items()} | {
    "subclass": own.ShortArmijo(max_steps=4),
    "own": own.OneStep(),
}
INNERS["gauss-newton"] = to.GaussNewton(max_steps=1)  # a second one is at rounding level
SINGLE = {name: entry.item for name, entry in registry.losses.items() if name != "cross-entropy"}
LOSSES = SINGLE | {
    "huber-small": lambda y: to.losses.Huber(y, 0.3),
    "ridged": lambda y: to.losses.Ridged(to.losses.Logistic(y), 0.2),
    "ridged-own": lambda y: to.losses.Ridged(own.LogCosh(y), 0.2),
    "own": own.LogCosh,
    "own-numbers": own.Tilted,
    "subclass": own.Doubled,
    "subclass-by-name": own.Renamed,
    "without-scalars": own.PlainOnly,
}
ADDED = [name for name in LOSSES if name not in SINGLE]
CASES = {
    (rule, inner): list(SINGLE) for rule, inner in itertools.product(registry.rules, registry.inner)
}
"""Every product of what is registered; parts beside those meet some of it."""
CURVED = ("proximal", "automatic", "bundle", "bought")
"""Rules whose surrogate has no minimiser in closed form, on losses that are known."""
for each in CURVED:
    del CASES[each, "exact"]
for each in [inner for rule, inner in CASES if rule == "majoriser"]:
    CASES["majoriser", each] = ["logistic", "squared", "huber"]  # losses with a finite L
KERNELS = set(registry.rules) - {*CURVED, "trust-region", "polyak", "majoriser", "mirror-descent"}
"""The rules that have kernels; the others are run step by step."""
for pair in [("gradient-step", "armijo"), ("line-search", "exact"), ("newton", "lbfgs")]:
    CASES[pair] = [*SINGLE, *ADDED]
for each in [name for name in RULES if name not in registry.rules]:
    CASES[each, "armijo"] = CASES[each, "own"] = ["logistic", "own", "subclass"]
for each in [name for name in INNERS if name not in registry.inner]:
    CASES["gradient-step", each] = CASES["adagrad", each] = ["logistic", "own", "subclass"]
COMPILED = {"squared", "logistic", "huber", "poisson", "huber-small", "ridged", "ridged-own"} | {
    "own",
    "own-numbers",
}


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    X[3] = 0.0
    y = X @ rng.normal(size=D) + 0.5 * rng.normal(size=N)
    return X, y


X, REAL = data()
LABELS = {
    "logistic": np.where(REAL > 0, 1.0, -1.0),
    "ridged": np.where(REAL > 0, 1.0, -1.0),
    "poisson": np.round(np.exp(np.clip(REAL, -2, 1))),
}


def stepping(
    X, y, loss, rule, inner, lr, weight_decay=0.0, steps=STEPS, batch=BATCH, schedule=None
):
    theta = torch.zeros(X.shape[1], dtype=torch.float64, requires_grad=True)
    dense, whole = torch.tensor(X), loss(torch.tensor(y))
    opt = to.SSO(
        [theta],
        lr,
        rule=rule,
        inner=inner,
        weight_decay=weight_decay,
        schedule=schedule,
        warn=False,  # `fit` does not warn either
    )
    draws = to.linear.Batches(len(y), batch, seed=3)
    for t in range(steps):
        rows = torch.from_numpy(draws.rows(t))
        oracle = to.LossOracle(whole.rows(rows))
        everything = (lambda: dense @ theta) if rule.wants_everything((), dear=False) else None
        opt.step(
            lambda rows=rows: dense[rows] @ theta, oracle, index=rows, regularise_on=everything
        )
    return theta.detach().numpy(), opt.totals


def agree(found, expected, totals, label):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.theta, expected, rtol=1e-9, atol=1e-9 * scale, err_msg=label)
    assert not found.diverged, label
    for name in ("oracle_calls", "value_calls", "inner_steps"):
        assert getattr(found.counts, name) == getattr(totals, name), (label, name)


@cache
def reference(rule, inner, name, weight_decay):
    y, loss = LABELS.get(name, REAL), LOSSES[name]
    return stepping(X, y, loss, RULES[rule], INNERS[inner], 0.3, weight_decay)


MATRICES = {"dense": X, "csr": sp.csr_array(X)}
PRODUCT = list(itertools.product((0.0, 0.05), MATRICES))
# On the general path both kinds of matrix are the same but for their products: one of them for each λ will do, and
# where there are kernels for products alone, the kind that has them.
PAIRED = {"numpy": [(0.0, "csr"), (0.05, "dense")], "numba": [(0.0, "csr")]}


@pytest.mark.parametrize(("rule", "inner"), CASES)
@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.product(3, but=("which",))
def test_fit_is_looping_over_steps(which, rule, inner):
    compiled = which == "numba" and rule in KERNELS and inner not in ("gauss-newton", "adam")
    the_same(which, rule, inner, PRODUCT if compiled else PAIRED[which])


@pytest.mark.slow  # the rest of the product
@pytest.mark.parametrize(("rule", "inner"), CASES)
@pytest.mark.parametrize("which", BACKENDS)
def test_fit_is_looping_over_steps_on_every_matrix(which, rule, inner):
    the_same(which, rule, inner, [each for each in PRODUCT if each not in PAIRED[which]])


def the_same(which, rule, inner, options):
    for name, (weight_decay, kind) in itertools.product(CASES[rule, inner], options):
        expected, totals = reference(rule, inner, name, weight_decay)
        method = {"loss": LOSSES[name], "rule": RULES[rule], "inner": INNERS[inner], "lr": 0.3}
        run = {"weight_decay": weight_decay, "batch_size": BATCH, "steps": STEPS, "seed": 3}
        with backend.use(which):
            found = fit(MATRICES[kind], LABELS.get(name, REAL), record_at=[], **method, **run)
        agree(found, expected, totals, f"{name}, {weight_decay=}, {kind}, {which}")


@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
def test_kernels_are_for_exactly_the_registered_types():
    kernels = pytest.importorskip("targetopt.linear.kernels")
    known = {name for name, rule in RULES.items() if kernels.has(rule, to.Exact())}
    assert known == KERNELS
    known = {name for name, inner in INNERS.items() if kernels.has(to.GradientStep(), inner)}
    assert known == {"armijo", "gradient-descent", "lbfgs", "exact"}
    for name, loss in LOSSES.items():
        run = Run(X, LABELS.get(name, REAL), loss=loss, lr=0.1, inner=to.Exact())
        assert ("memory" in run.state_dict()) == (name in COMPILED), name


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("backtracks", [0, 2])
def test_a_failed_search_without_a_known_smoothness_takes_no_step(which, backtracks):
    """The rule leaves the targets where they are; the loss never rises."""
    rng = np.random.default_rng(1)
    A, counts = rng.normal(size=(20, 3)), rng.poisson(2.0, size=20).astype(float)
    rule = to.LineSearch(max_backtracks=backtracks)
    for inner in (to.Exact(), to.Armijo(max_steps=5)):
        method = {"loss": to.losses.Poisson, "rule": rule, "inner": inner, "lr": 1000.0}
        expected, totals = stepping(A, counts, steps=12, batch=None, **method)
        with backend.use(which):
            found = fit(A, counts, steps=12, **method)
        agree(found, expected, totals, which)
        assert (np.diff(found.records["loss"]) <= 0).all()
        assert found.records["loss"][-1] < found.records["loss"][0]


@pytest.mark.parametrize("which", BACKENDS)
def test_a_search_that_rounding_swallows_begins_afresh(which):
    """Steps too short to move a target: the next search begins where the first one did."""
    A, y = np.ones((4, 1)), np.full(4, 1e-3)
    rule = to.LineSearch(c=1.0 - 1e-12, shrink=1e-6, max_backtracks=3)

    def loss(y):
        return own.PlainOnly(y) if which == "numpy" else Bare(y)

    method = {"loss": loss, "rule": rule, "inner": to.Exact(), "lr": 1.0}
    expected, totals = stepping(A, y, steps=4, batch=None, **method)
    with backend.use(which):
        found = fit(A, y, steps=4, **method)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-9, atol=1e-15)
    assert found.counts.value_calls == totals.value_calls


class Bare(to.losses.Squared):
    """The squared loss of an oracle that does not say its L."""

    smoothness = None
    scalar = to.losses.Squared.scalar


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("rule", registry.rules)
@pytest.mark.parametrize("inner", [to.Armijo(3), to.LBFGS(max_steps=1), to.Exact()])
@pytest.mark.product(3, but=("which",))
def test_batches_without_a_gradient(which, rule, inner):
    if rule in CURVED and isinstance(inner, to.Exact):
        inner = to.LBFGS(max_steps=5)
    A = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    y = np.array([1.0, 0.0, -1.0, 0.0, 0.0])
    method = {"loss": to.losses.Squared, "rule": RULES[rule], "inner": inner, "lr": None}
    expected, totals = stepping(A, y, steps=15, batch=1, **method)
    with backend.use(which):
        found = fit(A, y, steps=15, batch_size=1, seed=3, **method)
    agree(found, expected, totals, rule)


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("rule", registry.rules)
def test_a_schedule_that_ends_at_zero(which, rule):
    """Nothing moves there, and rules remember nothing of it."""
    method = {"loss": to.losses.Squared, "rule": RULES[rule], "inner": INNERS["armijo"], "lr": 0.3}
    method["schedule"] = lambda t: max(0.0, 1.0 - abs(t - 4) / 2.0)
    expected, totals = stepping(X, REAL, steps=9, **method)
    with backend.use(which):
        found = fit(X, REAL, steps=9, batch_size=BATCH, seed=3, **method)
    agree(found, expected, totals, rule)


@pytest.mark.parametrize("which", BACKENDS)
@pytest.mark.parametrize("rule", ["gradient-step", "adagrad-norm", "line-search"])
def test_divergence_leaves_the_last_finite_step(which, rule):
    inner = to.GradientDescent(step_size=1e100, max_steps=2)
    options = {"loss": to.losses.Squared, "rule": RULES[rule], "inner": inner, "lr": 1.0}
    with backend.use(which):
        found = fit(X, REAL, batch_size=BATCH, epochs=9, **options)
    assert found.diverged
    assert np.isfinite(found.theta).all()
    assert found.counts.oracle_calls == found.steps
    assert found.counts.inner_steps == 2 * found.steps
