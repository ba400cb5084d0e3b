"""Long descents, which the compiled kernels make in a Krylov space, against one product a step."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import targetopt as to
from targetopt.inner import Objective
from targetopt.linear import Linear, backend, design, fit
from targetopt.linear.coordinates import FORMS
from targetopt.surrogate import Quadratic

pytest.importorskip("numba")
from targetopt.linear.kernels.data import gathered
from targetopt.linear.kernels.data.batch import matrix_of
from targetopt.linear.kernels.inner import krylov, quadratic
from targetopt.linear.kernels.inner.solvers import solver_spec

INNERS = {
    "armijo": to.Armijo(max_steps=400),
    "careless": to.Armijo(max_steps=300, c=0.05, shrink=0.8, grow=3.0, initial_step=1e3),
    "tolerance": to.Armijo(max_steps=400, stopping=to.Stopping(gradient_tolerance=3e-3)),
    "decrease": to.Armijo(max_steps=400, stopping=to.Stopping(relative_decrease=1e-5)),
    "no-backtracks": to.Armijo(max_steps=400, max_backtracks=0, initial_step=1e-3),
    "fixed": to.GradientDescent(step_size=0.02, max_steps=300),
    "fixed-tolerance": to.GradientDescent(
        step_size=0.02, max_steps=300, stopping=to.Stopping(gradient_tolerance=3e-3)
    ),
    "growing": to.GradientDescent(step_size=0.25, max_steps=60),
}


def problem(seed, n, d, diagonal=True, density=0.5, spread=2.0, copies=0):
    """X with columns of very different length, some of them twice; a surrogate around its targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    X *= 10.0 ** rng.uniform(-spread, 0.0, size=d)
    X[:, d - copies :] = X[:, :copies]
    theta, slope = rng.normal(size=d), rng.normal(size=n)
    metric = rng.uniform(0.2, 2.0, size=n) if diagonal else np.full(n, 0.7)
    return sp.csr_array(X), theta, slope, metric


def solved(name, X, theta, slope, metric, inner, decay, form):
    weight = torch.nn.Parameter(torch.tensor(theta))
    forward = Linear(weight, X, form=form)
    z = forward().detach()
    surrogate = Quadratic(z, torch.tensor(slope), torch.tensor(metric), torch.tensor(0.0).double())
    objective = Objective(forward, [weight], surrogate, decay)
    with backend.use(name):
        result = forward.solver_for(inner, surrogate, [weight])(objective, {})
    return weight.detach().numpy().copy(), result, objective


def assert_same(found, expected):
    (theta, result, _), (reference_theta, reference, _) = found, expected
    scale = np.abs(reference_theta).max()
    np.testing.assert_allclose(theta, reference_theta, rtol=1e-9, atol=1e-9 * scale)
    assert (result.reason, result.steps) == (reference.reason, reference.steps)
    np.testing.assert_allclose(result.decrease, reference.decrease, rtol=1e-9)
    assert result.state == reference.state  # α is a product of the same factors: the same trials


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inner", INNERS.values(), ids=INNERS.keys())
@pytest.mark.parametrize(("n", "d", "decay"), [(90, 60, 0.0), (60, 90, 0.0), (90, 60, 0.05)])
def test_same_steps_as_one_product_each(form, inner, n, d, decay):
    arguments = (*problem(n + d, n, d), inner, decay, form)
    assert_same(solved("numba", *arguments), solved("numpy", *arguments))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 70),
    d=st.integers(1, 70),
    diagonal=st.booleans(),
    density=st.sampled_from([0.1, 1.0]),
    copied=st.floats(0.0, 0.5),
    steps=st.sampled_from([60, 150, 500]),
    decay=st.sampled_from([0.0, 0.1]),
    form=st.sampled_from([*FORMS, None]),
)
def test_random_problems(seed, n, d, diagonal, density, copied, steps, decay, form):
    data = problem(seed, n, d, diagonal, density, 1.0, int(copied * d))
    # stopped where the descent still has digits to decide with
    inner = to.Armijo(max_steps=steps, stopping=to.Stopping(gradient_tolerance=1e-6))
    assert_same(
        solved("numba", *data, inner, decay, form), solved("numpy", *data, inner, decay, form)
    )


def test_fewer_products_than_steps_and_they_are_counted():
    data = problem(0, 300, 80, spread=1.0)
    _, result, objective = solved("numba", *data, to.Armijo(max_steps=200), 0.0, "matvec")
    assert result.steps == 200
    assert 20 < objective.forward_calls < 100
    # the query's own forward is one more; the first gradient one more backward
    assert objective.forward_calls == objective.backward_calls
    _, _, slow = solved("numpy", *data, to.Armijo(max_steps=200), 0.0, "matvec")
    assert slow.forward_calls > 200


@pytest.mark.slow  # called by itself, `descend` is compiled anew
@pytest.mark.parametrize("form", [0, 1, 2], ids=FORMS)
@pytest.mark.parametrize("most", [2, 9, 40])
def test_a_full_basis_begins_anew(form, most):
    """`descend` with a small basis, called until it is done, is the same descent."""
    X, theta, slope, metric = problem(5, 70, 50)
    inner = to.Armijo(max_steps=150)
    expected, reference, _ = solved("numpy", X, theta, slope, metric, inner, 0.0, FORMS[form])
    matrix = matrix_of(design(X))
    XB = gathered.view(gathered.everything(matrix), 0)
    gram = quadratic.gram_for(XB, form, metric)
    inner_problem = quadratic.setup(
        XB, form, gram, metric, X @ theta, slope, theta, 0.0, 0.0, np.zeros(2, np.int64)
    )
    x = quadratic.gradient(inner_problem)
    shift, steps, total, alpha, calls = np.zeros(x.size), 0, 0.0, inner.initial_step, 0
    reason = krylov.BASIS_FULL
    while reason == krylov.BASIS_FULL:
        steps, total, reason, alpha = krylov.descend(
            inner_problem, solver_spec(inner), x, shift, alpha, steps, total, most
        )
        calls += 1
    assert calls > 150 / most / 3 if most < 40 else calls >= 1
    assert (steps, reason) == (150, 0)
    found = quadratic.moved(inner_problem, shift)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(total, reference.decrease, rtol=1e-9)
    assert reference.state["step_size"] == alpha
    _, compiled, _ = solved("numba", X, theta, slope, metric, inner, 0.0, FORMS[form])
    assert compiled.state["step_size"] == alpha


def test_a_gradient_of_zero_moves_by_weight_decay_alone():
    X, theta, _, metric = problem(3, 60, 40)
    for form in FORMS:
        arguments = (X, theta, np.zeros(60), metric, to.Armijo(max_steps=200), 0.3, form)
        assert_same(solved("numba", *arguments), solved("numpy", *arguments))


@pytest.mark.parametrize(
    "data", ["mushrooms", "ijcnn1", pytest.param("rcv1-v2-subset", marks=pytest.mark.slow)]
)
def test_real_data_hundred_long_steps(real_data, data):
    """1e-9 over 20 outer steps of 300 inner ones, on both backends (the paper's data)."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(real_data(data)))
    X, y = X[:1000], np.where(y[:1000] == y.max(), 1.0, -1.0)
    options = {"inner": to.Armijo(max_steps=300), "lr": 2.0, "batch_size": 125, "steps": 20}
    results = {}
    for name in ("numba", "numpy"):
        with backend.use(name):
            results[name] = fit(X, y, record_at=[], **options)
    compiled, plain = results["numba"], results["numpy"]
    scale = np.abs(plain.theta).max()
    np.testing.assert_allclose(compiled.theta, plain.theta, rtol=1e-9, atol=1e-9 * scale)
    carried = plain.state["optimiser"]["sso"]["inner_state"]["step_size"]
    assert compiled.state["numbers"][0] == carried  # every search took the same steps
