"""Synthetic twins: their statistics are within 5 % of the originals'."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from targetopt.lab import data, problems
from targetopt.lab.problems.twin_fit import leading_eigenvalues

ORIGINALS = {"mushrooms": "mushrooms", "ijcnn1": "ijcnn1", "rcv1": "rcv1-v2-subset"}
EIGENVALUES = {"mushrooms": 40, "ijcnn1": 21, "rcv1": 30}


def statistics(X: sp.csr_array, y: np.ndarray, eigenvalues: int) -> dict[str, np.ndarray]:
    length = np.diff(X.indptr)
    frequency = np.sort(np.bincount(X.indices, minlength=X.shape[1]))[::-1]
    norm = np.sqrt((X * X).sum(axis=1))
    spectrum = leading_eigenvalues(X, eigenvalues)
    quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
    # ranks of columns that are used often enough for a relative error to say something
    often = frequency[[k for k in (0, 1, 4, 9, 19, 49, 99, 499, 999) if k < X.shape[1]]]
    return {
        "non-zeros": np.array(X.nnz),
        "non-zeros per row": np.quantile(length, quantiles),
        "their spread": np.array(length.std()) if length.std() > 0.1 else np.zeros(()),
        "column frequencies": often,
        "used columns": np.array((frequency > 0).sum()),
        "row norms": np.quantile(norm, quantiles),
        "positive labels": np.array((y > 0).sum()),
        "eigenvalues": spectrum,
        "eigenvalue decay": np.diff(np.log(spectrum[[0, -1]])),
    }


@pytest.fixture(scope="module")
def originals(real_data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, data.Loaded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARGETOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {
            twin: data.load(data.find(source), data_dir=real_data(source).parent)
            for twin, source in ORIGINALS.items()
        }


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("mushrooms", 0),
        ("mushrooms", 1),
        ("ijcnn1", 0),
        ("ijcnn1", 1),
        ("rcv1", 0),
        pytest.param("rcv1", 1, marks=pytest.mark.slow),
    ],
)
def test_statistics_are_within_five_per_cent(
    name: str, seed: int, originals: dict[str, data.Loaded]
) -> None:
    original = originals[name]
    labels = original.dataset.signs(original.data.labels)
    twin = problems.get(f"synthetic-{name}", seed=seed).linear
    assert twin.X.shape == original.data.X.shape
    real = statistics(original.data.X, labels, EIGENVALUES[name])
    made = statistics(twin.X, twin.y, EIGENVALUES[name])
    for what, value in real.items():
        np.testing.assert_allclose(made[what], value, rtol=0.05, err_msg=what)


@pytest.mark.parametrize("name", ORIGINALS)
def test_twins_need_no_data_and_come_from_their_seed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path))
    monkeypatch.setenv("TARGETOPT_DATA_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("TARGETOPT_DATA", raising=False)
    first, again, other = (problems.get(f"synthetic-{name}", seed=seed) for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.label == f"synthetic {name} (logistic)"
    assert set(np.unique(first.linear.y)) == {-1.0, 1.0}


@pytest.mark.parametrize(("name", "separable"), [("mushrooms", True), ("ijcnn1", False)])
def test_twins_are_separable_where_the_originals_are(
    name: str, separable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path))
    found = problems.get(f"synthetic-{name}").reference()
    assert (found.value == 0.0) == separable
    assert found.resolved
