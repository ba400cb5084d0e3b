"""Decision-focused learning: exact solvers, losses against PyEPO's own and against finite differences."""

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize as so
import torch

import targetopt as to
from targetopt.lab import Experiment, Store, expand, problems
from targetopt.lab.problems.decisions.losses import Feasibility, FenchelYoung, SPOPlus
from targetopt.lab.problems.decisions.problem import DecisionProblem, Instances
from targetopt.lab.problems.decisions.solvers import (
    Infeasible,
    Knapsack,
    Salesman,
    ShortestPath,
    Solver,
)
from targetopt.lab.run.job import Job, perform

NAMES = ("shortest-path", "knapsack", "travelling-salesman")
RNG = np.random.default_rng(3)
WEIGHTS = RNG.uniform(3, 8, size=(2, 6))
SOLVERS = {
    "path": ShortestPath(3, 4),
    "knapsack": Knapsack(WEIGHTS, 0.4 * WEIGHTS.sum(axis=1)),
    "salesman": Salesman(5),
}


def tours(nodes: int) -> np.ndarray:
    """Every round trip, by listing all orders."""
    edges = Salesman(nodes).edges
    found = set()
    for order in itertools.permutations(range(1, nodes)):
        trip = (0, *order, 0)
        decision = np.zeros(nodes * (nodes - 1) // 2)
        for a, b in itertools.pairwise(trip):
            decision[edges[a, b]] += 1
        found.add(tuple(decision))
    return np.array(sorted(found))


def feasible(name: str) -> np.ndarray:
    """All feasible decisions of a small problem, by listing everything."""
    solver = SOLVERS[name]
    if name == "salesman":
        return tours(5)
    every = np.array(list(itertools.product([0.0, 1.0], repeat=solver.size)))
    if name == "knapsack":
        return every[(every @ solver.weights.T <= solver.capacity + 1e-12).all(axis=1)]
    leaves = np.zeros(12)
    leaves[0], leaves[-1] = 1.0, -1.0
    return every[(every @ solver.incidence.T == leaves).all(axis=1)]


@pytest.mark.parametrize("name", ["knapsack", "salesman", "path"])
def test_solvers_find_the_cheapest_of_all_decisions(name: str) -> None:
    solver = SOLVERS[name]
    costs = RNG.normal(size=(20, solver.size))
    everything = feasible(name)
    found = solver.solve(costs)
    np.testing.assert_allclose((found * costs).sum(axis=1), (costs @ everything.T).min(axis=1))
    assert {tuple(each) for each in found} <= {tuple(each) for each in everything}
    np.testing.assert_array_equal(found, solver.solve(costs))


@pytest.mark.parametrize("items", [4, 18])
def test_highs_packs_what_the_list_of_all_subsets_says(items: int) -> None:
    weights = RNG.uniform(3, 8, size=(2, items))
    solver = Knapsack(weights, 0.4 * weights.sum(axis=1))
    costs = RNG.normal(size=(3, solver.size))
    np.testing.assert_array_equal(solver.by_highs(costs), solver.solve(costs))


def test_paths_are_those_of_the_linear_programme() -> None:
    solver = ShortestPath(5, 5)
    costs = RNG.uniform(0.1, 2, size=(3, solver.size))
    leaves = np.zeros(25)
    leaves[0], leaves[-1] = 1.0, -1.0
    for cost, decision in zip(costs, solver.solve(costs), strict=True):
        programme = so.linprog(cost, A_eq=solver.incidence, b_eq=leaves, method="highs")
        assert programme.fun == pytest.approx(cost @ decision, abs=1e-9)


def losses(name: str):
    solver = SOLVERS[name]
    costs = np.random.default_rng(5).uniform(1, 2, size=(4, solver.size))
    found = [SPOPlus(solver, costs), FenchelYoung(solver, costs, draws=3)]
    return [*found, Feasibility(solver, costs)] if name == "path" else found


@pytest.mark.parametrize("name", SOLVERS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    for loss in losses(name):
        z = np.random.default_rng(7).uniform(0, 2, size=loss.costs.shape)
        values, gradients = loss.answer(z)
        assert (values >= 0).all()
        step = 1e-6
        for column in range(z.shape[1]):
            up, down = z.copy(), z.copy()
            up[:, column] += step
            down[:, column] -= step
            slope = (loss.answer(up)[0] - loss.answer(down)[0]) / (2 * step)
            np.testing.assert_allclose(
                gradients[:, column], slope, atol=1e-6 * (1 + abs(slope).max())
            )


@pytest.mark.parametrize("name", SOLVERS)
def test_losses_are_convex_and_vanish_at_costs_that_decide_rightly(name: str) -> None:
    for loss in losses(name):
        rng = np.random.default_rng(11)
        a, b = rng.normal(size=(2, *loss.costs.shape))
        middle = loss.answer(0.5 * (a + b))[0]
        assert (middle <= 0.5 * (loss.answer(a)[0] + loss.answer(b)[0]) + 1e-12).all()
        right = 1e3 * (0.5 - loss.best)  # every other decision is far dearer
        if name == "path":
            np.testing.assert_allclose(loss.answer(right)[0], 0.0, atol=1e-9)
    plus = SPOPlus(SOLVERS[name], np.random.default_rng(5).uniform(1, 2, (4, SOLVERS[name].size)))
    np.testing.assert_allclose(plus.answer(plus.costs)[0], 0.0, atol=1e-12)


def test_the_feasibility_loss_is_the_distance_to_costs_that_decide_rightly() -> None:
    solver = ShortestPath(3, 3)
    rng = np.random.default_rng(2)
    loss = Feasibility(solver, rng.uniform(1, 2, size=(5, 12)), margin=0.3)
    z = rng.normal(size=(5, 12))
    values, gradients = loss.answer(z)
    nearest = z - gradients
    np.testing.assert_allclose(loss.answer(nearest)[0], 0.0, atol=1e-20)
    np.testing.assert_array_equal(solver.solve(nearest), loss.best)
    np.testing.assert_allclose(values, 0.5 * (gradients**2).sum(axis=1))
    other = rng.normal(size=(5, 12))  # smooth with L = 1
    assert np.linalg.norm(loss.answer(other)[1] - gradients) <= np.linalg.norm(other - z)


def test_an_instance_without_a_decision_is_named() -> None:
    nothing = Knapsack(np.ones((1, 3)), np.array([-1.0]))
    for solve in (nothing.solve, nothing.by_highs):
        with pytest.raises(Infeasible, match="instance 0"):
            solve(np.ones((2, 3)))
    with pytest.raises(to.TargetoptError, match=r"not in the rows \[1\]"):
        ShortestPath(2, 2).solve(np.array([[1.0] * 4, [np.nan] * 4]))
    with pytest.raises(to.TargetoptError, match="shape"):
        Salesman(4).solve(np.ones((2, 3)))


class GivesUp:
    """A solver that finds no decision from the twelfth question on."""

    size = ShortestPath(2, 3).size

    def __init__(self) -> None:
        self.asked = 0

    def solve(self, costs: np.ndarray) -> np.ndarray:
        self.asked += 1
        if self.asked >= 12:
            raise Infeasible("instance 2 has no feasible decision")
        return ShortestPath(2, 3).solve(costs)


def small(solver: Solver) -> DecisionProblem:
    rng = np.random.default_rng(0)
    features, costs = rng.normal(size=(2, 8, 5)), rng.uniform(1, 2, size=(2, 8, solver.size))
    data = Instances(solver, features[0], costs[0], features[1], costs[1])
    return DecisionProblem("small", data, lambda c: SPOPlus(solver, c), 4)


def test_an_infeasible_instance_is_a_failed_run_and_stops_no_other(tmp_path: Path) -> None:
    """It comes after some questions, beside runs that end well or diverge."""
    made = {
        "gives-up": lambda: small(GivesUp()),
        "decides": lambda: small(ShortestPath(2, 3)),
    }
    for name, build in made.items():
        problems.register(name, "for tests")(build)
    store = Store(tmp_path)
    store.prepare()
    ended = {}
    try:
        methods = [{"name": "sgd", "lr": 0.3}, {"name": "adam", "lr": 1e308}]
        tables = [{"name": name} for name in made]
        for config in expand(Experiment(problems=tables, methods=methods, epochs=60)):
            perform(Job(str(tmp_path), config.id, config, 1, ""), lambda: False, lambda event: None)
            ended[config.problem["name"], config.method.name] = store.manifest(config.id)
    finally:
        for name in made:
            problems.unregister(name)
    statuses = {key: manifest["status"] for key, manifest in ended.items()}
    assert statuses == {
        ("gives-up", "sgd"): "failed",
        ("gives-up", "adam"): "failed",
        ("decides", "sgd"): "done",
        ("decides", "adam"): "diverged",
    }
    for method in ("sgd", "adam"):
        reason = ended["gives-up", method]["reason"]
        assert re.match(r"after step \d+: Infeasible: instance 2 has no", reason)
    assert not ended["gives-up", "sgd"]["reason"].startswith("after step 0")


pyepo = pytest.importorskip("pyepo", reason="the extra [decisions] is not installed")


def test_spo_plus_and_its_pool_are_those_of_pyepo() -> None:
    from pyepo import EPO
    from pyepo.func import SPOPlus as Theirs
    from pyepo.model.opt import optModel

    problem = problems.get("shortest-path", size="smoke")
    solver = problem.data.solver

    class Model(optModel):
        def _getModel(self):
            self.modelSense = EPO.MINIMIZE
            return None, list(range(solver.size))

        def setObj(self, c):
            self.c = np.asarray(c, dtype=np.float64)

        def solve(self):
            w = solver.solve(self.c[None])[0]
            return w, float(w @ self.c)

    theirs = Theirs(Model(), processes=1)
    z = problem.forward(problem.model(0))().detach().requires_grad_()
    costs, best = torch.from_numpy(problem.data.costs), torch.from_numpy(problem.decisions.best)
    least = (costs * best).sum(dim=1, keepdim=True)
    loss = theirs(z, costs, best, least)
    loss.backward()
    point = problem.oracle().query(z.detach())
    assert float(point.loss) == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(point.gradients / len(z), z.grad, atol=1e-12)

    pool = problem.pool_of(point.gradients)
    theirs.solpool, theirs.solve_ratio = pool, 0.0
    other = (
        z.detach() + 0.3 * torch.randn(z.shape, generator=torch.manual_seed(0))
    ).requires_grad_()
    cached = theirs(other, costs, best, least)
    assert problem.pooled(other, pool).mean().item() == pytest.approx(cached.item(), rel=1e-12)
    assert (
        problem.pooled(other.detach(), pool) <= problem.oracle().query(other.detach()).losses + 1e-9
    ).all()


@pytest.mark.parametrize("name", NAMES)
def test_problems_are_seeded_and_learn(name: str) -> None:
    problem, again = problems.get(name, size="smoke"), problems.get(name, size="smoke")
    np.testing.assert_array_equal(problem.data.costs, again.data.costs)
    model = problem.model(0)
    before = problem.metrics(model)
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(20):
        z = problem.forward(model)()
        gradients = problem.oracle().query(z.detach()).gradients
        opt.zero_grad()
        z.backward(gradients / len(z))
        opt.step()
    after = problem.metrics(model)
    assert after["loss"] < 0.8 * before["loss"]
    assert 0 <= after["regret"] < before["regret"]
    rows = torch.tensor([0, 2])
    part = problem.oracle(rows).query(problem.forward(model, rows)().detach())
    whole = problem.oracle().query(problem.forward(model)().detach())
    np.testing.assert_allclose(part.gradients, whole.gradients[rows], atol=1e-12)


def test_what_cannot_be_is_refused_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(to.TargetoptError, match="linear programme"):
        problems.get("knapsack", size="smoke", loss="feasibility")
    with pytest.raises(to.TargetoptError, match=r"loss='mse' must be one of spo\+"):
        problems.get("shortest-path", size="smoke", loss="mse")
    monkeypatch.setitem(sys.modules, "pyepo.data.tsp", None)
    with pytest.raises(ModuleNotFoundError, match=r"targetopt\[decisions\]"):
        problems.get("travelling-salesman", size="smoke")
