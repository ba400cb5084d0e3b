"""Remote oracles against a real service that is slow, fails, lies and bills."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from decimal import Decimal

import pytest
import torch

import targetopt as to
from oracle_services import ALL_FAULTS, PRICE, local_oracle, same_bits, service, student, trained
from targetopt.oracle.errors import OracleUnavailable, UnsettledRequests, WrongLedger
from targetopt.oracle.ledger.inspection import verified
from targetopt.oracle.remote import Busy

FAST = to.Retries(attempts=30, first_wait=0.005, longest_wait=0.05)
QUICK = to.Retries(attempts=2, first_wait=0.0)


@pytest.fixture(scope="module")
def reference():
    """The student trained with the local oracle."""
    return trained(local_oracle())


@pytest.mark.parametrize("latency", [0.01, pytest.param(0.3, marks=pytest.mark.slow)])
def test_a_student_learns_the_same_bits_through_every_fault(tmp_path, reference, latency):
    """And the ledger's spending is what the service billed."""
    with service(latency=latency, faults=ALL_FAULTS, rate=0.4, seed=1) as faulty:
        with (
            to.Ledger(tmp_path / "run.ledger") as ledger,
            to.RemoteOracle(
                faulty.url, batch=4, retries=FAST, timeout=5, price=PRICE, ledger=ledger
            ) as oracle,
        ):
            assert same_bits(trained(oracle), reference)
            spent, progress = ledger.spent, oracle.progress()
            assert not ledger.unsettled()
        bill = faulty.bill()
    assert len(bill["faults"]) > 8  # most kinds happened
    assert bill["most"] == 1  # no row was billed twice
    assert (spent.rows, spent.money) == (bill["rows"], bill["money"]) == (192, Decimal("0.192"))
    assert spent.calls == bill["calls"] == progress.calls
    assert progress.retries > 10
    assert verified(tmp_path / "run.ledger").questions == 6


def test_the_second_run_pays_nothing(tmp_path, reference):
    with service() as pleasant:
        for _ in range(2):
            with (
                to.Ledger(tmp_path / "run.ledger") as ledger,
                to.RemoteOracle(pleasant.url, batch=7, price=PRICE, ledger=ledger) as oracle,
            ):
                assert same_bits(trained(oracle), reference)
        assert pleasant.bill()["rows"] == 192
    assert oracle.progress().summary() == (
        "spent 0.192, 100 % from the ledger, resumed once: 192 rows, 0 of them asked in 0 calls"
    )


def _child(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # the parent looks at the ledger
            os._exit(3)
    return child


@pytest.mark.parametrize("keyed", [True, False])
def test_killed_at_random_moments_no_answer_is_paid_twice(tmp_path, reference, keyed):
    """Twenty times kill -9. The budget is exact for a service with keys: one row more would be refused."""
    path = tmp_path / "run.ledger"
    limit = 192 if keyed else 1000
    dice = random.Random(7)

    def work() -> None:
        target = to.Service(faulty.url, keyed=keyed)
        ledger = to.Ledger(path, unsettled="key" if keyed else "again")
        os.write(saying, b".")
        options = {"batch": 4, "concurrency": 4, "retries": FAST, "price": PRICE}
        oracle = to.RemoteOracle(target, ledger=ledger, budget=to.Budget(rows=limit), **options)
        assert same_bits(trained(oracle), reference)
        ledger.close()

    listening, saying = os.pipe()
    faults = ["429", "500", "drop-after"] if keyed else ["429"]
    with service(latency=0.02, faults=faults, rate=0.1, keyed=keyed) as faulty:
        for _ in range(20):
            child = _child(work)
            os.read(listening, 1)  # it has begun
            time.sleep(dice.uniform(0.0, 0.25))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with to.Ledger(path, write=False) as ledger:
                answered = _answered(ledger)
            assert faulty.bill()["rows"] <= limit
        assert os.waitstatus_to_exitcode(os.waitpid(_child(work), 0)[1]) == 0
        bill = faulty.bill()
        with to.Ledger(path, write=False) as ledger:
            assert ledger.spent.rows <= limit
            assert len(_answered(ledger)) == 192 == len(set(_answered(ledger)))
            assert set(answered) <= set(_answered(ledger))
            if keyed:
                assert (ledger.spent.rows, ledger.spent.money) == (bill["rows"], bill["money"])
                assert bill["most"] == 1
            else:  # what was sent when the process died may have been paid: it is counted, not less
                assert bill["rows"] <= ledger.spent.rows
                assert ledger.spent.rows - ledger.maybe.rows == 192
        assert ledger.sessions == 21
    os.close(listening)
    os.close(saying)


def _answered(ledger: to.Ledger) -> list[tuple[str, int]]:
    """Every row for which an answer is written, as often as it is."""
    found = []
    for line in ledger.lines():
        if line.body["kind"] == "answered":
            rows = [i for a, b in line.body["positions"] for i in range(a, b)]
            found += [(line.body["question"], row) for row in rows]
    return found


def test_what_may_have_been_paid_is_settled_by_policy(tmp_path):
    """A process dies between sending and answer; its requests are asked again by key, again, or not."""
    z = torch.arange(6.0, dtype=torch.float64)
    with service(latency=0.5) as slow:

        def work() -> None:
            ledger = to.Ledger(path)
            to.RemoteOracle(slow.url, price=PRICE, ledger=ledger).query(z)

        for policy, keyed in (("stop", True), ("again", False), ("key", True)):
            path = tmp_path / f"{policy}.ledger"
            before = slow.bill()["rows"]
            child = _child(work)
            while slow.bill()["calls"] < 1 or not _is_sent(path):
                time.sleep(0.01)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with to.Ledger(path, unsettled=policy) as ledger:
                assert ledger.maybe.rows == 6
                target = to.Service(slow.url, keyed=keyed)
                oracle = to.RemoteOracle(target, price=PRICE, ledger=ledger)
                if policy == "stop":
                    with pytest.raises(
                        UnsettledRequests, match=r"6 rows were sent .* may have been paid"
                    ):
                        oracle.query(z)
                    continue
                oracle.query(z)
                assert ledger.spent.rows == (6 if policy == "key" else 12)
                assert 6 <= slow.bill()["rows"] - before <= ledger.spent.rows
                oracle.close()


def _is_sent(path) -> bool:
    if not path.exists():
        return False
    with to.Ledger(path, write=False) as ledger:
        return bool(ledger.unsettled())


def test_a_priced_function_stops_where_it_may_have_been_paid(tmp_path):
    path = tmp_path / "run.ledger"

    def function(z):
        os.kill(os.getpid(), signal.SIGKILL) if dying else None
        return z**2 / 2, z

    def work() -> None:
        to.RemoteOracle(function, price=1, ledger=to.Ledger(path)).query(torch.ones(2))

    dying = True
    os.waitpid(_child(work), 0)
    dying = False
    with to.Ledger(path) as ledger, pytest.raises(UnsettledRequests):
        to.RemoteOracle(function, price=1, ledger=ledger).query(torch.ones(2))
    with to.Ledger(path, unsettled="again") as ledger:
        to.RemoteOracle(function, price=1, ledger=ledger).query(torch.ones(2))
        assert (ledger.spent.rows, ledger.maybe.rows) == (4, 2)


# -- interrupted ----------------------------------------------------------------------------------------


def test_ctrl_c_in_the_inner_loop_loses_no_paid_answer(tmp_path):
    model, opt, x = student()
    calls = 0

    def forward():
        nonlocal calls
        calls += 1
        if calls == 4:  # in the inner loop of the first step
            signal.raise_signal(signal.SIGINT)
        return model(x)

    with (
        service() as pleasant,
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(pleasant.url, price=PRICE, ledger=ledger) as oracle,
    ):
        with pytest.raises(KeyboardInterrupt):
            opt.step(forward, oracle)
        assert pleasant.bill()["rows"] == 32
        opt.step(forward, oracle)
        assert pleasant.bill()["rows"] == 32 == ledger.spent.rows


def test_ctrl_c_while_waiting_keeps_what_is_on_its_way(tmp_path):
    def interrupt():
        while slow.bill()["calls"] < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    z = torch.arange(40.0, dtype=torch.float64)
    with (
        service(latency=0.5) as slow,
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(slow.url, batch=4, concurrency=3, price=PRICE, ledger=ledger) as oracle,
    ):
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            oracle.query(z)
        assert slow.bill()["rows"] == ledger.spent.rows == 12  # three requests, paid and kept
        assert ledger.maybe.rows == 0
        assert torch.equal(oracle.query(z).gradients, local_oracle().query(z).gradients)
        assert slow.bill()["rows"] == 40


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("404", "answered 404 Not Found"),
        ("html", "text/html, not application/json"),
        ("not-json", "it is not JSON"),
        ("other", "answers another question: 'ffff"),
        ("shape", r"gradients must have the shape \(4,\)"),
        ("nan", "no row with finite numbers"),
        ("truncate", "connection broke before the answer was complete"),
        ("drop", "connection broke"),
        ("500", "answered 500"),
    ],
)
def test_what_the_service_does_wrong_is_said(tmp_path, fault, message):
    z = torch.zeros(4, dtype=torch.float64)
    with (
        service(faults=[fault], rate=1.0) as faulty,
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(faulty.url, retries=QUICK, price=PRICE, ledger=ledger) as oracle,
    ):
        with pytest.raises(OracleUnavailable, match=message):
            oracle.query(z)
        bill = faulty.bill()
        assert bill["calls"] == (1 if fault == "404" else 2)
        assert bill["rows"] <= ledger.spent.rows  # what may have been paid is counted


def test_an_unreachable_host_costs_nothing(tmp_path):
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle("http://127.0.0.1:9", retries=QUICK, price=1, ledger=ledger) as oracle,
    ):
        with pytest.raises(OracleUnavailable, match=r"http://127\.0\.0\.1:9 cannot be reached"):
            oracle.query(torch.zeros(3))
        assert (ledger.spent.rows, ledger.spent.money) == (0, 0)


@pytest.mark.parametrize("url", ["ftp://host/x", "localhost:8000", "http://"])
def test_bad_urls_are_refused(url):
    with pytest.raises(to.BadArgument, match="url="):
        to.RemoteOracle(url)


def test_a_ledger_of_another_oracle_is_refused(tmp_path):
    with to.Ledger(tmp_path / "run.ledger") as ledger:
        to.RemoteOracle(lambda z: (z, z), ledger=ledger, name="a", version="1").query(torch.ones(2))
    with to.Ledger(tmp_path / "run.ledger") as ledger, pytest.raises(WrongLedger, match="'a@1'"):
        to.RemoteOracle(lambda z: (z, z), ledger=ledger, name="a", version="2")


# -- functions ----------------------------------------------------------------------------------------------


def test_whoever_opened_the_ledger_closes_it(tmp_path):
    """Oracles share a ledger; one that is closed leaves it to the others."""
    with to.Ledger(tmp_path / "run.ledger") as ledger:
        for name in ("first", "second"):
            with to.RemoteOracle(lambda z: (z**2 / 2, z), ledger=ledger, name=name) as oracle:
                oracle.query(torch.arange(3.0))
        assert len(ledger.questions) == 2
    assert verified(tmp_path / "run.ledger").oracles == ["first", "second"]


def test_rows_are_chunked_concurrent_and_back_in_order():
    seen = []
    together = threading.Barrier(3, timeout=600)  # passes when three are on their way at once

    def simulator(z):
        seen.append(len(z))
        if z[0, 0] < 18:
            together.wait()
        time.sleep(0.05 * float(z[0, 0] == 0))  # the first chunk comes last
        return z.sum(dim=1), z * 2

    z = torch.arange(21.0).reshape(7, 3)
    with to.RemoteOracle(simulator, batch=2, concurrency=3) as oracle:
        point = oracle.query(z)
    assert sorted(seen) == [1, 2, 2, 2]
    assert torch.equal(point.gradients, 2 * z)
    assert torch.equal(point.losses, z.sum(dim=1))


def test_asynchronous_functions_and_running_loops():
    async def simulator(z):
        await asyncio.sleep(0.01)
        return z**2 / 2, z

    async def notebook():  # where a loop runs already
        with to.RemoteOracle(simulator, batch=1) as oracle:
            return oracle.query(torch.arange(8.0)).gradients

    assert torch.equal(asyncio.run(notebook()), torch.arange(8.0))


def test_a_mistake_in_a_function_is_not_tried_again():
    calls = []

    def wrong(z):
        calls.append(1)
        return z.nosuchthing

    with to.RemoteOracle(wrong) as oracle, pytest.raises(AttributeError, match="nosuchthing"):
        oracle.query(torch.ones(3))
    assert calls == [1]


def test_functions_may_say_that_they_are_busy():
    calls = []

    def busy(z):
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise Busy("come back", retry_after=0.05)
        return z**2 / 2, z

    budget = to.Budget(rows=3)
    with to.RemoteOracle(busy, price=1, budget=budget) as oracle:
        oracle.query(torch.ones(3))
    assert budget.spent.rows == 3  # refusals are not paid
    assert calls[1] - calls[0] >= 0.05


def test_partial_answers_are_kept_without_a_ledger():
    asked, broken = [], True

    def simulator(z):
        asked.append(z.tolist())
        if broken and 3.0 in z.tolist():
            raise ConnectionError("no")
        return z**2 / 2, z

    with to.RemoteOracle(simulator, batch=2, concurrency=1, retries=0) as oracle:
        with pytest.raises(OracleUnavailable, match="ConnectionError: no"):
            oracle.query(torch.arange(6.0))
        broken = False
        assert torch.equal(oracle.query(torch.arange(6.0)).gradients, torch.arange(6.0))
    assert sorted(asked) == [[0, 1], [2, 3], [2, 3], [4, 5]]  # only what was missing, again


def test_the_rate_is_kept():
    moments = []

    def simulator(z):
        moments.append(time.monotonic())
        return z**2 / 2, z

    with to.RemoteOracle(simulator, batch=1, rate=50.0) as oracle:
        begun = time.monotonic()
        oracle.query(torch.arange(6.0))
    assert max(moments) - begun >= 5 / 50  # the sixth is five fiftieths of a second after the first


def test_a_slow_request_is_hedged():
    with service(latency=0.02, slow_every=4) as slow:
        hedging = to.Retries(hedge_after=0.1)
        with to.RemoteOracle(slow.url, batch=1, concurrency=1, retries=hedging) as oracle:
            z = torch.arange(6.0, dtype=torch.float64)
            assert torch.equal(oracle.query(z).gradients, local_oracle().query(z).gradients)
            assert oracle.progress().hedges >= 1
        assert slow.bill()["rows"] == 6  # a key is billed once


def test_noise_is_drawn_anew_if_asked(tmp_path):
    dice = torch.Generator().manual_seed(0)

    def noisy(z, x):
        noise = torch.randn(z.shape, generator=dice)
        return z**2 / 2 + noise, z

    x, z = torch.ones(3, 1), torch.zeros(3)
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(noisy, ledger=ledger) as oracle,
    ):
        first, same, other = (oracle.about(x, draw=d).query(z).losses for d in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_arrow_carries_the_same_bits():
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from targetopt.oracle.remote.protocol import Arrow

    arrow = Arrow()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_POST(self):
            metadata, columns = arrow.read(self.rfile.read(int(self.headers["Content-Length"])))
            assert columns["inputs"] == [{"text": "α"}, {"text": "β"}, {"text": "γ"}]
            z = columns["targets"]
            order = [2, 0, 1]
            body = arrow.written(
                {"question": metadata["question"], "price": "0.25"},
                {
                    "ids": columns["ids"][order],
                    "losses": z.sum((1, 2))[order],
                    "gradients": z[order],
                },
            )
            self.send_response(200)
            self.send_header("Content-Type", arrow.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    z = torch.randn(3, 2, 4, dtype=torch.float64)
    target = to.Service(f"http://127.0.0.1:{server.server_port}", format="arrow")
    with to.RemoteOracle(target) as oracle:
        point = oracle.about([{"text": "α"}, {"text": "β"}, {"text": "γ"}]).query(z)
        assert oracle.progress().money == Decimal("0.25")
    server.shutdown()
    server.server_close()
    assert torch.equal(point.gradients, z)


def test_importing_the_package_stays_light():
    import subprocess
    import sys

    code = (
        "import sys, targetopt as to; to.SSO; to.LossOracle\n"
        "heavy = {'httpx2', 'httpcore2', 'anyio', 'stamina', 'ray', 'pyarrow', 'sqlite3'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
