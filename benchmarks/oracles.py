"""Oracles that are slow, remote or paid for: throughput, the ledger's cost, several in flight, Ray.

These wait for clocks, disks and other processes, so they are measured in wall time, unlike the other benchmarks. On a
machine where other programs run, ``chrt -r 5 python -m benchmarks oracles`` gives it the processor first; the disk
is shared all the same.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import secrets
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import targetopt as to
from benchmarks.harness import one_thread, save, table
from targetopt.lab.problems.physics.fields import Density, field
from targetopt.lab.problems.physics.structures import Structure
from targetopt.oracle.ledger import Ledger
from targetopt.oracle.question import Question

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracle_services import PRICE, service

ROWS, WIDTH = 64, 10
ANCHORS = ("present", "asked")
QUESTIONS = 15_625  # a million rows


def least(value: float, limit: float) -> str:
    """A verdict for a ratio that should not fall below its limit."""
    return f"≥ {limit:g}: {'yes' if value >= limit else 'NO'}"


def at_most(value: float, limit: float) -> str:
    """A verdict for a number that should not exceed its limit."""
    return f"≤ {limit:g}: {'yes' if value <= limit else 'NO'}"


def scheduling() -> str:
    """How the system gives this process its processor; with ``chrt -r 5`` other programs cannot take it away."""
    names = {os.SCHED_OTHER: "shared with others", os.SCHED_RR: "before others (chrt -r)"}
    return names.get(os.sched_getscheduler(0), "otherwise")


LATENCY, CONCURRENCY, REQUESTS, CHUNK = 0.3, 8, 160, 8


def _bare(url: str, z: torch.Tensor) -> float:
    """Seconds of a client that does nothing else: as many connections, each posting as soon as it has an answer."""
    host = url.removeprefix("http://")
    chunks = z.numpy().reshape(REQUESTS, CHUNK, -1).tolist()
    bodies = [
        json.dumps({"question": "bare", "ids": list(range(CHUNK)), "targets": c}).encode()
        for c in chunks
    ]
    waiting = list(enumerate(bodies))[::-1]
    run = secrets.token_hex(8)

    def work() -> None:
        connection = http.client.HTTPConnection(host)
        while True:
            try:
                number, body = waiting.pop()
            except IndexError:
                return connection.close()
            headers = {
                "Content-Type": "application/json",
                "Idempotency-Key": f"{run}-{number}",
            }
            connection.request("POST", "/", body, headers)
            connection.getresponse().read()

    threads = [threading.Thread(target=work) for _ in range(CONCURRENCY)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def throughput(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """A teacher over HTTP with 300 ms of latency: requests per second against concurrency / latency.

    The service runs on the same machine. A bare client is measured in turns with ours: what it misses of the ideal
    is the service and the machine.
    """
    ideal = CONCURRENCY / LATENCY
    ratios: dict[str, list[float]] = {"bare": [], "pleasant": [], "faulty": []}
    cpu: list[float] = []
    faults = ["429", "500", "drop", "truncate", "shape"]
    for number in range(rounds):
        z = torch.randn(REQUESTS * CHUNK, 2, dtype=torch.float64)
        with service(latency=LATENCY) as teacher:
            ratios["bare"].append(REQUESTS / _bare(teacher.url, z) / ideal)
        for name, options in (
            ("pleasant", {}),
            ("faulty", {"faults": faults, "rate": 0.1, "seed": number}),
        ):
            with (
                service(latency=LATENCY, **options) as teacher,
                to.Ledger(folder / f"{name}{number}.ledger") as ledger,
                to.RemoteOracle(
                    teacher.url,
                    batch=CHUNK,
                    concurrency=CONCURRENCY,
                    price=PRICE,
                    ledger=ledger,
                    retries=to.Retries(attempts=20, first_wait=0.02, longest_wait=0.1),
                ) as oracle,
            ):
                oracle.query(z[:64] + 1)  # connections are made, modules imported
                before = teacher.bill()["calls"]
                start, worked = time.perf_counter(), time.process_time()
                oracle.query(z)
                seconds = time.perf_counter() - start
                if name == "pleasant":
                    cpu.append(1e3 * (time.process_time() - worked) / REQUESTS)
                bill = teacher.bill()
                calls = bill["calls"] - before
                assert (ledger.spent.rows, ledger.spent.money) == (bill["rows"], bill["money"])
            ratios[name].append(calls / seconds / ideal)
    found: dict[str, Any] = {"latency": LATENCY, "concurrency": CONCURRENCY, "requests": REQUESTS}
    found |= {name: statistics.median(values) for name, values in ratios.items()}
    shares = [ours / bare for ours, bare in zip(ratios["pleasant"], ratios["bare"], strict=True)]
    return found | {
        "of_bare": statistics.median(shares),
        "cpu_ms_per_request": statistics.median(cpu),
        "rounds": ratios,
    }


def _append(ledger: Ledger, rng: np.random.Generator) -> Question:
    """What an exchange writes for one question of 64 rows."""
    question = Question("teacher", {"targets": rng.normal(size=(ROWS, WIDTH))})
    request = ledger.new_request(question, range(ROWS), keyed=True, price=Decimal("0.064"))
    ledger.write(
        [ledger.asked(question), ledger.reserved(request), ledger.sent(request, 1)]
    ).result()
    columns = {"losses": rng.normal(size=ROWS), "gradients": rng.normal(size=(ROWS, WIDTH))}
    event = ledger.answered(
        request, 1, range(ROWS), columns, price=request.price, seconds=0.3, waited=0.3
    )
    ledger.write([event]).result()
    return question


def _appended(
    path: Path, questions: int, threads: int, seed: int = 0
) -> tuple[float, float, float, list[Question]]:
    """Wall and CPU milliseconds per question, commits per question, and the questions."""
    asked: list[Question] = []
    with to.Ledger(path) as ledger:
        ledger.admit("teacher")
        commits = _counted(ledger)

        def work(number: int) -> None:
            rng = np.random.default_rng(seed + number)
            asked.extend(_append(ledger, rng) for _ in range(questions // threads))

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        start, cpu = time.perf_counter(), time.process_time()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        wall = time.perf_counter() - start
        cpu = time.process_time() - cpu
    return 1e3 * wall / len(asked), 1e3 * cpu / len(asked), len(commits) / len(asked), asked


def _counted(ledger: Ledger) -> list[int]:
    """Grows by one entry with every commit."""
    log, found = ledger._log, []
    commit = log._committed

    def counting(groups: Any) -> Any:
        found.append(len(groups))
        return commit(groups)

    log._committed = counting  # type: ignore[method-assign]
    return found


def _sync_milliseconds(folder: Path) -> float:
    """What the disk takes for one fdatasync of a page: the floor under every commit."""
    handle = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY)
    times = []
    for _ in range(50):
        os.pwrite(handle, os.urandom(4096), 0)
        start = time.perf_counter()
        os.fdatasync(handle)
        times.append(1e3 * (time.perf_counter() - start))
    os.close(handle)
    return statistics.median(times)


def _sqlite(folder: Path) -> float:
    """What SQLite alone takes for two commits of as many bytes, as if there were no tail."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    for line in ("PRAGMA synchronous=EXTRA", "CREATE TABLE events (seq INTEGER PRIMARY KEY, x)"):
        connection.execute(line)
    times = []
    for _ in range(100):
        start = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO events (x) VALUES (?)", (os.urandom(8 * ROWS * WIDTH),))
        connection.execute("COMMIT")
        times.append(1e3 * (time.perf_counter() - start))
    connection.close()
    return 2 * statistics.median(times)


def ledger_costs(folder: Path) -> dict[str, Any]:
    """Appending questions of 64 rows, and opening and replaying a million rows."""
    found: dict[str, Any] = {"sync_ms": _sync_milliseconds(folder), "sqlite_ms": _sqlite(folder)}
    found["together"] = {}
    for threads in (1, 4, 8):
        wall, cpu, commits, _ = _appended(folder / f"{threads}.ledger", 400, threads)
        found["together"][str(threads)] = {"ms": wall, "cpu_ms": cpu, "commits": commits}
    path = folder / "million.ledger"
    wall, cpu, commits, asked = _appended(path, QUESTIONS, 25)
    found |= {"append_ms": wall, "append_cpu_ms": cpu, "append_commits": commits, "threads": 25}
    start, worked = time.perf_counter(), time.process_time()
    with to.Ledger(path) as ledger:
        found["open_seconds"] = time.perf_counter() - start
        rows = sum(len(positions) for q in asked for positions, _ in ledger.replay(q))
    seconds = time.perf_counter() - start
    found |= {"rows": rows, "replay_rows_per_second": rows / seconds}
    found["replay_rows_per_cpu_second"] = rows / (time.process_time() - worked)
    found["megabytes"] = path.stat().st_size / 1e6
    found["one_more_ms"], found["one_more_cpu_ms"], _, _ = _appended(path, 400, 1, seed=99)
    return found


class Sleeping:
    """An oracle that answers after a while."""

    def __init__(self, oracle: to.Oracle, seconds: float) -> None:
        self.oracle, self.seconds = oracle, seconds

    def query(self, z: torch.Tensor) -> to.TargetPoint:
        time.sleep(self.seconds)
        return self.oracle.query(z)


class Race(NamedTuple):
    """A problem for one question at a time against several: its parts, its questions by number, and its loss."""

    parts: Callable[[], tuple[torch.nn.Module, to.SSO]]
    question: Callable[[torch.nn.Module, int], tuple[Callable[[], torch.Tensor], to.Oracle]]
    loss: Callable[[torch.nn.Module], float]
    steps: int


def logistic() -> Race:
    """A network on mini-batches of labelled data."""
    data = load_breast_cancer()
    x = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0))
    y = torch.tensor(2.0 * data.target - 1)
    batches = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:560].split(70)

    def parts() -> tuple[torch.nn.Module, to.SSO]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(30, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1), torch.nn.Flatten(0)
        ).double()
        inner = to.Armijo(max_steps=5)
        return model, to.SSO(model.parameters(), lr=2.0, rule=to.GradientStep(), inner=inner)

    def question(model: torch.nn.Module, number: int) -> Any:
        rows = batches[number % len(batches)]
        return lambda: model(x[rows]), to.LossOracle(to.losses.Logistic(y[rows]))

    def loss(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(to.losses.Logistic(y).value(model(x)).mean())

    return Race(parts, question, loss, steps=40)


def three_loads() -> Race:
    """A structure designed by a neural field for three loads in turn; an oracle is a finite element solver.

    The loss is the mean over the loads of the compliance relative to that of an even design. All questions are
    about the same targets, the densities, which is harder for late answers than questions about different examples.
    """
    shape = (12, 6)
    beams = [Structure(*shape, case, radius=1.5) for case in ("mbb", "cantilever", "bridge")]
    even = [beam.solve(np.full(beam.size, 0.5)).compliance for beam in beams]

    def solved(z: torch.Tensor, k: int) -> tuple[float, torch.Tensor]:
        solution = beams[k].solve(z.numpy())
        return solution.compliance / even[k], torch.from_numpy(solution.gradient) / even[k]

    def parts() -> tuple[torch.nn.Module, to.SSO]:
        torch.manual_seed(0)
        density = Density(shape, beams[0].kernel, 0.5)
        model = torch.nn.ModuleDict({"field": field("fourier", shape), "density": density})
        inner = to.LBFGS(max_steps=10)
        return model, to.SSO(model.parameters(), lr=0.01, rule=to.GradientStep(), inner=inner)

    def design(model: Any) -> torch.Tensor:
        return model["density"](model["field"]())  # type: ignore[no-any-return]

    def question(model: torch.nn.Module, number: int) -> Any:
        return lambda: design(model), to.ScalarOracle(lambda z: solved(z, number % 3))

    def loss(model: torch.nn.Module) -> float:
        with torch.no_grad():
            z = design(model)
        return sum(solved(z, k)[0] for k in range(3)) / 3

    return Race(parts, question, loss, steps=18)


def in_flight(race: Race, latency: float = 0.25) -> dict[str, Any]:
    """Wall time to the loss that the synchronous run ends with, with four questions out, for both anchors."""
    model, opt = race.parts()
    start = time.perf_counter()
    for step in range(race.steps):
        forward, oracle = race.question(model, step)
        opt.step(forward, Sleeping(oracle, latency))
    synchronous, wanted = time.perf_counter() - start, race.loss(model)
    found = {"latency": latency, "loss": wanted, "steps": race.steps, "seconds": synchronous}
    return found | {
        anchor: _raced(race, anchor, wanted, latency, synchronous) for anchor in ANCHORS
    }


def _raced(
    race: Race, anchor: Any, wanted: float, latency: float, synchronous: float
) -> dict[str, Any]:
    """When the loss was reached; losses are computed after the race, as they are for the synchronous run."""
    model, opt = race.parts()
    asynchronous = to.Asynchronous(opt, in_flight=4, anchor=anchor)
    passed: list[tuple[float, int, dict[str, torch.Tensor]]] = []
    start = time.perf_counter()
    step = used = 0
    while used < 4 * race.steps:
        forward, oracle = race.question(model, step)
        late = asynchronous.step(forward, Sleeping(oracle, latency))
        step, used = step + 1, used + len(late)
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        passed.append((time.perf_counter() - start, used, kept))
    asynchronous.finish()
    for seconds, answers, kept in passed:
        model.load_state_dict(kept)
        if race.loss(model) <= wanted:
            ratio = seconds / synchronous
            return {"reached": True, "answers": answers, "seconds": seconds, "ratio": ratio}
    return {"reached": False, "answers": used, "seconds": passed[-1][0], "ratio": None}


def _sleeper() -> Any:
    def simulator(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.2)
        return (z**2).sum(dim=1) / 2, z

    return simulator


def over_ray() -> dict[str, Any]:
    """A sleeping simulator on two and on four workers."""
    z = torch.randn(160, 3, dtype=torch.float64)
    found: dict[str, Any] = {}
    answers = []
    for workers in (2, 4):
        with to.RayOracle(_sleeper, workers=workers, cpus=0.25, batch=4) as oracle:
            oracle.query(z[: 8 * workers] + 1)  # the workers are there
            start = time.perf_counter()
            answers.append(oracle.query(z).gradients)
            found[str(workers)] = time.perf_counter() - start
    found["same"] = torch.equal(*answers)
    found["ratio"] = found["2"] / found["4"]
    return found


def main() -> None:
    one_thread()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates, ledger = throughput(folder), ledger_costs(folder)
    late = {"logistic": in_flight(logistic()), "three loads": in_flight(three_loads())}
    ray = over_ray()
    replay = ledger["replay_rows_per_second"]
    rows = [
        [
            f"HTTP, 300 ms, {case}: calls/s over concurrency/latency",
            f"{rates[case]:.3f}",
            "" if case == "bare" else least(rates[case], 0.9),
        ]
        for case in ("bare", "pleasant", "faulty")
    ]
    rows += [
        ["  ours over the bare client's", f"{rates['of_bare']:.3f}", least(rates["of_bare"], 0.9)],
        ["  CPU per request, ms", f"{rates['cpu_ms_per_request']:.2f}", ""],
    ]
    rows += [
        ["one sync of this disk, ms", f"{ledger['sync_ms']:.2f}", ""],
        ["two commits of SQLite alone, ms", f"{ledger['sqlite_ms']:.2f}", ""],
        *(
            [
                f"ledger, {threads} at a time: ms per question of 64 rows",
                f"{cost['ms']:.2f}",
                at_most(cost["ms"], 2),
            ]
            for threads, cost in ledger["together"].items()
        ),
        [
            f"ledger, {ledger['threads']} at a time: ms per question of 64 rows",
            f"{ledger['append_ms']:.2f}",
            at_most(ledger["append_ms"], 2),
        ],
        ["  of which CPU", f"{ledger['append_cpu_ms']:.2f}", ""],
        ["  commits per question", f"{ledger['append_commits']:.3f}", ""],
        [
            "ledger of 10⁶ rows, one more at a time: ms per question of 64 rows",
            f"{ledger['one_more_ms']:.2f}",
            at_most(ledger["one_more_ms"], 2),
        ],
        ["  of which CPU", f"{ledger['one_more_cpu_ms']:.2f}", ""],
        [
            f"ledger, {ledger['rows']} rows: open and replay, rows/s",
            f"{replay:.0f}",
            least(replay, 1e5),
        ],
        ["  per second of CPU", f"{ledger['replay_rows_per_cpu_second']:.0f}", ""],
        ["Ray, 2 → 4 workers: times as fast", f"{ray['ratio']:.2f}", least(ray["ratio"], 1.8)],
    ]
    for name, found in late.items():
        for anchor in ANCHORS:
            ratio = found[anchor]["ratio"]
            rows.append(
                [
                    f"four in flight, {name}, anchor {anchor!r}: wall time over synchronous, same loss",
                    "not reached" if ratio is None else f"{ratio:.3f}",
                    at_most(math.inf if ratio is None else ratio, 0.4),
                ]
            )
    table(["what", "measured", "wanted"], rows)
    payload = {
        "load_average": os.getloadavg(),
        "processor": scheduling(),
        "throughput": rates,
        "ledger": ledger,
        "in_flight": late,
        "ray": ray,
    }
    save("oracles", payload, "anyio", "httpx2", "ray")


if __name__ == "__main__":
    main()
