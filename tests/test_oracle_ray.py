"""Oracles over a real local Ray cluster, with workers that are killed in the middle of a question."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import targetopt as to
from imitation_parts import PointMass, spring
from targetopt import imitation as im
from targetopt.oracle.errors import OracleUnavailable

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,  # a cluster takes its time to start
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    here = os.path.dirname(__file__)  # workers import what they are sent from here
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # by default they yield to every other process
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()


class Simulator:
    """Notes its process, so that a test can kill it; slow on demand."""

    def __init__(self, folder, seconds):
        self.folder, self.seconds = folder, seconds
        self.calls = 0

    def __call__(self, z):
        self.calls += 1
        with open(os.path.join(self.folder, str(os.getpid())), "a") as notes:
            notes.write(f"{len(z)}\n")
        time.sleep(self.seconds)
        return (z**4).sum(dim=1) / 4, z**3


def factory(folder, seconds=0.0):
    return lambda: Simulator(str(folder), seconds)


Z = torch.arange(40.0, dtype=torch.float64).reshape(20, 2) / 10


def noted(folder):
    return [int(line) for path in folder.iterdir() for line in path.read_text().split()]


def test_rows_over_workers_are_the_local_numbers(tmp_path):
    local = to.GradientOracle(Simulator(str(tmp_path), 0.0)).query(Z)
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        with to.RayOracle(factory(folder, 0.02), workers=workers, cpus=0.5, batch=2) as oracle:
            point = oracle.query(Z)
        assert torch.equal(point.losses, local.losses)
        assert torch.equal(point.gradients, local.gradients)
        assert sum(noted(folder)) == 20
        assert 1 <= len(list(folder.iterdir())) <= workers


def test_killed_workers_are_replaced_and_their_rows_counted_once(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    killed = []

    def kill():
        while len(killed) < 2:
            for path in list(folder.iterdir()):
                if path.name not in killed and len(killed) < 2:
                    killed.append(path.name)
                    os.kill(int(path.name), signal.SIGKILL)
            time.sleep(0.01)

    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RayOracle(
            factory(folder, 0.3), workers=2, cpus=0.5, batch=5, price=0.01, ledger=ledger,
            budget=to.Budget(rows=20), name="simulator",
        ) as oracle,
    ):  # fmt: skip
        thread = threading.Thread(target=kill)
        thread.start()
        point = oracle.query(Z)
        thread.join()
        assert torch.equal(point.gradients, Z**3)
        assert oracle.transport.replaced == 2
        assert oracle.progress().retries >= 2
        assert (ledger.spent.rows, str(ledger.spent.money)) == (20, "0.20")
        assert ledger.maybe.rows == 0
    assert len(list(folder.iterdir())) >= 3


def test_errors_of_the_simulator_are_the_users(tmp_path):
    def broken():
        def simulator(z):
            raise AttributeError("no such engine")

        return simulator

    with (
        to.RayOracle(broken, workers=1, cpus=0.5) as oracle,
        pytest.raises(AttributeError, match="no such engine"),
    ):
        oracle.query(Z)


def test_a_worker_that_takes_long_to_start_is_waited_for():
    """A time-out ends requests, not processes that are still starting."""

    def slowly():
        time.sleep(4)
        return lambda z: ((z**4).sum(dim=1) / 4, z**3)

    retries = to.Retries(attempts=200, first_wait=0.0)
    with to.RayOracle(slowly, workers=1, cpus=0.5, timeout=1, retries=retries) as oracle:
        assert torch.equal(oracle.query(Z).gradients, Z**3)
        assert oracle.transport.replaced == 0
        assert oracle.progress().retries >= 3


def test_a_worker_that_hangs_is_given_up(tmp_path):
    retries = to.Retries(attempts=2, first_wait=0.0)
    with (
        to.RayOracle(
            factory(tmp_path, 60), workers=1, cpus=0.5, timeout=2.0, retries=retries
        ) as oracle,
        pytest.raises(OracleUnavailable, match="no answer within timeout=2 seconds"),
    ):
        oracle.query(Z)


def test_a_student_trains_over_ray(tmp_path):
    def trained(oracle):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).double()
        opt = to.SSO(model.parameters(), lr=0.3, inner=to.LBFGS(max_steps=3))
        x = torch.randn(20, 3, dtype=torch.float64)
        for _ in range(3):
            opt.step(lambda: model(x), oracle)
        return model.weight.detach().clone()

    with to.RayOracle(factory(tmp_path), workers=2, cpus=0.5, batch=6) as oracle:
        far = trained(oracle)
    assert torch.equal(far, trained(to.GradientOracle(Simulator(str(tmp_path), 0.0))))


# -- rounds of imitation ----------------------------------------------------------------------------------


class Noting(PointMass):
    """Notes its process and its steps, so that a test can kill it in the middle of a round."""

    def __init__(self, folder):
        super().__init__()
        self.notes = os.path.join(folder, str(os.getpid()))

    def step(self, action):
        with open(self.notes, "a") as notes:
            notes.write(".")
        return super().step(action)


def acting(states, rng):
    return rng.uniform(-1, 1, (len(states), 1))


def gathered(gatherer, sizes=(50, 7, 40)):
    return [gatherer.gather(n, acting, spring) for n in sizes]


def assert_same(far, near):
    for a, b in zip(far, near, strict=True):
        for name, values in vars(b).items():
            np.testing.assert_array_equal(getattr(a, name), values, strict=True)


def test_rounds_over_workers_have_the_local_numbers_though_workers_are_killed(tmp_path):
    local = im.make_gatherer(PointMass, copies=5, seed=3, burn_in=10)
    near = gathered(local)
    over = im.OverRay(workers=2, cpus=0.5)
    make = functools.partial(Noting, str(tmp_path))
    far = im.make_gatherer(make, copies=5, seed=3, burn_in=10, over=over)

    def kill():
        while not (found := [p for p in tmp_path.iterdir() if p.stat().st_size > 30]):
            time.sleep(0.001)
        os.kill(int(found[0].name), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert_same(gathered(far), near)
    thread.join()
    assert far.copies.replaced == 1
    assert (far.interactions, far.burn_in_steps) == (local.interactions, local.burn_in_steps)
    state, expected = far.copies.state_dict(), local.copies.state_dict()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)

    again = im.make_gatherer(
        make, copies=5, seed=3, burn_in=10, over=over
    )  # goes on in new workers
    again.load_state_dict(far.state_dict())
    far.close()
    assert_same(gathered(again), gathered(local))
    again.close()


def test_a_simulator_that_kills_its_workers_is_given_up_after_some_attempts():
    class Deadly(PointMass):
        def step(self, action):
            if self.age == 3:
                os._exit(1)
            return super().step(action)

    over = im.OverRay(workers=1, cpus=0.5, attempts=2)
    gatherer = im.make_gatherer(Deadly, copies=2, seed=0, burn_in=0, over=over)
    with pytest.raises(im.EnvironmentFailed, match="its worker died 2 times over the same step"):
        gatherer.gather(20, acting, spring)
    assert gatherer.interactions == 8
    gatherer.close()


@pytest.mark.parametrize("env", ["Swimmer-v5", PointMass])
def test_imitation_over_ray_is_the_local_run(env):
    expert = spring if env is PointMass else lambda states: 0.5 * np.tanh(states[:, 3:5])

    def run(gather):
        result = im.train(
            env, expert, rounds=3, states_per_round=60, copies=4, held_out=0, evaluate_every=0,
            gather=gather, progress=False, behaviour="dagger", rule=to.GradientStep(),
            inner=to.GradientDescent(step_size=0.1, max_steps=2),
        )  # fmt: skip
        return result, [p.detach().clone() for p in result.policy.parameters()]

    near, weights = run(None)
    far, other = run(im.OverRay(workers=2, cpus=0.5))
    assert all(torch.equal(a, b) for a, b in zip(other, weights, strict=True))
    assert far.questions == near.questions
    assert [r.loss for r in far.history] == [r.loss for r in near.history]


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_reinforcement_learning_over_ray_is_the_local_run(env):
    def run(gather):
        result = to.rl.train(
            env, steps=128, batch=64, copies=4, seed=1, gather=gather, progress=False,
            inner=to.GradientDescent(step_size=0.1, max_steps=2),
        )  # fmt: skip
        return result, [p.detach().clone() for p in result.policy.actor.parameters()]

    near, weights = run(None)
    far, other = run(im.OverRay(workers=2, cpus=0.5))
    assert all(torch.equal(a, b) for a, b in zip(other, weights, strict=True))
    assert far.counts == near.counts
    assert [u.mean_return for u in far.history] == pytest.approx(
        [u.mean_return for u in near.history], abs=0, nan_ok=True
    )
