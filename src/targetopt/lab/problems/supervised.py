"""Supervised problems with linear models: LIBSVM's, those in scikit-learn, and synthetic twins."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from targetopt.display import Progress
from targetopt.lab import data
from targetopt.lab.problems.base import Array
from targetopt.lab.problems.linear import LinearProblem, binary_loss
from targetopt.lab.problems.registry import register
from targetopt.losses import CrossEntropy


def _label(data_label: str, loss: str, bias: bool, weight_decay: float) -> str:
    """``mushrooms (logistic)``, with bias and weight_decay where they are not the paper's."""
    extras = [loss] + ["bias"] * bias + ([f"weight_decay={weight_decay:g}"] if weight_decay else [])
    return f"{data_label} ({', '.join(extras)})"


def _libsvm(name: str) -> Callable[..., LinearProblem]:
    def build(
        loss: str = "logistic", bias: bool = False, weight_decay: float = 0.0
    ) -> LinearProblem:
        kind = binary_loss(loss)
        dataset = data.find(name)
        with Progress(name, "bytes") as shown:
            loaded = data.load(dataset, progress=shown.show).data
        return LinearProblem(
            _label(dataset.label, loss, bias, weight_decay),
            loaded.X,
            dataset.signs(loaded.labels),
            kind,
            bias=bias,
            weight_decay=weight_decay,
            classification=True,
        )

    return build


for _name, _description in {
    "mushrooms": "LIBSVM mushrooms, 8124 × 112, separable; linear model",
    "ijcnn1": "LIBSVM ijcnn1 (its .tr part), 35000 × 22, not separable; linear model",
    "rcv1": "LIBSVM rcv1_train.binary, 20242 × 47236, sparse text; linear model",
    "rcv1-v2-subset": "RCV1-v2 subset, 20242 × 47236, sparse text (not LIBSVM's); linear model",
}.items():
    register(_name, _description)(_libsvm(_name))


def standardised(X: Array) -> Array:
    """Columns with mean 0 and standard deviation 1; constant columns become 0.

    Example:
        >>> standardised(np.array([[1.0, 5.0], [3.0, 5.0]]))
        array([[-1.,  0.],
               [ 1.,  0.]])
    """
    deviation = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))


def small_set(name: Literal["breast_cancer", "digits"]) -> tuple[Array, NDArray[np.int64]]:
    """Rows and classes of a data set in scikit-learn.

    They are read from its file where that is, as importing scikit-learn takes a second, in each worker.

    Example:
        >>> X, y = small_set("breast_cancer")
        >>> X.shape, int(y.sum())
        ((569, 30), 357)
    """
    header = {"breast_cancer": 1, "digits": 0}[name]
    found = find_spec("sklearn")
    places = (found.submodule_search_locations if found else None) or []
    for place in places:
        for file in (Path(place) / "datasets" / "data").glob(f"{name}.csv*"):
            table = np.loadtxt(file, delimiter=",", skiprows=header)
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return X, y.astype(np.int64)


@register("breast_cancer", "Wisconsin breast cancer (in scikit-learn), 569 × 30; linear model")
def breast_cancer(
    loss: str = "logistic", bias: bool = True, weight_decay: float = 0.0
) -> LinearProblem:
    """Malignant or benign from 30 standardised measurements of cell nuclei; benign is +1."""
    X, y = small_set("breast_cancer")
    return LinearProblem(
        _label("breast cancer", loss, bias, weight_decay),
        standardised(X),
        np.where(y == 1, 1.0, -1.0),
        binary_loss(loss),
        bias=bias,
        weight_decay=weight_decay,
        classification=True,
    )


@register(
    "digits", "handwritten digits (in scikit-learn), 1797 × 64, 10 classes; softmax regression"
)
def digits(bias: bool = True, weight_decay: float = 0.0) -> LinearProblem:
    """Ten classes of 8 × 8 images; columns standardised (the constant ones are 0)."""
    X, y = small_set("digits")
    return LinearProblem(
        _label("digits", "softmax", bias, weight_decay),
        standardised(X),
        y,
        CrossEntropy,
        bias=bias,
        weight_decay=weight_decay,
        classification=True,
    )
