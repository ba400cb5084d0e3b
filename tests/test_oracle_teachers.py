"""Teachers: labels, probabilities, and the best few log-probabilities with a bucket for the rest."""

from __future__ import annotations

import pytest
import torch

import targetopt as to
from targetopt.oracle.progress import Progress
from targetopt.oracle.teachers import TailBucket

CLASSES, K, N = 7, 3, 12
INNER = to.GradientDescent(step_size=0.1, max_steps=2)


def taught(seed=0):
    """A teacher's logits, its probabilities, and its best classes."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(N, CLASSES, dtype=torch.float64, generator=generator)
    p = logits.softmax(dim=1)
    best = p.topk(K, dim=1)
    z = torch.randn(N, CLASSES, dtype=torch.float64, generator=generator)
    return p, best.indices, best.values, z


def merged(loss: TailBucket, z: torch.Tensor) -> torch.Tensor:
    """The definition, row by row: cross-entropy after all classes outside the best are one class."""
    q = z.softmax(dim=1)
    values = []
    for row in range(len(z)):
        inside = loss.best[row]
        p = loss.probabilities[row]
        rest = 1 - p.sum()
        tail = 1 - q[row, inside].sum()
        values.append(-(p * q[row, inside].log()).sum() - rest * tail.log())
    return torch.stack(values)


def test_the_tail_bucket_is_the_cross_entropy_of_merged_classes():
    _, best, p, z = taught()
    loss = TailBucket(best, p)
    torch.testing.assert_close(loss.value(z), merged(loss, z), rtol=1e-10, atol=1e-12)


def test_its_gradient_is_that_of_its_value():
    _, best, p, z = taught()
    loss = TailBucket(best, p)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(merged(loss, leaf).sum(), leaf)
    torch.testing.assert_close(loss.gradient(z), gradient, rtol=1e-9, atol=1e-12)
    assert loss.gradient(z).sum(dim=1).abs().max() < 1e-14  # softmax does not see a common shift


def test_it_is_smooth_with_one_half():
    _, best, p, z = taught()
    loss = TailBucket(best, p)
    for row in range(N):
        one = loss.rows(torch.tensor([row]))
        hessian = torch.autograd.functional.hessian(
            lambda t, one=one: merged(one, t[None])[0], z[row]
        )
        assert torch.linalg.eigvalsh(hessian).abs().max() <= loss.smoothness + 1e-12


def test_with_all_but_one_class_it_is_the_whole_cross_entropy():
    p, _, _, z = taught()
    best = p.topk(CLASSES - 1, dim=1)
    loss, whole = TailBucket(best.indices, best.values), to.losses.CrossEntropy(p)
    torch.testing.assert_close(loss.value(z), whole.value(z), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss.gradient(z), whole.gradient(z), rtol=1e-10, atol=1e-12)


def test_a_student_that_agrees_with_the_teacher_has_no_gradient():
    p, best, values, _ = taught()
    assert TailBucket(best, values).gradient(p.log()).abs().max() < 1e-14


def test_it_is_stable_at_extreme_targets():
    _, best, p, _ = taught()
    loss = TailBucket(best, p)
    far = torch.zeros(N, CLASSES, dtype=torch.float64).scatter(1, best[:, :1], 1e4)
    assert torch.isfinite(loss.value(far)).all()
    assert torch.isfinite(loss.gradient(far)).all()
    certain = TailBucket(best[:, :1], torch.ones(N, 1, dtype=torch.float64))  # no tail at all
    assert torch.equal(certain.value(far), torch.zeros(N, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["labels", "probabilities", "top-k"])
def test_a_remote_teacher_trains_as_the_loss_does(kind):
    p, best, values, _ = taught()
    inputs = torch.arange(N, dtype=torch.float64)[:, None]

    def rows(given):
        return given[:, 0].long()

    form, teacher, loss = {
        "labels": (
            to.teachers.from_labels(to.losses.CrossEntropy),
            lambda given: best[rows(given), 0],
            to.losses.CrossEntropy(best[:, 0]),
        ),
        "probabilities": (
            to.teachers.from_probabilities(),
            lambda given: p[rows(given)],
            to.losses.CrossEntropy(p),
        ),
        "top-k": (
            to.teachers.from_top_k(CLASSES),
            lambda given: (best[rows(given)], values[rows(given)].log()),
            TailBucket(best, values.log().exp()),
        ),
    }[kind]
    weights = []
    with to.RemoteOracle(teacher, answers=form, batch=5) as remote:
        for oracle in (remote.about(inputs), loss):
            torch.manual_seed(0)
            model = torch.nn.Sequential(
                torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES)
            )
            model.double()
            opt = to.SSO(model.parameters())  # L is known: lr=None works
            losses = [
                opt.step(lambda model=model: model(inputs / N), oracle).loss for _ in range(4)
            ]
            assert losses[-1] < losses[0]
            weights.append([w.detach().clone() for w in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (([[7]], [[-1.0]]), "from 0 to 6"),
        (([[1, 1]], [[-1.0, -1.0]]), "twice"),
        (([[1, 2]], [[-0.1, -0.2]]), "more than 1"),
        (([[0.5]], [[-1.0]]), "whole numbers"),
        (([list(range(7))], [[-3.0] * 7]), "from_probabilities"),
        (([[1]], [[-1.0, -2.0]]), "shape"),
    ],
)
def test_bad_top_k_answers_are_named(answer, message):
    form = to.teachers.from_top_k(CLASSES)
    retries = to.Retries(attempts=1)
    with (
        to.RemoteOracle(lambda given: answer, answers=form, retries=retries) as oracle,
        pytest.raises(to.TargetoptError, match=message),
    ):
        oracle.about(["prompt"]).query(torch.zeros(1, CLASSES))


def test_labels_that_the_loss_refuses_are_not_believed(tmp_path):
    form = to.teachers.from_labels(to.losses.Logistic)
    labels = [[0.0, 1.0], [-1.0, 1.0]]
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(
            lambda x: labels.pop(0), answers=form, ledger=ledger, retries=to.Retries(first_wait=0.0)
        ) as oracle,
    ):
        point = oracle.about(["a", "b"]).query(torch.zeros(2))
    assert point.gradients.tolist() == [0.5, -0.5]


def test_a_teacher_wants_inputs():
    form = to.teachers.from_labels(to.losses.Squared)
    with to.RemoteOracle(lambda x: x, answers=form) as oracle:
        with pytest.raises(to.BadArgument, match=r"oracle\.about\(x\)"):
            oracle.query(torch.zeros(3))
        with pytest.raises(to.BadArgument, match="2 rows and the targets have 3"):
            oracle.about(["a", "b"]).query(torch.zeros(3))


# -- progress -------------------------------------------------------------------------------------------


def test_progress_is_told_while_waiting():
    seen: list[Progress] = []

    def simulator(z):
        return z**2 / 2, z

    with to.RemoteOracle(
        simulator,
        batch=2,
        concurrency=1,
        price=0.5,
        budget=to.Budget(money=10),
        progress=seen.append,
    ) as oracle:
        oracle.query(torch.arange(6.0))
        oracle.query(torch.arange(4.0))
    last = seen[-1]
    assert (last.questions, last.calls, last.rows, last.rows_waiting) == (2, 5, 10, 0)
    assert seen[0].rows_waiting == 6
    assert last.rate > 0
    assert last.as_dict()["spent"] == 5.0
    assert str(last).startswith("10 rows in 5 calls, ")
    assert last.summary() == "spent 5.00 of 10.00: 10 rows, 10 of them asked in 5 calls"


def test_what_failed_does_not_wait_any_more():
    def simulator(z):
        raise ConnectionError("no")

    with to.RemoteOracle(simulator, batch=2, retries=0) as oracle:
        with pytest.raises(to.TargetoptError):
            oracle.query(torch.arange(6.0))
        assert oracle.progress().rows_waiting == 0


def test_an_expert_is_asked_as_a_teacher_and_paid_once(tmp_path):
    """A run of imitation whose expert is paid for: the numbers of the expert itself, and no state paid twice."""
    from imitation_parts import PointMass, spring
    from targetopt import imitation as im

    def run(expert):
        return im.train(
            PointMass, expert, rounds=2, states_per_round=30, copies=3, held_out=0,
            evaluate_every=0, progress=False, rule=to.GradientStep(), inner=INNER,
        )  # fmt: skip

    near = run(spring)
    answers = to.teachers.from_labels(to.losses.Squared)
    for _ in range(2):  # the second time, everything is in the ledger
        with (
            to.Ledger(tmp_path / "run.ledger") as ledger,
            to.RemoteOracle(
                lambda states: spring(states.numpy()), answers=answers, batch=8, price=0.5,
                ledger=ledger, budget=to.Budget(rows=60), name="spring",
            ) as oracle,
        ):  # fmt: skip
            far = run(oracle.labels)
            assert all(
                torch.equal(a, b)
                for a, b in zip(far.policy.parameters(), near.policy.parameters(), strict=True)
            )
            assert ledger.spent.rows == 60 == far.questions["labels"]
    assert oracle.progress().rows == 0


def test_labels_need_a_teacher_of_labels():
    with (
        to.RemoteOracle(lambda z: (z, z)) as oracle,
        pytest.raises(to.BadArgument, match="from_labels"),
    ):
        oracle.labels(torch.ones(3))
