"""Everything bought so far: the surrogate is the loss of all known rows, and nothing else."""

import pytest
import torch
from torch import Tensor

import targetopt as to
from targetopt.oracle.teachers import Merged, TailBucket
from targetopt.rules.bought import KnownRows

N, K = 12, 3


def data() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    x = torch.randn(N, K, dtype=torch.float64, generator=made)
    return x, torch.randn(N, dtype=torch.float64, generator=made)


def bought(
    batches: list[list[int]], labels: list[Tensor] | None = None, **options: object
) -> tuple[Tensor, to.SSO]:
    """A linear model after buying these batches, one after the other."""
    x, y = data()
    w = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([w], rule=to.Bought(), inner=to.LBFGS(max_steps=40), **options)
    for number, places in enumerate(batches):
        rows = torch.tensor(places)
        own = y[rows] if labels is None else labels[number]
        opt.step(
            lambda rows=rows: x[rows] @ w,
            to.losses.Squared(own),
            index=rows,
            regularise_on=lambda: x @ w,
        )
    return w.detach(), opt


@pytest.mark.parametrize("batches", [[[3, 0, 7, 9]], [[3, 0], [7, 9]], [[3, 0], [7, 3], [9, 0]]])
def test_it_ends_at_the_least_squares_fit_of_the_known_rows(batches: list[list[int]]) -> None:
    x, y = data()
    known = sorted({row for batch in batches for row in batch})
    best = torch.linalg.lstsq(x[known], y[known]).solution
    torch.testing.assert_close(bought(batches)[0], best, rtol=1e-7, atol=1e-9)


def test_an_example_that_is_asked_about_again_has_its_newest_label() -> None:
    x, y = data()
    old, new = y[[0, 1, 2, 3]] + 5.0, y[[1, 0, 2, 3]]
    found, _ = bought([[0, 1, 2, 3], [1, 0, 2, 3]], [old, new])
    best = torch.linalg.lstsq(x[[1, 0, 2, 3]], new).solution
    torch.testing.assert_close(found, best, rtol=1e-7, atol=1e-9)


def test_a_finite_lr_is_a_ridge_around_the_last_point() -> None:
    x, y = data()
    known, eta = [0, 4, 5], 0.7
    part = x[known]
    # argmin (1/k) Σ ½(z_i − y_i)² + (1/2η)(1/n) Σ z_i² over z = Xw
    matrix = part.T @ part / len(known) + x.T @ x / (eta * N)
    best = torch.linalg.solve(matrix, part.T @ y[known] / len(known))
    torch.testing.assert_close(bought([known], lr=eta)[0], best, rtol=1e-7, atol=1e-9)


def test_on_full_batches_it_is_the_loss_itself_bit_for_bit() -> None:
    x, y = data()
    found = []
    for rule in (to.Bought(), to.Proximal()):
        w = torch.zeros(K, dtype=torch.float64, requires_grad=True)
        opt = to.SSO([w], lr=float("inf"), rule=rule, inner=to.LBFGS(max_steps=3))
        for _ in range(3):
            opt.step(lambda w=w: x @ w, to.losses.Logistic(y.sign()))
        found.append(w.detach())
    assert torch.equal(*found)


LOSSES = {
    "squared": lambda made: to.losses.Squared(torch.randn(5, dtype=torch.float64, generator=made)),
    "logistic": lambda made: to.losses.Logistic(torch.tensor([1.0, -1, 1, 1, -1]).double()),
    "classes": lambda made: to.losses.CrossEntropy(torch.tensor([0, 2, 1, 0, 3])),
    "probabilities": lambda made: to.losses.CrossEntropy(
        torch.rand(5, 4, dtype=torch.float64, generator=made).softmax(dim=1)
    ),
    "ridged": lambda made: to.losses.Ridged(to.losses.CrossEntropy(torch.tensor([0, 2, 1, 0, 3])), 0.3),
    "policy": lambda made: to.losses.GaussianKL(torch.randn(5, 4, dtype=torch.float64, generator=made), 0.5),
    "top-k": lambda made: TailBucket(torch.tensor([[1, 2]] * 5), torch.tensor([[0.5, 0.2]] * 5).double()),
    "merged": lambda made: Merged(torch.tensor([[1, 2, 0]] * 5), torch.tensor([[0.5, 0.2, 0.1]] * 5).double()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_labels_put_together_from_two_batches_are_those_of_one(name: str) -> None:
    made = torch.Generator().manual_seed(0)
    loss = LOSSES[name](made)
    shape = (5,) if name in ("squared", "logistic") else (5, 4)
    z = torch.randn(shape, dtype=torch.float64, generator=made)
    first, second = loss.rows(torch.tensor([4, 1])), loss.rows(torch.tensor([0]))
    joined = {k: torch.cat([a, second.tables()[k]]) for k, a in first.tables().items()}
    together, places = first.with_tables(joined), torch.tensor([4, 1, 0])
    assert torch.equal(together.value(z[places]), loss.value(z)[places])
    assert torch.equal(together.gradient(z[places]), loss.gradient(z)[places])

    whole = KnownRows(together, places, 5)
    assert whole.value(z).mean() == pytest.approx(float(loss.value(z)[places].mean()), rel=1e-14)
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(whole.value(leaf).sum(), leaf)
    torch.testing.assert_close(whole.gradient(z), slope, rtol=1e-12, atol=1e-14)
    assert not whole.gradient(z)[[2, 3]].any()


def test_curvature_is_the_derivative_of_the_gradient() -> None:
    made = torch.Generator().manual_seed(0)
    whole = KnownRows(to.losses.CrossEntropy(torch.tensor([0, 2])), torch.tensor([3, 1]), 5)
    z, v = (torch.randn(5, 4, dtype=torch.float64, generator=made) for _ in range(2))
    leaf = z.clone().requires_grad_()
    (product,) = torch.autograd.grad((whole.gradient(leaf) * v).sum(), leaf)
    torch.testing.assert_close(
        whole.curve(whole.evaluate(z).metric, v), product, rtol=1e-12, atol=1e-14
    )


def test_a_linear_fit_needs_no_more_than_one_epoch_of_labels() -> None:
    x, y = data()
    options = {"loss": to.losses.Logistic, "weight_decay": 0.1, "batch_size": 4}
    once = to.linear.fit(
        x, y.sign(), rule=to.Bought(), inner=to.LBFGS(max_steps=100), epochs=1, **options
    )
    full = to.linear.fit(
        x, y.sign(), rule=to.Newton(), lr=1.0, epochs=40, **{**options, "batch_size": None}
    )
    assert once.counts.oracle_calls == 3
    torch.testing.assert_close(once.theta, full.theta, rtol=1e-5, atol=1e-7)


class Secretive(to.losses.Loss):
    """A loss that does not say where its labels are."""

    def value(self, z: Tensor) -> Tensor:
        return 0.5 * z**2

    def gradient(self, z: Tensor) -> Tensor:
        return z

    def rows(self, index: Tensor) -> "Secretive":
        return self


def test_what_cannot_be_done_is_refused_with_the_way_out() -> None:
    x, y = data()
    w = torch.zeros(K, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([w], rule=to.Bought(), inner=to.LBFGS(max_steps=5))
    rows = torch.tensor([0, 1])

    def step(oracle: object, **options: object) -> None:
        opt.step(lambda: x[rows] @ w, oracle, **options)

    everything = {"index": rows, "regularise_on": lambda: x @ w}
    with pytest.raises(to.errors.MissingCapability, match="has 2 of them"):
        step(to.losses.Squared(y[rows]), index=torch.tensor([0, 5]))
    with pytest.raises(to.errors.BadArgument, match="Bought needs index="):
        step(to.losses.Squared(y[rows]), regularise_on=lambda: x @ w)
    with pytest.raises(to.errors.MissingCapability, match="by_rows"):
        step(Secretive(), **everything)
    with pytest.raises(to.errors.MissingCapability, match="needs the oracle's revealed"):
        step(to.GradientOracle(lambda z: (z**2, 2 * z)), **everything)
    assert not w.any()
    step(to.losses.Squared(y[rows]), **everything)
    with pytest.raises(to.errors.BadArgument, match="The examples must stay the same"):
        step(to.losses.Squared(y[rows]), index=rows, regularise_on=lambda: x[:5] @ w)


@pytest.mark.parametrize(
    "spoil",
    [{"known": None}, {"labels y": torch.zeros(3)}, {"labels y": torch.full((N,), torch.nan)}],
)
def test_damaged_states_are_refused(spoil: dict) -> None:
    _, opt = bought([[0, 1]])
    state = opt.state_dict()
    inside = next(v for v in _dictionaries(state) if "known" in v)
    inside.update(spoil)
    if spoil.get("known", 1) is None:
        del inside["known"]
    fresh = to.SSO(
        [torch.zeros(K, dtype=torch.float64, requires_grad=True)],
        rule=to.Bought(),
        inner=to.LBFGS(max_steps=40),
    )
    with pytest.raises(to.errors.BadArgument, match="Bought"):
        fresh.load_state_dict(state)


def _dictionaries(value: object) -> list[dict]:
    if not isinstance(value, dict):
        return []
    return [value, *(inner for part in value.values() for inner in _dictionaries(part))]
