"""A loss is one definition: its class, its functions of one target, and what it offers to whole fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from targetopt import losses
from targetopt.losses import (
    CrossEntropy,
    GaussianKL,
    Huber,
    Logistic,
    OnArrays,
    Poisson,
    Ridged,
    Squared,
)

F64 = torch.float64
LABELS = {
    Squared: st.floats(-1e4, 1e4),
    Logistic: st.sampled_from([-1.0, 1.0]),
    Huber: st.floats(-1e4, 1e4),
    Poisson: st.integers(0, 10**6).map(float),
}
POINTWISE = [
    each
    for each in vars(losses).values()
    if isinstance(each, type) and issubclass(each, losses.Loss) and vars(each).get("scalar")
]


def test_every_loss_with_scalar_functions_is_tested_here():
    assert set(POINTWISE) == set(LABELS)


@pytest.mark.parametrize("kind", POINTWISE)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_class_and_scalar_functions_are_one_definition(kind, data):
    extreme = st.one_of(
        st.floats(-1e4, 1e4),
        st.sampled_from([0.0, -0.0, 1e-300, -1e-300, 36.7, -36.7, 709.0, -745.0, 1e4, -1e4]),
    )
    z, y = data.draw(extreme), data.draw(LABELS[kind])
    options = [data.draw(st.floats(1e-3, 1e3))] if kind is Huber else []
    loss = kind(torch.tensor([y], dtype=F64), *options)
    form = loss.scalar_form()
    assert form is not None
    assert form.numbers == tuple(options)
    assert form.ridge == 0.0
    at = torch.tensor([z], dtype=F64)
    with np.errstate(over="ignore"):
        scalar = [function(z, y, *form.numbers) for function in form.scalar]
    vector = [float(function(at)) for function in (loss.value, loss.gradient, loss.curvature)]
    # The difference of two numbers carries their rounding: exp(z) − yz and z − y may be near zero.
    size = abs(z) + abs(y) + abs(y * z) + (np.exp(z) if kind is Poisson and z < 709 else 0.0)
    for one, other in zip(scalar, vector, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=4e-15, atol=1e-300 + 4e-16 * size * (kind in (Squared, Huber, Poisson))
        )


def test_ridged_composes_and_subclasses_inherit_no_functions():
    bare = Logistic(torch.tensor([1.0, -1.0]))
    form = Ridged(Ridged(bare, 0.5), 0.25).scalar_form()
    assert form is not None
    assert form.ridge == 0.75
    assert form.scalar is Logistic.scalar

    class Other(Logistic):
        pass

    class OtherRidged(Ridged):
        pass

    assert Other(bare.y).scalar_form() is None
    assert OtherRidged(bare, 0.5).scalar_form() is None
    assert Ridged(Other(bare.y), 0.5).scalar_form() is None
    assert Squared(torch.zeros(3, 2)).scalar_form() is None


def test_a_mini_batch_of_a_subclass_is_of_the_subclass():
    class Half(Squared):
        def value(self, z):
            return 0.5 * super().value(z)

    part = Half(torch.tensor([0.0, 1.0, 2.0])).rows(torch.tensor([2, 0]))
    assert type(part) is Half
    assert part.y.tolist() == [2.0, 0.0]
    ridged = Ridged(Half(torch.zeros(3)), 1.0).rows(torch.tensor([1]))
    assert type(ridged.loss) is Half
    assert ridged.mu == 1.0


def made(n: int = 7, k: int = 3):
    g = torch.Generator().manual_seed(0)
    y = torch.randn(n, dtype=F64, generator=g)
    return [
        (Squared(y), (n,)),
        (Logistic(y.sign()), (n,)),
        (Huber(y, 0.5), (n,)),
        (Poisson(torch.randint(5, (n,), generator=g)), (n,)),
        (CrossEntropy(torch.arange(n) % k), (n, k)),
        (CrossEntropy(torch.randn(n, k, dtype=F64, generator=g).softmax(1)), (n, k)),
        (GaussianKL(torch.randn(n, k, dtype=F64, generator=g), 0.3), (n, k)),
        (Ridged(Logistic(y.sign()), 0.1), (n,)),
        (Ridged(CrossEntropy(torch.arange(n) % k), 0.1), (n, k)),
    ]


@pytest.mark.parametrize(("loss", "shape"), made(), ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_one_pass_is_the_three_calls(loss, shape, scale):
    g = torch.Generator().manual_seed(1)
    z = scale * torch.randn(shape, dtype=F64, generator=g)
    u = torch.randn((2, *shape), dtype=F64, generator=g)
    at = OnArrays(loss).evaluate(z.numpy())
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(at.values, (loss.value(z) - loss.lower_bound()).numpy(), **close)
    np.testing.assert_allclose(at.gradient, loss.gradient(z).numpy(), **close)
    full = loss.newton_metric(z)
    matrices = torch.diag_embed(full.reshape(len(z), -1)) if full.ndim == z.ndim else full
    flat = u.reshape(2, len(z), -1)
    expected = torch.einsum("nij,bnj->bni", matrices, flat).reshape(u.shape)
    np.testing.assert_allclose(OnArrays(loss).curve(at.metric, u.numpy()), expected, **close)
    diagonal = matrices.diagonal(dim1=1, dim2=2).reshape(shape)
    np.testing.assert_allclose(OnArrays(loss).diagonal(at.metric), diagonal, **close)
    assert (at.values >= -1e-9 * np.abs(at.values).max()).all()


def test_huber_begins_at_the_median():
    loss = OnArrays(Huber(torch.tensor([5.0, -1.0, 2.0, 100.0], dtype=F64)))
    assert loss.best_constant(np.array([0.2, 0.2, 0.4, 0.2])) == 2.0


EXACTLY_BEST = [each for each in made()[:7] if type(each[0]) is not Huber]


@pytest.mark.parametrize(("loss", "shape"), EXACTLY_BEST, ids=lambda x: type(x).__name__)
def test_the_best_constant_is_no_worse_than_its_neighbours(loss, shape):
    rng = np.random.default_rng(0)
    weights = rng.random(shape[0])
    weights /= weights.sum()
    best = OnArrays(loss).best_constant(weights)

    def objective(constant):
        return weights @ OnArrays(loss).evaluate(np.zeros(shape) + constant).values

    for _ in range(20):
        assert objective(best) <= objective(best + 1e-3 * rng.normal(size=shape[1:])) + 1e-12


def test_huber_majorises_with_a_curvature_of_its_own_name():
    loss = Huber(torch.zeros(1, dtype=F64), delta=0.5)
    for z in (-3.0, -0.2, 0.4, 5.0):
        at = torch.tensor([z], dtype=F64)
        for other in torch.linspace(-6, 6, 49, dtype=F64):
            step = other - at
            bound = loss.value(at) + loss.gradient(at) * step
            bound += 0.5 * loss.majorising_curvature(at) * step**2
            assert float(loss.value(other.reshape(1))) <= float(bound) + 1e-12


def test_the_conjugate_of_the_logistic_loss_touches_it():
    loss = Logistic(torch.tensor([1.0, -1.0, 1.0], dtype=F64))
    z = torch.tensor([0.3, 4.0, -40.0], dtype=F64)
    slopes = loss.gradient(z)
    torch.testing.assert_close(loss.conjugate(slopes), slopes * z - loss.value(z))
    assert loss.conjugate(torch.tensor([-1.0, 0.0, 0.0], dtype=F64)).tolist() == [0.0, 0.0, 0.0]
