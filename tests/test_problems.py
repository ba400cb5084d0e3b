"""Problems: the seam, the metrics against independent formulas, and the errors."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

import targetopt as to
from targetopt.lab import problems
from targetopt.lab.data import MissingError
from targetopt.lab.problems import supervised
from targetopt.lab.problems.linear import LinearProblem
from targetopt.losses import Logistic
from targetopt.types import BadArgument

LIBSVM = ("mushrooms", "ijcnn1", "rcv1-v2-subset")
SMALL: tuple[tuple[str, dict], ...] = (
    ("breast_cancer", {}),
    ("breast_cancer", {"loss": "squared", "bias": False}),
    ("breast_cancer", {"weight_decay": 0.1}),
    ("digits", {"weight_decay": 0.01}),
    ("quadratic", {"noise": 0.5, "weight_decay": 0.1}),
    ("two-quadratics", {}),
    ("interpolation", {}),
    ("interpolation", {"loss": "logistic"}),
    ("matrix-factorisation", {"rank": 3}),
    ("mlp-digits", {"hidden": 8, "weight_decay": 0.01}),
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(cache))
    monkeypatch.setenv("TARGETOPT_DATA_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("TARGETOPT_DATA", raising=False)


def dense_inputs(problem: problems.Problem) -> torch.Tensor:
    if problem.linear is None:
        return problem.inputs
    X = problem.linear.X
    return torch.from_numpy(X.toarray() if sp.issparse(X) else X)


def by_autograd(problem: problems.Problem, model: nn.Module) -> tuple[float, float]:
    """Objective and gradient norm, the plain torch way."""
    z = model(dense_inputs(problem))
    z = z.squeeze(1) if problem.linear is not None and z.shape[1] == 1 else z
    parameters = list(model.parameters())
    penalty = sum(0.5 * problem.weight_decay * p.square().sum() for p in parameters)
    loss = problem.loss.value(z).mean() + penalty
    gradients = torch.autograd.grad(loss, parameters)
    return float(loss.detach()), float(torch.cat([g.ravel() for g in gradients]).norm())


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_metrics_are_the_objective_and_its_gradient(name: str, options: dict) -> None:
    problem = problems.get(name, **options)
    for seed in range(3):
        model = problem.model(seed)
        found = problem.metrics(model)
        loss, grad_norm = by_autograd(problem, model)
        assert found["loss"] == pytest.approx(loss, rel=1e-12)
        assert found["grad_norm"] == pytest.approx(grad_norm, rel=1e-10)
        assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_rows_of_the_forward_and_of_the_oracle(name: str, options: dict) -> None:
    problem = problems.get(name, **options)
    model = problem.model(0)
    z = problem.forward(model)().detach()
    assert len(z) == problem.n
    point = problem.oracle().query(z)
    for index in ([0], np.array([problem.n - 1, 0]), torch.tensor([0, 0])):
        rows = torch.as_tensor(index)
        part = problem.forward(model, index)().detach()
        torch.testing.assert_close(part, z[rows], rtol=1e-12, atol=1e-14)
        some = problem.oracle(index).query(part)
        torch.testing.assert_close(some.losses, point.losses[rows], rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(some.gradients, point.gradients[rows], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("name", "options"), SMALL)
def test_sso_descends_on_it(name: str, options: dict) -> None:
    problem = problems.get(name, **options)
    model = problem.model(1)
    inner = to.Armijo(max_steps=20)
    opt = to.SSO(model.parameters(), lr=None, inner=inner, weight_decay=problem.weight_decay)
    before = problem.metrics(model)
    for _ in range(3):
        opt.step(problem.forward(model), problem.oracle())
    after = problem.metrics(model)
    assert after["loss"] < before["loss"]
    if "suboptimality" in after:
        rounding = 4 * torch.finfo(torch.float64).eps * max(1.0, abs(after["loss"]))
        assert (
            -rounding <= after["suboptimality"] < before["suboptimality"]
        )  # some end at the optimum


@pytest.mark.parametrize("name", ["breast_cancer", "mlp-digits"])
def test_metrics_of_a_float32_model_are_float64_numbers(name: str) -> None:
    problem = problems.get(name)
    single = problem.model(0).float()
    double = problem.model(0)
    double.load_state_dict(single.state_dict())  # the same rounded parameters
    assert problem.metrics(single) == problem.metrics(double)
    assert problem.forward(single, [0, 1])().dtype == torch.float32


def test_models_come_from_their_seed_alone() -> None:
    problem = problems.get("mlp-digits")
    state = torch.get_rng_state()
    first, again, other = problem.model(3), problem.model(3), problem.model(4)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_metrics_without_a_model_agree() -> None:
    for name in ("breast_cancer", "digits"):
        problem = problems.get(name, weight_decay=0.01)
        model = problem.model(0)
        weight, bias = problem.parameters_of(model)
        assert problem.metrics_at(weight, bias) == problem.metrics(model)


def test_accuracy() -> None:
    problem = problems.get("digits", weight_decay=0.01)
    theta = problem.reference().parameters
    z = problem.linear.X @ theta[:-1] + theta[-1]
    right = float(np.mean(z.argmax(axis=1) == problem.linear.y))
    assert problem.metrics_at(theta[:-1], theta[-1])["accuracy"] == right > 0.9


def test_probabilities_pose_the_problem_of_the_logits() -> None:
    """Another f and another ℓ, and the same h: values, gradients through f, and metrics agree."""
    problem = problems.get("probabilities", data="breast_cancer", weight_decay=0.01)
    logits = problems.get("breast_cancer", bias=False, weight_decay=0.01)
    model = problem.model(3)
    assert problem.metrics(model) == logits.metrics(logits.model(3))
    rows = torch.arange(40)
    found = []
    for each in (problem, logits):
        forward, oracle = each.forward(model, rows), each.oracle(rows)
        z = forward()
        point = oracle.query(z.detach())
        (slope,) = torch.autograd.grad(z, model.parameters(), point.gradients)
        found.append((point.losses, slope))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert problem.reference().value == logits.reference().value


@pytest.mark.parametrize("data", ["digits", "quadratic", "probabilities"])
def test_probabilities_of_what_has_none_are_refused(data: str) -> None:
    with pytest.raises(BadArgument, match=f"data='{data}' must name a linear problem of two"):
        problems.get("probabilities", data=data)


def test_margin_is_the_distance_to_the_boundary_where_data_are_separable() -> None:
    X, y = np.array([[3.0, 4.0], [-2.0, 0.0], [0.0, 5.0]]), np.array([1.0, -1.0, 1.0])
    options = {"bias": False, "weight_decay": 0.0, "classification": True}
    problem = LinearProblem("", X, y, Logistic, **options)
    measured = [problem.metrics_at(s * np.array([1.0, 1.0]))["margin"] for s in (1.0, 1e6)]
    np.testing.assert_allclose(measured, 2**0.5, rtol=1e-15)  # the row (−2, 0), at any length of θ
    assert problem.metrics_at(np.array([1.0, -2.0]))["margin"] == -10 / 5**0.5  # on the wrong side
    assert problem.metrics_at(np.zeros(2))["margin"] == 0
    assert np.isnan(problem.metrics_at(np.array([np.nan, 1.0]))["margin"])
    penalised = LinearProblem("", X, y, Logistic, **options | {"weight_decay": 0.1})
    assert "margin" not in penalised.metrics_at(np.ones(2))


@pytest.mark.parametrize(
    ("name", "options"), [case for case in SMALL if case[0] not in ("mlp-digits",)]
)
def test_parameter_smoothness_is_the_largest_curvature(name: str, options: dict) -> None:
    problem = problems.get(name, **options)
    if problem.linear is None:
        assert problem.parameter_smoothness is None
        return
    X = problem.linear.X
    X = np.hstack([X, np.ones((len(X), 1))]) if problem.linear.bias else X
    largest = np.linalg.eigvalsh(X.T @ X)[-1] / len(X)
    expected = problem.target_smoothness * largest + problem.weight_decay
    assert problem.parameter_smoothness == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kappa", [1.0, 30.0, 1e6])
def test_the_quadratic_has_the_conditioning_it_says(kappa: float) -> None:
    problem = problems.get("quadratic", kappa=kappa, n=60, dimension=7, seed=3)
    eigenvalues = np.linalg.eigvalsh(problem.linear.X.T @ problem.linear.X / problem.n)
    assert eigenvalues[-1] == pytest.approx(1.0, rel=1e-9)
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(kappa, rel=1e-6)
    assert problem.reference().value < 1e-25


def test_two_quadratics_is_the_papers() -> None:
    problem = problems.get("two-quadratics")
    for theta in (-1.0, 0.0, 0.3, 2.0):
        h = 0.5 * (0.5 * (theta - 1) ** 2 + 0.5 * (2 * theta + 0.5) ** 2)
        assert problem.metrics_at(np.array([theta]))["loss"] == pytest.approx(h, rel=1e-15)
    assert problem.reference().value == pytest.approx(5 / 16, rel=1e-15)
    assert problem.reference().parameters == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("rank", [1, 4, 6, 10])
def test_matrix_factorisation_reaches_its_known_minimum(rank: int) -> None:
    problem = problems.get("matrix-factorisation", rank=rank, kappa=10.0)
    X = problem.inputs.numpy()
    Y = problem.loss.y.numpy()
    full = np.linalg.lstsq(X, Y, rcond=None)[0]  # labels are linear in the inputs
    basis = np.linalg.svd(X @ full, full_matrices=False)[2][:rank]
    model = problem.model(0)
    with torch.no_grad():
        for layer in model:
            layer.weight.zero_()
        model[0].weight[: len(basis)] = torch.from_numpy(basis @ full.T)
        model[1].weight[:, : len(basis)] = torch.from_numpy(basis.T)
    found = problem.metrics(model)
    assert found["suboptimality"] == pytest.approx(0.0, abs=1e-14)
    assert (problem.reference().value > 1e-6) == (rank < 6)
    assert found["grad_norm"] < 1e-10


@pytest.mark.parametrize("name", LIBSVM)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.product(2, each=1)
def test_libsvm_problems(name: str, loss: str, real_data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_DATA", str(real_data(name).parent))
    problem = problems.get(name, loss=loss, bias=True, weight_decay=1e-2)
    assert set(np.unique(problem.linear.y)) == {-1.0, 1.0}
    assert sp.issparse(problem.linear.X)
    model = problem.model(0)
    index = np.arange(0, problem.n, 500)
    z = problem.forward(model, index)().detach()
    rows = torch.from_numpy(problem.linear.X[index].toarray())
    torch.testing.assert_close(z, model(rows).squeeze(1).detach(), rtol=1e-10, atol=1e-12)
    found = problem.metrics(model)
    assert 0 < found["suboptimality"] < found["loss"]


def test_the_subset_is_never_shown_as_rcv1(real_data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_DATA", str(real_data("rcv1-v2-subset").parent))
    problem = problems.get("rcv1-v2-subset")
    assert problem.name == "rcv1-v2-subset"
    assert problem.label == "RCV1-v2 subset (logistic)"
    with pytest.raises(MissingError, match="'synthetic-rcv1' runs now"):
        problems.get("rcv1")


def test_every_problem_is_described() -> None:
    expected = {"mushrooms", "ijcnn1", "rcv1", "rcv1-v2-subset", "breast_cancer", "digits"}
    expected |= {"synthetic-mushrooms", "synthetic-ijcnn1", "synthetic-rcv1", "interpolation"}
    expected |= {"quadratic", "two-quadratics", "matrix-factorisation", "mlp-digits"}
    assert expected <= set(problems.names())  # other tests may have registered more
    for name in expected:
        declared = problems.declaration(name)
        assert 20 < len(declared.description) < 100
        for option in declared.options.values():
            assert option.default is not option.empty
            assert option.annotation is not option.empty


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mushroom", {}, "there is no problem 'mushroom'. Did you mean 'mushrooms'?"),
        (
            "digits",
            {"loss": "squared"},
            "'digits' has no option 'loss'; its options: bias, weight_decay",
        ),
        ("breast_cancer", {"loss": "hinge"}, "loss='hinge' must be one of: squared, logistic"),
        (
            "breast_cancer",
            {"weight_decay": -1.0},
            "weight_decay=-1.0 must be finite and at least 0",
        ),
        ("breast_cancer", {"weight_decay": float("nan")}, "weight_decay=nan"),
        ("quadratic", {"kappa": 0.5}, "kappa=0.5 must be at least 1"),
        ("quadratic", {"n": 3}, "n=3 must be at least dimension=20"),
        ("quadratic", {"dimension": 1}, "kappa=100.0 with dimension=1"),
        ("interpolation", {"n": 50, "dimension": 50}, "dimension=50 must exceed n=50"),
        ("matrix-factorisation", {"rank": 0}, "rank=0 must be a whole number ≥ 1"),
        ("mlp-digits", {"hidden": 2.5}, "hidden=2.5 must be a whole number"),
    ],
)
def test_bad_arguments(name: str, options: dict, message: str) -> None:
    with pytest.raises(BadArgument) as caught:
        problems.get(name, **options)
    assert message in str(caught.value)


def test_registering_a_problem() -> None:
    @problems.register("mine", "a problem that lives for one test only")
    def mine(seed: int = 0) -> problems.Problem:
        return problems.get("quadratic", seed=seed)

    try:
        assert problems.get("mine", seed=5).name == "mine"
        with pytest.raises(BadArgument, match="there is a problem 'mine' already"):
            problems.register("mine", "another")(lambda: mine())
    finally:
        problems.unregister("mine")
    assert "mine" not in problems.names()


def test_a_model_of_another_kind_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"model is a Sequential; .* problem.model\(seed\)"):
        problems.get("breast_cancer").metrics(nn.Sequential(nn.Linear(30, 1)))


@pytest.mark.parametrize("name", ["breast_cancer", "digits"])
def test_small_sets_are_those_of_scikit_learn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")(return_X_y=True)
    for found in (supervised.small_set(name), _without_files(name, monkeypatch)):
        np.testing.assert_array_equal(found[0], X)
        np.testing.assert_array_equal(found[1], y)


def _without_files(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple:
    monkeypatch.setattr(supervised, "find_spec", lambda name: None)
    return supervised.small_set(name)
