"""Losses against autograd in float64, their stability at |z| = 1e4, L as a bound, and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import targetopt as to
from targetopt.losses import (
    BinaryLikelihood,
    CrossEntropy,
    GaussianKL,
    Huber,
    Logistic,
    Loss,
    Poisson,
    Squared,
)

F64 = torch.float64


def covariance(generator: torch.Generator, k: int) -> Tensor:
    root = torch.randn(k, k, dtype=F64, generator=generator)
    full = root @ root.T + 0.1 * torch.eye(k, dtype=F64)
    return (full + full.T) / 2


Made = tuple[Loss, Callable[[Tensor], Tensor], tuple[int, ...]]


def squared(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randn(n, k, dtype=F64, generator=g)
    return Squared(y), lambda z: (0.5 * (z - y) ** 2).sum(1), (n, k)


def squared_of_one(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randn(n, dtype=F64, generator=g)
    return Squared(y), lambda z: 0.5 * (z - y) ** 2, (n,)


def logistic(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randn(n, dtype=F64, generator=g).sign()
    return Logistic(y), lambda z: torch.logaddexp(torch.zeros_like(z), -y * z), (n,)


def logistic_of_many(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randn(n, k, dtype=F64, generator=g).sign()
    return Logistic(y), lambda z: torch.logaddexp(torch.zeros_like(z), -y * z).sum(1), (n, k)


def huber(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randn(n, k, dtype=F64, generator=g)
    delta = 0.7

    def reference(z: Tensor) -> Tensor:
        r = (z - y).abs()
        return torch.where(r <= delta, 0.5 * r**2, delta * (r - 0.5 * delta)).sum(1)

    return Huber(y, delta), reference, (n, k)


def poisson(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randint(5, (n, k), generator=g)
    return Poisson(y), lambda z: (z.exp() - y * z).sum(1), (n, k)


def classes(g: torch.Generator, n: int, k: int) -> Made:
    y = torch.randint(k, (n,), generator=g)
    return CrossEntropy(y), lambda z: torch.logsumexp(z, 1) - z.gather(1, y[:, None])[:, 0], (n, k)


def probabilities(g: torch.Generator, n: int, k: int) -> Made:
    p = torch.randn(n, k, dtype=F64, generator=g).softmax(1)
    return CrossEntropy(p), lambda z: torch.logsumexp(z, 1) - (p * z).sum(1), (n, k)


def gaussian(g: torch.Generator, n: int, k: int) -> Made:
    """Against torch.distributions' own divergence."""
    mean, full = torch.randn(n, k, dtype=F64, generator=g), covariance(g, k)

    def reference(z: Tensor) -> Tensor:
        normal = torch.distributions.MultivariateNormal
        expert = normal(mean, covariance_matrix=full)
        return torch.distributions.kl_divergence(expert, normal(z, covariance_matrix=full))

    return GaussianKL(mean, full), reference, (n, k)


def gaussian_diagonal(g: torch.Generator, n: int, k: int) -> Made:
    mean = torch.randn(n, k, dtype=F64, generator=g)
    variances = 0.2 + torch.rand(k, dtype=F64, generator=g)
    return GaussianKL(mean, variances), lambda z: ((z - mean) ** 2 / variances).sum(1) / 2, (n, k)


def gaussian_of_one(g: torch.Generator, n: int, k: int) -> Made:
    mean = torch.randn(n, dtype=F64, generator=g)
    return GaussianKL(mean, 0.3), lambda z: (z - mean) ** 2 / 0.6, (n,)


LOSSES = [
    squared,
    squared_of_one,
    logistic,
    logistic_of_many,
    huber,
    poisson,
    classes,
    probabilities,
    gaussian,
    gaussian_diagonal,
    gaussian_of_one,
]
each_loss = pytest.mark.parametrize("make", LOSSES, ids=lambda make: make.__name__)


def matrices(curvature: Tensor, z: Tensor) -> Tensor:
    """(n, k, k), whatever form the loss gives its curvature."""
    if z.ndim == 1:
        return curvature.reshape(-1, 1, 1)
    return torch.diag_embed(curvature) if curvature.shape == z.shape else curvature


def by_autograd(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients and Hessians of each example's loss."""
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(z).sum(), z, create_graph=True)
    columns = []
    for j in range(1 if z.ndim == 1 else z.shape[1]):
        part = gradient if z.ndim == 1 else gradient[:, j]
        (column,) = torch.autograd.grad(part.sum(), z, retain_graph=True, allow_unused=True)
        columns.append(torch.zeros_like(z) if column is None else column)
    hessian = torch.stack([c.reshape(z.shape[0], -1) for c in columns], dim=1)
    return gradient.detach(), hessian.detach()


@each_loss
@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 5), k=st.integers(2, 4), scale=st.floats(0.1, 30)
)
@settings(max_examples=25, deadline=None)
def test_derivatives_are_those_of_the_value(make, seed: int, n: int, k: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    loss, reference, shape = make(g, n, k)
    z = scale * torch.randn(shape, dtype=F64, generator=g)
    if isinstance(loss, Huber):  # no second derivative at the kink
        assume(bool((((z - loss.y).abs() - loss.delta).abs() > 1e-6).all()))
    gradient, hessian = by_autograd(reference, z)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(loss.value(z), reference(z), **close)
    torch.testing.assert_close(loss.gradient(z), gradient, **close)
    torch.testing.assert_close(matrices(loss.curvature(z), z), hessian, **close)


@each_loss
@given(seed=st.integers(0, 10_000), k=st.integers(2, 4), scale=st.floats(0.01, 100))
@settings(max_examples=25, deadline=None)
def test_smoothness_bounds_the_curvature(make, seed: int, k: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    loss, _, shape = make(g, 6, k)
    z = scale * torch.randn(shape, dtype=F64, generator=g)
    if loss.smoothness is None:
        assert make is poisson
        return
    eigenvalues = torch.linalg.eigvalsh(matrices(loss.curvature(z), z))
    assert float(eigenvalues.max()) <= loss.smoothness * (1 + 1e-12)
    assert float(eigenvalues.min()) >= loss.strong_convexity * (1 - 1e-12) - 1e-12
    # and L bounds the gradient's change over any distance, convexity the other side
    w = z + scale * torch.randn(shape, dtype=F64, generator=g)
    d = (w - z).reshape(6, -1)
    change = (loss.gradient(w) - loss.gradient(z)).reshape(6, -1)
    assert (change.norm(dim=1) <= loss.smoothness * d.norm(dim=1) * (1 + 1e-9)).all()
    inner, squared_distance = (change * d).sum(1), d.square().sum(1)
    assert (inner >= loss.strong_convexity * squared_distance * (1 - 1e-9) - 1e-9 * scale**2).all()


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 5))
@settings(max_examples=25, deadline=None)
def test_likelihood_of_probabilities_is_the_logistic_loss_of_logits(
    seed: int, scale: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(6, dtype=F64, generator=g).sign()
    logits = scale * torch.randn(6, dtype=F64, generator=g)
    loss, plain, p = BinaryLikelihood(y), Logistic(y), torch.sigmoid(logits)
    against = torch.sigmoid(-y * logits)  # 1 − p has lost its digits where it is small
    lost = 1e-15 / (1 - against)
    assert ((loss.value(p) - plain.value(logits)).abs() <= 2 * lost + 1e-15).all()
    slope = p * (1 - p)
    near = lost < 1e-10
    torch.testing.assert_close(
        (loss.gradient(p) * slope)[near], plain.gradient(logits)[near], rtol=1e-9, atol=1e-12
    )
    gradient, hessian = by_autograd(loss.value, p)
    torch.testing.assert_close(loss.gradient(p), gradient)
    torch.testing.assert_close(loss.curvature(p), hessian.reshape(-1))


def test_likelihood_is_finite_where_a_label_is_thought_impossible() -> None:
    loss = BinaryLikelihood(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    z = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert torch.isfinite(loss.value(z)).all()
    assert loss.value(z)[2:].tolist() == [0.0, 0.0]
    assert torch.isfinite(loss.gradient(z)).all()
    assert loss.smoothness is None


@pytest.mark.parametrize(
    ("loss", "z", "curvature"),
    [
        (Logistic(torch.ones(1)), torch.zeros(1), 0.25),
        (CrossEntropy(torch.tensor([0])), torch.tensor([[0.0, 0.0, -1e4]]), 0.5),
        (Squared(torch.ones(1)), torch.zeros(1), 1.0),
        (Huber(torch.zeros(1)), torch.zeros(1), 1.0),
        (GaussianKL(torch.zeros(1, 2), torch.tensor([0.5, 4.0])), torch.zeros(1, 2), 2.0),
    ],
)
def test_smoothness_is_attained(loss: Loss, z: Tensor, curvature: float) -> None:
    """No smaller L would do."""
    assert loss.smoothness == pytest.approx(curvature, rel=1e-12)
    top = torch.linalg.eigvalsh(matrices(loss.curvature(z), z)).max()
    assert float(top) == pytest.approx(curvature, rel=1e-6)


BIG = 1e4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("y", [1.0, -1.0])
def test_logistic_at_the_far_ends(dtype: torch.dtype, y: float) -> None:
    z = torch.tensor([BIG, -BIG, 0.0, 19.999, 20.001, -40.0], dtype=dtype)
    loss = Logistic(torch.full((6,), y))
    exact = [max(0.0, -y * t) + math.log1p(math.exp(-abs(t))) for t in z.tolist()]
    slope = [-y / (1 + math.exp(min(y * t, 700.0))) for t in z.tolist()]
    eps = torch.finfo(dtype).eps
    assert loss.value(z).tolist() == pytest.approx(exact, rel=4 * eps, abs=1e-40)
    assert loss.gradient(z).tolist() == pytest.approx(slope, rel=50 * eps, abs=1e-37)
    assert torch.isfinite(loss.curvature(z)).all()
    assert (loss.curvature(z) >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0, 2]), torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]], dtype=F64)],
    ids=["classes", "probabilities"],
)
def test_cross_entropy_at_the_far_ends(dtype: torch.dtype, labels: Tensor) -> None:
    z = torch.tensor([[-BIG, BIG, 0.0], [BIG, BIG, -BIG]], dtype=dtype)
    loss = CrossEntropy(labels)
    p = labels.double() if labels.is_floating_point() else torch.eye(3, dtype=F64)[labels]
    exact = torch.logsumexp(z.double(), 1) - (p * z.double()).sum(1)
    torch.testing.assert_close(loss.value(z).double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        loss.gradient(z).double(), torch.softmax(z.double(), 1) - p, rtol=1e-6, atol=1e-6
    )
    assert torch.isfinite(loss.curvature(z)).all()
    # the same as with every logit shifted
    shift = torch.full_like(z, 1024.0)
    torch.testing.assert_close(loss.gradient(z + shift), loss.gradient(z), rtol=1e-6, atol=1e-6)


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_finite_at_the_far_ends_and_of_the_targets_type(
    make, dtype: torch.dtype, sign: float
) -> None:
    loss, _, shape = make(torch.Generator().manual_seed(0), 5, 3)
    z = torch.full(shape, sign * BIG, dtype=dtype)
    for answer in (loss.value(z), loss.gradient(z), loss.curvature(z)):
        assert answer.dtype == dtype
        if make is poisson and sign > 0:
            assert torch.isinf(answer).all()  # exp(1e4) has no finite value to give
        else:
            assert torch.isfinite(answer).all()
    assert loss.value(z).shape == (5,)
    assert loss.gradient(z).shape == shape


@each_loss
def test_rows_are_the_loss_of_some_examples(make) -> None:
    g = torch.Generator().manual_seed(0)
    loss, _, shape = make(g, 6, 3)
    z = torch.randn(shape, dtype=F64, generator=g)
    rows = torch.tensor([4, 0, 4])
    part = loss.rows(rows)
    assert type(part) is type(loss)
    assert part.smoothness == loss.smoothness
    for method in ("value", "gradient", "curvature"):
        whole = getattr(loss, method)(z)
        # (matrix products of other sizes may round otherwise in the last place)
        torch.testing.assert_close(
            getattr(part, method)(z[rows]), whole[rows], rtol=1e-14, atol=1e-14
        )


@each_loss
def test_other_shapes_are_not_broadcast(make) -> None:
    loss, _, shape = make(torch.Generator().manual_seed(0), 6, 3)
    for wrong in [(7, *shape[1:]), (*shape, 1), (1, *shape[1:])]:
        for method in ("value", "gradient"):
            with pytest.raises(to.BadArgument, match="shape"):
                getattr(loss, method)(torch.zeros(wrong, dtype=F64))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Squared(torch.tensor(1.0)), "one row per example; got a single number"),
        (lambda: Squared(torch.tensor([0.0, torch.nan, 1.0])), r"finite; rows \[1\] are not"),
        (lambda: Huber(torch.tensor([torch.inf])), r"finite; rows \[0\] are not"),
        (lambda: Huber(torch.zeros(2), delta=0.0), "delta=0.0 must be positive"),
        (lambda: Huber(torch.zeros(2), delta=math.nan), "delta=nan must be positive"),
        (lambda: Logistic(torch.tensor([0.0, 1.0])), r"\+1 or −1; found 0.0.*2\*y − 1"),
        (lambda: Logistic(torch.tensor([True, False])), r"\+1 or −1; found False"),
        (
            lambda: BinaryLikelihood(torch.tensor([0.0, 1.0])),
            r"BinaryLikelihood: labels must be \+1 or −1",
        ),
        (lambda: Poisson(torch.tensor([1.0, -2.0])), "must not be negative; found -2.0"),
        (lambda: CrossEntropy(torch.tensor([0, -1])), r"count classes from 0.*smallest -1"),
        (lambda: CrossEntropy(torch.zeros(2, 3, dtype=torch.long)), r"must have shape \(n,\)"),
        (lambda: CrossEntropy(torch.tensor([0.0, 1.0])), "must be probabilities.*pass integers"),
        (lambda: CrossEntropy(torch.ones(2, 3)), "non-negative with sum 1; row 0 has the sum 3 "),
        (
            lambda: CrossEntropy(torch.tensor([[0.5, 0.5], [0.4, 0.4], [0.9, 0.2]])),
            "sum 1; row 1 has the sum 0.8 and the smallest entry 0.4",
        ),
        (
            lambda: CrossEntropy(torch.tensor([[0.5, 0.5], [1.5, -0.5]])),
            "non-negative with sum 1; row 1 has the sum 1 and the smallest entry -0.5",
        ),
        (
            lambda: CrossEntropy(torch.tensor([[0.5, 0.55]], dtype=torch.float16)),
            "row 0 has the sum 1.0",
        ),
        (lambda: GaussianKL(torch.zeros(2, 2), -1.0), "positive definite; smallest eigenvalue -1"),
        (lambda: GaussianKL(torch.zeros(2, 2), math.nan), "covariance must be"),
        (lambda: GaussianKL(torch.zeros(2, 2), math.inf), "covariance must be"),
        (lambda: GaussianKL(torch.zeros(2, 2), torch.ones(3)), r"number, shape \(2,\) or \(2, 2\)"),
        (
            lambda: GaussianKL(torch.zeros(2, 2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])),
            "symmetric and positive definite",
        ),
    ],
)
def test_labels_are_checked(make, words: str) -> None:
    with pytest.raises(to.BadArgument, match=words):
        make()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("k", [3, 1000])
def test_a_teachers_rounded_probabilities_are_probabilities(dtype: torch.dtype, k: int) -> None:
    """They are made to sum to 1, so that the value is the one whose gradient is given."""
    g = torch.Generator().manual_seed(k)
    teacher = (3 * torch.randn(20, k, generator=g)).softmax(1).to(dtype)
    loss = CrossEntropy(teacher)
    assert loss.labels.dtype == (F64 if dtype == F64 else torch.float32)
    torch.testing.assert_close(loss.labels.sum(1), torch.ones(20, dtype=loss.labels.dtype))
    z = torch.randn(20, k, generator=g, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.value(z).sum(), z)
    torch.testing.assert_close(slope, loss.gradient(z.detach()), rtol=1e-6, atol=1e-6)


def test_rows_that_sum_to_nearly_one_give_value_and_gradient_of_one_loss() -> None:
    loss = CrossEntropy(torch.tensor([[0.50005, 0.5]], dtype=F64))
    z = torch.tensor([[3.0, -2.0]], dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss.value(z).sum(), z)
    torch.testing.assert_close(slope, loss.gradient(z.detach()), rtol=1e-13, atol=1e-15)
    assert torch.equal(loss.rows(torch.tensor([0])).labels, loss.labels)


def test_a_class_beyond_the_outputs_is_named() -> None:
    with pytest.raises(to.BadArgument, match="label 3 needs 4 outputs; the forward gives 3"):
        CrossEntropy(torch.tensor([0, 3])).value(torch.zeros(2, 3))


def test_labels_may_be_arrays_integers_and_require_gradients() -> None:
    z = torch.tensor([0.5, -0.5])
    assert Logistic(np.array([1, -1])).value(z).dtype == torch.float32
    assert CrossEntropy(np.array([0, 1])).value(torch.zeros(2, 2)).shape == (2,)
    y = torch.ones(2, requires_grad=True)
    assert not Squared(y).value(z).requires_grad


class Quartic(Loss):
    """A user's loss: value and gradient, no curvature."""

    def value(self, z: Tensor) -> Tensor:
        return z**4

    def gradient(self, z: Tensor) -> Tensor:
        return 4 * z**3

    def rows(self, index: Tensor) -> Quartic:
        return self


def test_a_loss_of_ones_own_needs_two_methods() -> None:
    point = to.LossOracle(Quartic()).query(torch.tensor([1.0, 2.0]))
    assert point.curvature is None
    assert point.smoothness is None
    assert point.gradients.tolist() == [4.0, 32.0]
    with pytest.raises(NotImplementedError, match="Quartic has no closed-form curvature"):
        Quartic().curvature(torch.zeros(1))
