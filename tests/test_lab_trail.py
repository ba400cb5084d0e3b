"""Runs that count oracle calls: every answer recorded once, budgets, and rivals that go on bit for bit."""

import io
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from targetopt.lab import Experiment, Store, expand, problems
from targetopt.lab.problems.base import Problem, seeded
from targetopt.lab.problems.trail import Trail
from targetopt.lab.run.job import Job, perform
from targetopt.lab.spec.muon import QUINTIC, MuonWithAdam, orthogonal

RIVALS = [
    {"name": "sso-auto", "price": 5.0},
    {"name": "sso-auto", "rule": "trust-region", "m": 5},
    {"name": "lbfgs"},
    {"name": "momentum", "lr": 0.05},
    {"name": "muon", "lr": 0.01},
    {"name": "sls-questions", "lr": 4.0},
    {"name": "adam", "lr": 0.01},
]
CALLS = 12


class Curve(Problem):
    """A small network fits a curve; the oracle gives losses with gradients, and counts for itself."""

    expensive = True

    def __init__(self) -> None:
        self.x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
        self.y = torch.cos(3 * self.x[:, 0])
        self.asked: list[torch.Tensor] = []

    def model(self, seed: int) -> nn.Module:
        return seeded(
            seed, lambda: nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
        )

    def forward(self, model, index=None):
        return lambda: model(self.x)

    def oracle(self, index=None):
        return to.GradientOracle(self._answer)

    def _answer(self, z):
        self.asked.append(z.clone())
        return 0.5 * (z - self.y) ** 2, z - self.y

    def metrics(self, model):
        with torch.no_grad():
            return {"loss": float((0.5 * (model(self.x) - self.y) ** 2).mean()), "odd": 1.0}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    problems.register("curve", "20 points, for tests")(Curve)
    yield
    problems.unregister("curve")


def config(method: dict, **changes: object):
    table = {"problems": [{"name": "curve"}], "methods": [method], "epochs": CALLS, **changes}
    [found] = expand(Experiment(**table))
    return found


def records(session) -> list[dict]:
    found = []
    while session._done < session.total_steps and not session.is_over():
        session.advance(session._done, session.total_steps)
        found += session.records()
    return found


@pytest.mark.parametrize("method", RIVALS, ids=lambda m: "-".join(map(str, m.values())))
def test_every_answer_is_recorded_once_and_the_budget_ends_the_run(method: dict) -> None:
    problem = Curve()
    session = problem.session(config(method))
    found = records(session)
    calls = [record["oracle_calls"] + record["value_calls"] for record in found]
    assert calls == list(range(1, len(problem.asked) + 1))
    assert CALLS <= len(found) < CALLS + 25  # the last step may ask several times
    said = [float(0.5 * (z - problem.y).square().mean()) for z in problem.asked]
    np.testing.assert_allclose([record["loss"] for record in found], said, rtol=1e-14)
    np.testing.assert_array_equal(
        [record["lowest"] for record in found],
        np.minimum.accumulate([record["loss"] for record in found]),
    )
    assert found[-1]["odd"] == 1.0  # other metrics at the end and at a few steps
    assert sum("odd" in record for record in found) <= 6


def test_lbfgs_is_that_of_torch_and_asks_about_no_point_twice() -> None:
    problem = Curve()
    found = records(problem.session(config({"name": "lbfgs"}, epochs=40)))
    seen = {tuple(z.tolist()) for z in problem.asked}
    assert len(seen) == len(problem.asked)

    model = problem.model(0)
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=100, max_eval=60, history_size=20, tolerance_grad=0.0,
        tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip
    losses = []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = 0.5 * (model(problem.x) - problem.y).square().mean()
        loss.backward()
        losses.append(loss.item())
        return loss.detach()

    optimiser.step(closure)
    shared = min(len(losses), len(found))
    assert shared >= 40
    np.testing.assert_allclose(
        [record["loss"] for record in found[:shared]], losses[:shared], rtol=1e-9
    )


def test_muon_takes_singular_values_through_its_polynomial_and_keeps_their_vectors() -> None:
    torch.manual_seed(0)
    for shape in ((5, 3), (3, 5), (4, 4)):
        matrix = torch.randn(shape, dtype=torch.float64)
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        a, b, c = QUINTIC
        s = s / s.norm()
        for _ in range(5):
            s = a * s + b * s**3 + c * s**5
        torch.testing.assert_close(
            orthogonal(matrix), u @ torch.diag(s) @ v, rtol=1e-12, atol=1e-12
        )


def test_muon_is_adam_on_vectors_and_on_matrices_that_of_torch_to_half_precision() -> None:
    torch.manual_seed(0)
    start = [torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)]
    ours, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    optimiser = MuonWithAdam(ours, lr=0.1)
    rivals = [
        torch.optim.Muon(theirs[:1], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(theirs[1:], lr=0.1),
    ]
    for _ in range(4):
        for pair in zip(ours, theirs, strict=True):
            gradient = torch.randn_like(pair[0])
            for p in pair:
                p.grad = gradient.clone()
        optimiser.step()
        for rival in rivals:
            rival.step()
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-13, atol=1e-13)
    mine, torchs = ours[0].detach(), theirs[0].detach()
    assert (mine - torchs).norm() < 0.02 * (mine - start[0]).norm()


@pytest.mark.parametrize("method", RIVALS, ids=lambda m: "-".join(map(str, m.values())))
def test_a_saved_run_goes_on_bit_for_bit(method: dict) -> None:
    whole = records(Curve().session(config(method)))
    first = Curve().session(config(method))
    before = []
    for step in range(3):
        first.advance(step, CALLS)
        before += first.records() if step < 2 else []  # the answers of the third are not taken yet
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Curve().session(config(method))
    second.load_state_dict(torch.load(file, weights_only=True))
    after = second.records() + records(second)
    told = [(r["oracle_calls"], r["value_calls"], r["loss"], r["lowest"]) for r in before + after]
    assert told == [(r["oracle_calls"], r["value_calls"], r["loss"], r["lowest"]) for r in whole]


@pytest.mark.parametrize(
    ("part", "value"),
    [("lowest", float("nan")), ("oracle_calls", -1), ("pending", [{"loss": 1.0}]), ("extra", 0)],
)
def test_a_damaged_trail_is_refused(part: str, value: object) -> None:
    trail = Trail()
    with pytest.raises(to.TargetoptError, match=r"pending|whole number|not a number|parts"):
        trail.load_state_dict({**trail.state_dict(), part: value})


def test_a_damaged_history_of_lbfgs_is_refused() -> None:
    session = Curve().session(config({"name": "lbfgs"}))
    for step in range(3):
        session.advance(step, CALLS)
    state = session.state_dict()
    kept = state["trainer"]["optimiser"]["state"][0]
    kept["d"] = kept["d"][:3]
    with pytest.raises(to.TargetoptError, match=r"optimiser\['d'\] has shape \(3,\)"):
        Curve().session(config({"name": "lbfgs"})).load_state_dict(state)


class Breaks(Curve):
    """Its solver gives up at the fourth question."""

    def _answer(self, z):
        if len(self.asked) == 3:
            raise to.TargetoptError("the solver did not converge")
        return super()._answer(z)


def test_a_solver_that_fails_is_recorded_and_stops_nothing_else(tmp_path) -> None:
    problems.register("breaks", "for tests")(Breaks)
    try:
        experiment = Experiment(
            problems=[{"name": "breaks"}, {"name": "curve"}],
            methods=[{"name": "adam", "lr": 0.01}],
            epochs=6,
        )
        store = Store(tmp_path)
        store.prepare()
        for each in expand(experiment):
            job = Job(str(tmp_path), each.id, each, attempt=1, command="")
            perform(job, stop=lambda: False, tell=lambda event: None)
        broken, whole = sorted(
            Store(tmp_path).load(), key=lambda run: run.manifest["status"] == "done"
        )
        assert broken.manifest["status"] == "failed"
        assert "did not converge" in broken.manifest["reason"]
        assert len(broken.columns["loss"]) == 3
        assert len(whole.columns["loss"]) == 6
    finally:
        problems.unregister("breaks")
