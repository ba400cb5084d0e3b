"""Targets on a support with a tail bucket are the whole vocabulary's, without the whole vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from targetopt.oracle.teachers import Merged, TailBucket
from targetopt.vocabulary import best_classes, on_support

V, D, N, K = 40, 6, 9, 5


def student(kind: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Linear, Tensor]:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, D), nn.Tanh()).to(kind)
    return body, nn.Linear(D, V).to(kind), torch.randn(N, 4, dtype=kind)


def taught(kind: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """What a teacher says of each position."""
    torch.manual_seed(1)
    return best_classes(torch.randn(N, D, dtype=kind), torch.randn(V, D, dtype=kind), K)


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_losses_and_gradients_are_those_of_the_dense_logits(
    kind: torch.dtype, tolerance: float
) -> None:
    body, head, x = student(kind)
    support, logs = taught(kind)
    params = [*body.parameters(), *head.parameters()]
    dense = head(body(x))
    whole = TailBucket(support, logs.exp())
    expected = torch.autograd.grad(dense, params, whole.gradient(dense.detach()))
    z = on_support(body(x), head.weight, support, head.bias, rows=4)
    merged = Merged(support, logs.exp())
    found = torch.autograd.grad(z, params, merged.gradient(z.detach()))
    assert z.shape == (N, K + 1)
    assert torch.allclose(merged.value(z), whole.value(dense), rtol=tolerance)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def test_the_gradient_is_student_minus_teacher() -> None:
    body, head, x = student()
    support, logs = taught()
    z = on_support(body(x), head.weight, support, head.bias).detach()
    q = head(body(x)).softmax(1).gather(1, support)
    gradient = Merged(support, logs.exp()).gradient(z)
    assert torch.allclose(gradient[:, :-1], q - logs.exp(), rtol=1e-12)
    assert torch.allclose(gradient.sum(1), torch.zeros(N, dtype=z.dtype), atol=1e-12)


def test_pieces_change_nothing_and_no_piece_is_larger() -> None:
    body, head, x = student()
    support, _ = taught()
    whole = on_support(body(x), head.weight, support, head.bias, rows=100)
    assert torch.equal(whole, on_support(body(x), head.weight, support, head.bias, rows=100))
    for rows in (1, 2, 4):
        z = on_support(body(x), head.weight, support, head.bias, rows=rows)
        assert torch.allclose(z, whole, rtol=1e-13, atol=1e-13)
    largest = 0

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            answer = f(*args, **(kwargs or {}))
            if isinstance(answer, Tensor) and answer.ndim == 2 and answer.shape[1] == V:
                largest = max(largest, answer.shape[0])
            return answer

    with Watching():
        on_support(body(x), head.weight, support, head.bias, rows=2)
    assert largest == 2


@pytest.mark.parametrize("inner", [to.LBFGS(max_steps=5), to.GaussNewton(max_steps=2)])
@pytest.mark.parametrize("rule", [to.GradientStep(), to.Newton(), to.Proximal()])
def test_every_part_works_on_merged_targets(inner: to.Inner, rule: to.Rule) -> None:
    body, head, x = student()
    support, logs = taught()
    loss = Merged(support, logs.exp())
    opt = to.SSO([*body.parameters(), *head.parameters()], lr=0.3, rule=rule, inner=inner)
    forward = lambda: on_support(body(x), head.weight, support, head.bias, rows=4)  # noqa: E731
    reports = [opt.step(forward, loss) for _ in range(4)]
    assert reports[-1].loss < reports[0].loss


def test_a_teacher_that_answers_with_its_best_classes() -> None:
    support, logs = taught()

    def teacher(places: list[int]) -> tuple[list[Any], list[Any]]:
        return [support[i].tolist() for i in places], [logs[i].tolist() for i in places]

    answers = to.teachers.from_top_k(V, merged=True)
    with to.RemoteOracle(teacher, answers=answers) as oracle:
        point = oracle.about(list(range(N))).query(torch.zeros(N, K + 1, dtype=torch.float64))
        assert torch.equal(point.revealed.support, support)  # type: ignore[union-attr]
        assert torch.allclose(point.revealed.labels[:, :-1], logs.exp())  # type: ignore[union-attr]
        rows = point.revealed.rows(torch.tensor([2, 0]))  # type: ignore[union-attr]
        assert torch.equal(rows.support, support[[2, 0]])
        with pytest.raises(to.BadAnswer, match="must have 6 columns"):
            oracle.about(list(range(N))).query(torch.zeros(N, V, dtype=torch.float64))


def test_hidden_states_as_targets_with_the_head_inside_the_oracle() -> None:
    """The other way: nothing of the vocabulary's size leaves the oracle, which has the head and the labels."""
    body, head, x = student()
    labels = torch.arange(N)

    def losses(hidden: Tensor) -> Tensor:
        return nn.functional.cross_entropy(head(hidden), labels, reduction="none")

    opt = to.SSO(body.parameters(), lr=0.5, inner=to.LBFGS(max_steps=5))
    reports = [opt.step(lambda: body(x), losses) for _ in range(4)]
    assert reports[-1].loss < reports[0].loss


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(2, 3, 4)}, "Flatten batch and positions"),
        ({"support": torch.zeros(3, 2, dtype=torch.long)}, "the classes of each"),
        ({"support": torch.zeros(2, 2)}, "must be whole numbers"),
        ({"support": torch.zeros(2, 7, dtype=torch.long)}, "leaves no tail"),
        ({"rows": 0}, "rows=0 must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    fitting = {
        "hidden": torch.zeros(2, 4),
        "weight": torch.zeros(7, 4),
        "support": torch.zeros(2, 2, dtype=torch.long),
    }
    with pytest.raises(to.BadArgument, match=message):
        on_support(**{**fitting, **change})
