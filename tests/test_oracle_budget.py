"""Budgets hold under concurrency, before anything is sent; caches answer by example."""

from __future__ import annotations

import threading
import time
from decimal import Decimal

import pytest
import torch

import targetopt as to
from targetopt.oracle.budget import Cost
from targetopt.oracle.cache import CacheError


def halves(z):
    return 0.5 * z**2, z


def test_threads_cannot_overrun_it():
    budget = to.Budget(rows=1000)
    taken = []

    def take() -> None:
        for _ in range(200):
            try:
                held = budget.hold(Cost(rows=7))
            except to.BudgetExceeded:
                continue
            taken.append(7)
            held.settle(Cost(rows=7))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 994 == budget.spent.rows
    assert budget.held == Cost()


def test_money_is_exact():
    budget = to.Budget(money=0.3)
    for _ in range(3):
        budget.hold(Cost(money=Decimal("0.1"))).settle(Cost(money=Decimal("0.1")))
    assert budget.left().money == 0
    with pytest.raises(
        to.BudgetExceeded, match=r"0.1 of money more would exceed the budget of 0.3"
    ):
        budget.hold(Cost(money=Decimal("0.1")))


@pytest.mark.parametrize(
    "limits", [{"rows": -1}, {"calls": "3"}, {"money": float("nan")}, {"seconds": float("inf")}]
)
def test_impossible_limits_are_refused(limits):
    with pytest.raises(to.BadArgument, match=next(iter(limits))):
        to.Budget(**limits)


@pytest.mark.parametrize("limit", [{"rows": 15}, {"calls": 3}, {"money": 1.59}])
def test_the_step_that_would_exceed_it_is_refused_before_it_is_sent(limit):
    sent = []

    def simulator(z):
        sent.append(len(z))
        return halves(z)

    w = torch.zeros(8, requires_grad=True, dtype=torch.float64)
    w.data += torch.arange(8)
    opt = to.SSO([w], lr=0.5)
    budget = to.Budget(**limit)
    with to.RemoteOracle(simulator, batch=4, price=0.1, budget=budget) as oracle:
        opt.step(lambda: 1.0 * w, oracle)
        before, state = w.clone(), opt.state_dict()
        assert sum(sent) == 8
        with pytest.raises(to.BudgetExceeded, match=r"Nothing was sent or changed\. Raise Budget"):
            opt.step(lambda: 1.0 * w, oracle)
        assert sum(sent) == 8  # not a single row
        assert torch.equal(w, before)
        assert opt.state_dict()["sso"]["steps"] == state["sso"]["steps"] == 1
        assert budget.held == Cost()


def test_retries_are_calls_and_lost_attempts_may_be_paid():
    """A function that loses its answers: each attempt may have been paid, and the budget counts it so."""
    attempts = []

    def loses(z):
        attempts.append(len(z))
        raise ConnectionResetError("gone")

    fast = to.Retries(attempts=9, first_wait=0.0)
    budget = to.Budget(rows=20)
    with (
        to.RemoteOracle(loses, retries=fast, price=0.5, budget=budget) as oracle,
        pytest.raises(to.BudgetExceeded, match="6 rows more would exceed the budget of 20"),
    ):
        oracle.query(torch.ones(6))
    assert attempts == [6, 6, 6]  # a fourth would be 24 rows
    assert (budget.spent.rows, budget.spent.calls, budget.spent.money) == (18, 3, Decimal("9.0"))


def test_time_ends_a_question():
    def slow(z):
        time.sleep(30)
        return halves(z)

    budget = to.Budget(seconds=0.2)
    with to.RemoteOracle(slow, budget=budget) as oracle:
        with pytest.raises(to.BudgetExceeded, match=r"0\.2 seconds of waiting ran out"):
            oracle.query(torch.ones(3))
        with pytest.raises(to.BudgetExceeded, match="is used up"):
            oracle.query(torch.ones(3))


def test_money_needs_a_price():
    with pytest.raises(to.BadArgument, match=r"Budget\(money=\) needs price="):
        to.RemoteOracle(halves, budget=to.Budget(money=1))


def test_a_budget_counts_what_earlier_processes_spent(tmp_path):
    for process in range(2):
        budget = to.Budget(rows=6)
        with (
            to.Ledger(tmp_path / "run.ledger") as ledger,
            to.RemoteOracle(halves, ledger=ledger, budget=budget) as oracle,
        ):
            oracle.query(torch.ones(4))  # the second process replays it
            assert budget.spent.rows == 4
            with pytest.raises(to.BudgetExceeded, match="4 are spent"):
                oracle.query(torch.zeros(3))
            if process:
                oracle.query(torch.zeros(2))
                assert budget.left().rows == 0


# -- the cache ----------------------------------------------------------------------------------------


class Teacher:
    """Labels by the sign of the first feature; counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, inputs):
        self.asked += len(inputs)
        return inputs[:, 0].sign()


LABELS = to.teachers.from_labels(to.losses.Logistic)


def test_the_cache_answers_by_example_and_version(tmp_path):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    teacher = Teacher()

    def ask(rows, version):
        cache = to.Cache(tmp_path / "teacher.cache")
        with to.RemoteOracle(
            teacher, answers=LABELS, cache=cache, name="signs", version=version
        ) as oracle:
            point = oracle.about(x[rows]).query(torch.zeros(len(rows)))
            progress = oracle.progress()
        cache.close()
        truth = to.LossOracle(to.losses.Logistic(x[rows, 0].sign())).query(torch.zeros(len(rows)))
        assert torch.equal(point.gradients, truth.gradients)
        return cache.hits, progress.rows

    assert ask(range(10), "1") == (0, 10)
    assert ask([9, 3, 12], "1") == (2, 1)
    assert ask([9, 3, 12], "1") == (3, 0)
    assert ask([9, 3, 12], "2") == (0, 3)
    assert teacher.asked == 14


def test_hits_cost_nothing():
    x = torch.randn(8, 2)
    budget = to.Budget(money=0.8)
    cache = to.Cache()
    with to.RemoteOracle(
        Teacher(), answers=LABELS, cache=cache, price=0.1, budget=budget
    ) as oracle:
        for _ in range(5):
            oracle.about(x).query(torch.zeros(8))
        assert budget.spent.money == Decimal("0.8")
        assert oracle.progress().summary() == (
            "spent 0.80 of 0.80, 80 % from the cache: 40 rows, 8 of them asked in 1 calls"
        )


def test_answers_that_depend_on_the_targets_are_not_cached():
    with pytest.raises(to.BadArgument, match="depend on the targets"):
        to.RemoteOracle(halves, cache=to.Cache())


def test_a_damaged_cache_is_refused(tmp_path):
    path = tmp_path / "teacher.cache"
    cache = to.Cache(path)
    x = torch.arange(6.0).reshape(3, 2) + 1
    with to.RemoteOracle(Teacher(), answers=LABELS, cache=cache, name="signs") as oracle:
        oracle.about(x).query(torch.zeros(3))
    cache.close()
    data = bytearray(path.read_bytes())
    place = data.find(b"labels")
    data[place + 1] ^= 4
    path.write_bytes(data)
    again = to.Cache(path)
    with (
        to.RemoteOracle(Teacher(), answers=LABELS, cache=again, name="signs") as oracle,
        pytest.raises(CacheError, match="Delete the file"),
    ):
        oracle.about(x).query(torch.zeros(3))
    path.write_bytes(b"something else entirely" * 50)
    with pytest.raises(CacheError, match="cannot be used"):
        to.Cache(path)
