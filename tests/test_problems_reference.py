"""Reference optima: against closed forms, duality and scikit-learn; separable data; the cache."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from targetopt.lab import problems
from targetopt.lab.problems.linear import LinearProblem
from targetopt.lab.problems.optima import least_squares as ls
from targetopt.lab.problems.optima import reference as reference_module
from targetopt.lab.problems.optima.objective import LinearObjective
from targetopt.lab.problems.optima.reference import compute_reference
from targetopt.linear.newton.metrics import Diagonal
from targetopt.losses import CrossEntropy, Logistic, Squared


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))


def make(X, y, loss, *, bias: bool = False, weight_decay: float = 0.0) -> LinearProblem:
    classification = loss is not Squared
    return LinearProblem(
        "test", X, y, loss, bias=bias, weight_decay=weight_decay, classification=classification
    )


def optimum(problem: LinearProblem) -> problems.Reference:
    return compute_reference(LinearObjective(problem))


def logistic_dual(problem: LinearProblem, theta: np.ndarray) -> float:
    """Fenchel's dual at the dual point that θ suggests: a proven lower bound of inf h (weight_decay > 0)."""
    X, y, n = problem.linear.X, problem.linear.y, problem.n
    a = 1.0 / (1.0 + np.exp(y * (X @ theta)))
    entropy = -(a * np.log(a) + (1 - a) * np.log1p(-a))
    v = X.T @ (a * y) / n
    return float(entropy.mean() - v @ v / (2 * problem.weight_decay))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weight_decay", [1e-1, 1e-4])
def test_logistic_with_l2_has_no_duality_gap(sparse: bool, weight_decay: float) -> None:
    X = problems.get("breast_cancer").linear.X
    y = problems.get("breast_cancer").linear.y
    problem = make(sp.csr_array(X) if sparse else X, y, Logistic, weight_decay=weight_decay)
    found = optimum(problem)
    assert found.resolved
    assert found.attained
    lower = logistic_dual(problem, found.parameters)
    assert lower <= found.value * (1 + 1e-15)
    assert found.value - lower <= 1e-12 * found.value


def test_a_diagonal_metric_and_a_factor_of_the_hessian_find_the_same(monkeypatch) -> None:
    problem = problems.get("breast_cancer", weight_decay=1e-3)
    direct = optimum(problem)
    monkeypatch.setattr("targetopt.linear.newton.solver.cheapest_metric", Diagonal)
    iterative = optimum(problem)
    assert iterative.value == pytest.approx(direct.value, rel=1e-13)
    assert iterative.gap <= 1e-12 * iterative.value


def test_softmax_agrees_with_scikit_learn() -> None:
    problem = problems.get("digits", weight_decay=1e-2, bias=False)
    found = optimum(problem)
    C = 1 / (problem.weight_decay * problem.n)
    rival = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=5000)
    rival.fit(problem.linear.X, problem.linear.y)
    other = problem.metrics_at(rival.coef_.T)["loss"]
    assert found.value <= other
    assert found.value == pytest.approx(other, rel=1e-10)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
def test_least_squares_satisfies_the_normal_equations(bias: bool, weight_decay: float) -> None:
    problem = problems.get("breast_cancer", loss="squared", bias=bias, weight_decay=weight_decay)
    found = optimum(problem)
    weight, offset = (
        (found.parameters[:-1], found.parameters[-1:]) if bias else (found.parameters, None)
    )
    measured = problem.metrics_at(weight, offset)
    assert measured["loss"] == pytest.approx(found.value, rel=1e-14)
    assert measured["grad_norm"] < 1e-12
    assert found.resolved


@pytest.mark.parametrize("kappa", [1e2, 1e6, 1e10])
def test_least_squares_keeps_its_digits_when_ill_conditioned(kappa: float) -> None:
    # beyond, the rounding of Xθ itself, about eps·√κ relative, exceeds the 1e-12 asked for here
    problem = problems.get("quadratic", kappa=kappa, n=80, dimension=5, noise=1.0)
    q = np.linalg.qr(problem.linear.X)[0]
    y = problem.linear.y
    residual = y - q @ (q.T @ y)
    assert optimum(problem).value == pytest.approx(residual @ residual / (2 * 80), rel=1e-12)


def test_redundant_columns_are_no_obstacle() -> None:
    rng = np.random.default_rng(0)
    X = np.eye(4)[rng.integers(0, 4, 60)]
    X = np.hstack([X, X])  # one-hot twice: rank 4 of 8
    y = rng.choice([-1.0, 1.0], 60)
    by_group = [y[X[:, g] == 1] for g in range(4)]
    squared = sum(0.5 * ((part - part.mean()) ** 2).sum() for part in by_group) / 60
    assert optimum(make(X, y, Squared)).value == pytest.approx(squared, rel=1e-13)
    logistic = 0.0
    for part in by_group:
        p = (part > 0).mean()
        logistic -= len(part) * (p * np.log(p) + (1 - p) * np.log(1 - p)) / 60
    found = optimum(make(X, y, Logistic))
    assert found.value == pytest.approx(logistic, rel=1e-12)
    assert found.resolved


def test_contradictions_cost_log_two() -> None:
    X = np.array([[1.0, 2.0], [1.0, 2.0]])
    found = optimum(make(X, np.array([1.0, -1.0]), Logistic))
    assert found.value == pytest.approx(np.log(2), rel=1e-15)
    assert found.attained


def test_an_infimum_that_is_approached_but_not_zero() -> None:
    X = np.array([[0.0], [1.0]])  # the first row costs log 2 whatever θ is, the second goes to 0
    found = optimum(make(X, np.array([1.0, 1.0]), Logistic))
    assert found.value == pytest.approx(np.log(2) / 2, rel=1e-12)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 6), st.booleans())
def test_separable_data_are_recognised_with_proof(seed: int, n: int, d: int, sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), rng.standard_normal(d)
    margin = X @ w / np.linalg.norm(w)
    X, margin = X[np.abs(margin) > 0.05], margin[np.abs(margin) > 0.05]
    if not len(X):
        return
    y = np.sign(margin)
    found = optimum(make(sp.csr_array(X) if sparse else X, y, Logistic))
    assert found.value == 0.0
    assert found.gap == 0.0
    assert not found.attained
    assert found.resolved
    assert (y * (X @ found.parameters) > 0).all()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(1, 4))
def test_what_is_not_separable_is_never_called_so(seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = rng.choice([-1.0, 1.0], n)
    X, y = np.vstack([X, X[:1]]), np.append(y, -y[0])  # the first row again, contradicted
    found = optimum(make(X, y, Logistic))
    assert found.value >= 2 * np.log(2) / (n + 1) * (1 - 1e-12)


def test_separable_classes() -> None:
    X = np.array([[2.0, 0.0], [1.5, 0.1], [0.0, 2.0], [-1.0, -1.0]])
    found = optimum(make(X, np.array([0, 0, 1, 2]), CrossEntropy))
    assert found.value == 0.0
    z = X @ found.parameters
    assert z.argmax(axis=1).tolist() == [0, 0, 1, 2]


@given(st.integers(0, 2**32 - 1), st.integers(1, 25), st.integers(1, 25))
def test_peeling_and_conjugate_gradients_agree_with_dense_least_squares(
    seed: int, n: int, d: int
) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.2)
    y = rng.standard_normal(n)
    expected = y - dense @ np.linalg.lstsq(dense, y, rcond=1e-12)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ls, "_DENSE_ENTRIES", -1)
        theta, _ = ls.least_squares(sp.csr_array(dense), y, 0.0)
    residual = y - dense @ theta
    assert residual @ residual == pytest.approx(expected @ expected, rel=1e-8, abs=1e-12)


def test_an_unresolved_minimum_is_not_subtracted(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 8)) * np.logspace(0, -12, 8)
    monkeypatch.setattr(ls, "_DENSE_ENTRIES", -1)
    monkeypatch.setattr(ls, "_ITERATIONS", 3)
    problem = make(sp.csr_array(X), rng.standard_normal(30), Squared)
    found = problem.reference()
    assert not found.resolved
    assert found.gap == found.value > 0
    assert "suboptimality" not in problem.metrics(problem.model(0))


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("mushrooms", {}, 0.0),
        ("mushrooms", {"loss": "squared"}, None),
        ("ijcnn1", {}, None),
        ("ijcnn1", {"loss": "squared", "bias": True}, None),
        pytest.param("rcv1-v2-subset", {}, 0.0, marks=pytest.mark.slow),
        pytest.param("rcv1-v2-subset", {"weight_decay": 1e-4}, None, marks=pytest.mark.slow),
    ],
)
def test_real_data(name: str, options: dict, value: float | None, real_data, monkeypatch) -> None:
    monkeypatch.setenv("TARGETOPT_DATA", str(real_data(name).parent))
    problem = problems.get(name, **options)
    found = problem.reference()
    assert found.resolved
    if value is not None:
        assert found.value == value
        assert (problem.linear.y * (problem.linear.X @ found.parameters) > 0).all()
    else:
        bias = problem.linear.bias
        weight, offset = (
            (found.parameters[:-1], found.parameters[-1:]) if bias else (found.parameters, None)
        )
        measured = problem.metrics_at(weight, offset)
        assert measured["suboptimality"] == pytest.approx(0.0, abs=1e-13)
        assert measured["grad_norm"] < 1e-9


def test_it_is_computed_once(monkeypatch) -> None:
    first = problems.get("breast_cancer", weight_decay=0.1).reference()
    monkeypatch.setattr(reference_module, "compute_reference", None)  # may not be called
    again = problems.get("breast_cancer", weight_decay=0.1).reference()
    assert again.value == first.value
    assert again.certificate == first.certificate
    with pytest.raises(TypeError):  # another objective is another entry
        problems.get("breast_cancer", weight_decay=0.2).reference()


@pytest.mark.parametrize("damage", ["cut", "lie", "empty"])
def test_a_damaged_entry_is_computed_again(damage: str, tmp_path: Path) -> None:
    problem = problems.get("breast_cancer", weight_decay=0.1)
    first = problem.reference()
    (entry,) = (tmp_path / "cache" / "references").glob("*.npz")
    if damage == "lie":
        lie = {"gap": 0.0, "attained": True, "certificate": "", "parameters": first.parameters}
        np.savez(entry, value=0.5 * first.value, **lie)
    else:
        entry.write_bytes(entry.read_bytes()[:100] if damage == "cut" else b"")
    assert problem.reference().value == first.value
    with np.load(entry) as stored:
        assert float(stored["value"]) == first.value


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "file" / "below"))
    assert problems.get("two-quadratics").reference().value == pytest.approx(5 / 16)


def _value(_: int) -> float:
    return problems.get("breast_cancer", weight_decay=0.3).reference().value


def test_processes_that_ask_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        values = pool.map(_value, range(6))
    assert len(set(values)) == 1
    assert len(list((tmp_path / "cache" / "references").glob("*.npz"))) == 1
