"""`to.Linear` as a forward: its targets, its derivatives, and what SSO does with it."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import targetopt as to
from targetopt.linear import backend
from targetopt.linear.coordinates.choice import DUAL, MATVEC, PRIMAL, choose_form
from targetopt.types import BadArgument


def sparse(n=12, d=7, seed=0):
    rng = np.random.default_rng(seed)
    return sp.csr_array(rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("convert", [lambda X: X, lambda X: X.toarray(), lambda X: X.tocsc()])
def test_targets_and_derivatives_are_those_of_the_module(outputs, bias, convert):
    X = sparse()
    model = torch.nn.Linear(7, outputs, bias=bias, dtype=torch.float64)
    forward = to.Linear(model, convert(X))
    expected = model(torch.tensor(X.toarray()))
    expected = expected[:, 0] if outputs == 1 else expected
    torch.testing.assert_close(forward(), expected)
    torch.testing.assert_close(forward.rows([3, 3, 0])(), expected[[3, 3, 0]])
    for found, wanted in zip(
        torch.autograd.grad(forward().square().sum(), model.parameters()),
        torch.autograd.grad(expected.square().sum(), model.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


# torch.autograd.forward_ad imports decompositions that torch itself has deprecated
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_derivatives_of_every_order():
    X, weight = sparse(), torch.randn(2, 7, dtype=torch.float64, requires_grad=True)

    def squares(weight):
        return to.Linear(weight, X)().square()

    assert torch.autograd.gradcheck(squares, (weight,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(squares, (weight,))


@pytest.mark.parametrize("inner", [to.Armijo(max_steps=15), to.LBFGS(max_steps=5), to.Exact()])
@pytest.mark.parametrize("rule", [to.GradientStep(), to.Newton(), to.AdaGrad(), to.FTRL()])
def test_softmax_regression_in_sso_is_the_autograd_run(inner, rule):
    X, labels = sparse(n=15), torch.arange(15) % 3
    dense, runs = torch.tensor(X.toarray()), []
    for linear in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(7, 3, dtype=torch.float64)
        forward = to.Linear(model, X) if linear else (lambda model=model: model(dense))
        opt = to.SSO(model.parameters(), lr=0.5, rule=rule, inner=inner, weight_decay=1e-2)
        oracle = to.LossOracle(to.losses.CrossEntropy(labels))
        reports = [opt.step(forward, oracle) for _ in range(4)]
        assert bool(reports[-1].form) == linear
        runs.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-9, atol=1e-9)


def test_solvers_without_a_form_go_through_autograd():
    model = torch.nn.Linear(7, 1, dtype=torch.float64)
    y = torch.sign(torch.randn(12, dtype=torch.float64))
    for inner in (to.GaussNewton(max_steps=2), to.Torch(torch.optim.Adam, max_steps=3)):
        opt = to.SSO(model.parameters(), lr=1.0, inner=inner)
        report = opt.step(to.Linear(model, sparse()), to.LossOracle(to.losses.Logistic(y)))
        assert report.form == ""


@pytest.mark.parametrize("name", backend.available())
def test_a_wide_sparse_matrix_is_never_made_dense(name):
    """Dense, these 40 × 20 million numbers would take 6.4 GB; a d × d matrix 3 PB."""
    d = 20_000_000
    X = sp.random_array((40, d), density=1e-6, rng=0, format="csr")
    weight = torch.zeros(d, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(np.random.default_rng(0).choice([-1.0, 1.0], 40))
    opt = to.SSO([weight], lr=2.0, inner=to.Armijo(max_steps=50), check_purity=False)
    with backend.use(name):
        report = opt.step(to.Linear(weight, X), to.LossOracle(to.losses.Logistic(y)))
    assert report.form in ("dual", "matvec")
    assert report.surrogate_decrease > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: to.Linear(torch.nn.Linear(3, 1), np.ones((4, 2))), "2 columns.*3 features"),
        (lambda: to.Linear(torch.zeros(2, 3, 4), np.ones((4, 4))), "shape"),
        (lambda: to.Linear(torch.zeros(2, dtype=torch.int64), np.ones((4, 2))), "floating point"),
        (lambda: to.Linear(torch.zeros(2), np.ones((4, 2)), bias=torch.zeros(3)), "bias"),
        (lambda: to.Linear(torch.nn.Linear(2, 1), np.ones((4, 2)), bias=torch.zeros(1)), "own"),
        (lambda: to.Linear(lambda x: x, np.ones((4, 2))), "nn.Linear or a weight"),
        (lambda: to.Linear(torch.zeros(2), np.ones((4, 2)), form="fast"), "form='fast'"),
        (lambda: to.Linear(torch.zeros(2), [[np.nan, 1.0]]), "finite"),
    ],
)
def test_bad_forwards_say_what_is_wrong(make, message):
    with pytest.raises(BadArgument, match=message):
        make()


def test_the_cost_model_takes_the_small_side_and_products_for_few_steps():
    assert choose_form(25, 47236, 1900, 4e3, True, 100, False) == DUAL
    assert choose_form(35000, 22, 455000, 1e10, True, 100, False) == PRIMAL
    assert choose_form(25, 47236, 1900, 4e3, True, 1, False) == MATVEC
    assert choose_form(20242, 47236, 1520304, 2e9, True, 100, False) == MATVEC
    assert choose_form(20242, 47236, 1520304, 2e9, True, 1, True) == MATVEC
    assert choose_form(50, 1000, 50000, 0.0, False, 1, True) == DUAL


def test_a_few_full_columns_make_a_gram_matrix_dear():
    # six hundred rows of text: a common word meets itself in every pair of rows
    assert choose_form(625, 7571, 45849, 45849**2 / 7571, True, 100, False) == DUAL
    assert choose_form(625, 7571, 45849, 2e6, True, 20, False) == MATVEC


def test_importing_targetopt_imports_no_numba():
    check = "import sys, targetopt; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
