"""Several tensors as targets: heads over one trunk."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from targetopt.distributions import Categorical, KLProximity
from targetopt.types import BadArgument, BadForward, MissingCapability, TargetPoint

N = 7


class TwoHeads(nn.Module):
    """Logits and a value, over one trunk or over two."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.trunk = nn.Sequential(nn.Linear(3, 6), nn.Tanh()).double()
        self.other = self.trunk if shared else nn.Sequential(nn.Linear(3, 5), nn.Tanh()).double()
        self.logits = nn.Linear(6, 3).double()
        self.value = nn.Linear(6 if shared else 5, 1).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "policy": self.logits(self.trunk(x)),
            "value": self.value(self.other(x)).squeeze(1),
        }


def data() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(N, 3).double(), torch.arange(N) % 3, torch.randn(N).double()


def heads() -> to.Heads:
    return to.Heads(policy=3, value=())


def parameters(*modules: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for m in modules for p in m.parameters()])


@pytest.mark.parametrize("kl", [False, True])
def test_heads_that_share_nothing_are_two_problems(kl: bool) -> None:
    """Steps of gradient descent on both at once are those on each alone, with each head's own η and divergence."""
    x, classes, numbers = data()
    inner = to.GradientDescent(0.05, max_steps=15)
    policy_divergence = KLProximity(Categorical(3)) if kl else to.SquaredEuclidean()
    both, alone = TwoHeads(shared=False), TwoHeads(shared=False)
    split = heads()
    rule = to.MirrorDescent(split.divergence(steps={"value": 0.4}, policy=policy_divergence))
    opt = to.SSO(both.parameters(), lr=0.5, rule=rule, inner=inner)
    of_policy = to.SSO(
        [*alone.trunk.parameters(), *alone.logits.parameters()],
        lr=0.5,
        rule=to.MirrorDescent(policy_divergence),
        inner=inner,
    )
    of_value = to.SSO(
        [*alone.other.parameters(), *alone.value.parameters()],
        lr=0.2,
        rule=to.GradientStep(),
        inner=inner,
    )
    losses = {"policy": to.losses.CrossEntropy(classes), "value": to.losses.Squared(numbers)}
    for _ in range(4):
        report = opt.step(split.forward(lambda: both(x)), split.oracle(**losses))
        first = of_policy.step(lambda: alone(x)["policy"], losses["policy"])
        second = of_value.step(lambda: alone(x)["value"], losses["value"])
        assert report.loss == pytest.approx(first.loss + second.loss, rel=1e-12)
        assert report.surrogate_decrease == pytest.approx(
            first.surrogate_decrease + second.surrogate_decrease, rel=1e-9
        )
        assert (report.oracle_calls, report.inner_steps) == (1, 15)
    torch.testing.assert_close(parameters(both), parameters(alone), rtol=0, atol=1e-12)


def test_the_first_inner_gradient_is_autograd_s_on_a_shared_trunk() -> None:
    x, classes, numbers = data()
    model = TwoHeads(shared=True)
    before = copy.deepcopy(model)
    out = before(x)
    loss = nn.functional.cross_entropy(out["policy"], classes) + 0.5 * (
        (out["value"] - numbers).square().mean()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    split = heads()
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.GradientDescent(0.3, max_steps=1))
    oracle = split.oracle(policy=to.losses.CrossEntropy(classes), value=to.losses.Squared(numbers))
    report = opt.step(split.forward(lambda: model(x)), oracle)
    assert report.loss == pytest.approx(loss.item(), rel=1e-12)
    for moved, was in zip(model.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(
            moved.detach(), was.detach() - 0.3 * was.grad, rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("inner", [to.LBFGS(max_steps=60), to.GaussNewton(max_steps=30)])
def test_euclidean_heads_are_one_matrix(inner: to.Inner) -> None:
    """Without divergences of their own, heads side by side are a `GradientStep` on the joined targets."""
    x, classes, numbers = data()
    ends = []
    split = heads()
    for rule in (to.GradientStep(), to.MirrorDescent(split.divergence())):
        model = TwoHeads(shared=True)
        opt = to.SSO(model.parameters(), lr=0.5, rule=rule, inner=inner, weight_decay=1e-2)
        losses = {"policy": to.losses.CrossEntropy(classes), "value": to.losses.Squared(numbers)}
        for _ in range(2):
            opt.step(split.forward(lambda m=model: m(x)), split.oracle(**losses))
        ends.append(split.forward(lambda m=model: m(x))().detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_one_function_may_know_all_heads() -> None:
    """A loss of all heads together, through autograd and without it, has the answer of one oracle for each."""
    x, classes, numbers = data()
    split = heads()
    z = split.forward(lambda: TwoHeads(shared=True)(x))().detach()

    def together(policy: Tensor, value: Tensor) -> Tensor:
        entropy = nn.functional.cross_entropy(policy, classes, reduction="none")
        return entropy + 0.5 * (value - numbers).square()

    each = split.oracle(policy=to.losses.CrossEntropy(classes), value=to.losses.Squared(numbers))
    one = to.LossOracle(lambda z: together(**split.split(z)))
    torch.testing.assert_close(each.query(z).gradients, one.query(z).gradients, rtol=0, atol=1e-12)
    torch.testing.assert_close(each.query(z).losses, one.query(z).losses, rtol=0, atol=1e-12)
    found = each.query(z)
    assert found.value is not None
    torch.testing.assert_close(found.value(2 * z), together(**split.split(2 * z)))
    assert found.smoothness == 1.0
    assert torch.equal(split.join(split.split(z)), z)


def test_mini_batches_and_steps_by_rows() -> None:
    x, classes, numbers = data()
    split, ends = heads(), []
    losses = {"policy": to.losses.CrossEntropy(classes), "value": to.losses.Squared(numbers)}
    for batch in ({"max_steps": 3}, {"epochs": 3, "batch_size": N}):
        model = TwoHeads(shared=True)
        rule = to.MirrorDescent(split.divergence(steps={"policy": 2.0}))
        inner = to.Torch(lambda p: torch.optim.SGD(p, 0.1), **batch)
        opt = to.SSO(model.parameters(), lr=0.5, rule=rule, inner=inner)
        scales = torch.linspace(0.5, 1.5, N)
        opt.step(split.forward(to.ByRows(model, x)), split.oracle(**losses), scales=scales)
        ends.append(parameters(model))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_what_is_wrong_is_named() -> None:
    split = heads()
    good = {"policy": torch.zeros(N, 3), "value": torch.zeros(N)}
    with pytest.raises(BadForward, match=r"value must have the shape \(7,\)"):
        split.join({**good, "value": torch.zeros(N, 1)})
    with pytest.raises(BadForward, match="one tensor for each of policy, value"):
        split.join({"policy": torch.zeros(N, 3)})
    with pytest.raises(BadForward, match="one tensor for each of policy, value"):
        split.join((torch.zeros(N, 3),))
    with pytest.raises(BadForward, match="as a tuple or by name"):
        split.join(torch.zeros(N, 4))
    with pytest.raises(BadForward, match="one type"):
        split.join({**good, "value": torch.zeros(N).double()})
    with pytest.raises(BadForward, match="reads targets of shape"):
        split.split(torch.zeros(N, 5))
    with pytest.raises(BadArgument, match="nothing for value"):
        split.oracle(policy=to.losses.Squared(torch.zeros(N, 3)))
    with pytest.raises(BadArgument, match="no head critic"):
        split.divergence(critic=to.SquaredEuclidean())
    with pytest.raises(BadArgument, match="positive and finite"):
        split.divergence(steps={"value": 0.0})
    with pytest.raises(BadArgument, match="shape of one row"):
        to.Heads(policy=0)

    class Weighted:
        def query(self, z: Tensor) -> TargetPoint:
            return TargetPoint(z, None, torch.zeros_like(z), weights=torch.ones(len(z)))

    with pytest.raises(MissingCapability, match="weights or scales"):
        split.oracle(policy=Weighted(), value=Weighted()).query(split.join(good))
