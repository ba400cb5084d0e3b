"""The ledger survives what happens to processes and files: killed at any moment, damaged at any byte."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import targetopt as to
from targetopt.oracle.budget import Cost
from targetopt.oracle.cache import CacheError
from targetopt.oracle.errors import DamagedLedger, LedgerError, WrongLedger
from targetopt.oracle.ledger import Ledger, tail
from targetopt.oracle.ledger.inspection import salvaged, verified
from targetopt.oracle.question import Question


def question(number: int, rows: int = 4) -> Question:
    targets = np.random.default_rng(number).normal(size=(rows, 2))
    return Question("teacher", {"targets": targets})


def answer_of(asked: Question) -> dict[str, np.ndarray]:
    targets = np.asarray(asked.columns["targets"])
    return {"losses": 0.5 * (targets**2).sum(axis=1), "gradients": targets}


def ask(ledger: Ledger, asked: Question, *, until: str = "answered") -> None:
    """What an exchange writes for one question, up to a stage."""
    request = ledger.new_request(asked, range(asked.rows), keyed=True, price=Decimal("0.04"))
    ledger.write([ledger.asked(asked), ledger.reserved(request)]).result()
    if until == "reserved":
        return
    ledger.write([ledger.sent(request, 1)]).result()
    if until == "sent":
        return
    numbers = {"price": Decimal("0.04"), "seconds": 0.1, "waited": 0.1}
    if until == "refused":
        ledger.write([ledger.failed(request, 1, "busy", lost=False, **_free(numbers))]).result()
        return
    columns = answer_of(asked)
    ledger.write(
        [ledger.answered(request, 1, range(asked.rows), columns, **numbers)]  # type: ignore[arg-type]
    ).result()


def _free(numbers: dict) -> dict:
    return {**numbers, "price": Decimal(0)}


def is_replayed(ledger: Ledger, asked: Question) -> bool:
    parts = ledger.replay(asked)
    if not parts:
        return False
    ((positions, columns),) = parts
    truth = answer_of(asked)
    assert positions == list(range(asked.rows))
    assert all(np.array_equal(columns[name], truth[name]) for name in truth)
    return True


def test_answers_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger(path) as ledger:
        for number in range(3):
            ask(ledger, question(number))
        assert ledger.spent == Cost(3, 12, pytest.approx(0.3), Decimal("0.12"))
    with Ledger(path) as ledger:
        assert all(is_replayed(ledger, question(number)) for number in range(3))
        assert not ledger.replay(question(3))
        assert ledger.spent == Cost(3, 12, pytest.approx(0.3), Decimal("0.12"))
        assert ledger.sessions == 2


def test_a_question_is_its_rows_its_oracle_and_its_draw():
    rows = {"targets": np.ones((2, 3))}
    names = {
        Question("a", rows).digest,
        Question("b", rows).digest,
        Question("a", rows, draw="1").digest,
        Question("a", {"targets": np.ones((3, 2))}).digest,
        Question("a", {"targets": np.ones((2, 3), np.float32)}).digest,
        Question("a", {"inputs": np.ones((2, 3))}).digest,
    }
    assert len(names) == 6
    assert Question("a", {"targets": np.ones((2, 3))}).digest in names


@pytest.mark.parametrize(
    ("stage", "rows", "money", "maybe"),
    [
        ("reserved", 0, "0", "0"),
        ("sent", 4, "0.04", "0.04"),
        ("refused", 0, "0", "0"),
        ("answered", 4, "0.04", "0"),
    ],
)
def test_what_was_sent_and_not_answered_may_have_been_paid(tmp_path, stage, rows, money, maybe):
    path = tmp_path / "run.ledger"
    with Ledger(path) as ledger:
        ask(ledger, question(0), until=stage)
    with Ledger(path) as ledger:
        assert (ledger.spent.rows, ledger.spent.money) == (rows, Decimal(money))
        assert ledger.maybe.money == Decimal(maybe)
        assert [r.positions for r in ledger.unsettled()] == (
            [[0, 1, 2, 3]] if stage == "sent" else []
        )


def test_one_writes_many_read(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger(path) as ledger:
        ask(ledger, question(0))
        with pytest.raises(LedgerError, match="another process writes"):
            Ledger(path)
        with Ledger(path, write=False) as reader:
            assert is_replayed(reader, question(0))
            ask(ledger, question(1))  # the writer goes on beside a reader
            with pytest.raises(LedgerError, match="opened for reading"):
                reader.write([])
        with Ledger(path, write=False) as later:
            assert is_replayed(later, question(1))
    with Ledger(path) as ledger:  # the lock went with its holder
        assert is_replayed(ledger, question(1))


def test_a_forked_child_does_not_write(tmp_path):
    with Ledger(tmp_path / "run.ledger") as ledger:
        ask(ledger, question(0))
        child = os.fork()
        if child == 0:
            try:
                ledger.replay(question(0))
            except LedgerError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ask(ledger, question(1))
        assert is_replayed(ledger, question(1))


def test_other_runs_and_other_files_are_refused(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger(path, name="seed 1") as ledger:
        ledger.admit("teacher@1")
        ask(ledger, question(0))
    before = path.read_bytes()
    with pytest.raises(WrongLedger, match="'seed 1', not to 'seed 2'"):
        Ledger(path, name="seed 2")
    assert path.read_bytes() == before
    with Ledger(path) as ledger, pytest.raises(WrongLedger, match="none of 'teacher@2'"):
        ledger.admit("teacher@2")
    other = tmp_path / "other.sqlite"
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(WrongLedger, match="something else"):
        Ledger(other)
    text = tmp_path / "notes.txt"
    text.write_text("not a ledger, but long enough to look at " * 30)
    with pytest.raises(LedgerError):
        Ledger(text)
    assert text.read_text().startswith("not a ledger")
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "absent.ledger", write=False)
    empty = tmp_path / "empty.ledger"
    empty.touch()
    with pytest.raises(DamagedLedger, match="empty"):
        Ledger(empty)
    assert empty.stat().st_size == 0


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "run.ledger"
    moments = iter(range(2_000_000_000, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    with Ledger(path) as ledger:
        ask(ledger, question(0))
        ask(ledger, question(1), until="sent")
    with Ledger(path) as ledger:
        assert is_replayed(ledger, question(0))
        assert len(ledger.unsettled()) == 1
        assert ledger.spent.seconds == pytest.approx(0.1)
    assert "clock" in verified(path).remarks[0]


def test_a_full_disk_is_said_and_survived(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger(path) as ledger:
        ask(ledger, question(0))
        pages = ledger._log._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._log._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(LedgerError, match="disk's space"):
            ask(ledger, question(1, rows=tail.SIZE // 16))  # too large for the tail
        ledger._log._connection.execute("PRAGMA max_page_count=1000000")
        ask(ledger, question(2))
        assert is_replayed(ledger, question(0))
        assert is_replayed(ledger, question(2))
    assert verified(path).questions == 2


# -- what is written, and how often -----------------------------------------------------------------


def _commits(ledger: Ledger, monkeypatch) -> list[list[str]]:
    """The kinds of events of every commit from now on."""
    found: list[list[str]] = []
    real = ledger._log._committed

    def counting(groups):
        found.append([event.body["kind"] for events in groups for event in events])
        return real(groups)

    monkeypatch.setattr(ledger._log, "_committed", counting)
    return found


def test_a_question_of_one_request_costs_two_commits(tmp_path, monkeypatch):
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(lambda z: (z**2 / 2, z), ledger=ledger, name="squares") as oracle,
    ):
        commits = _commits(ledger, monkeypatch)
        for number in range(3):
            oracle.query(torch.arange(4.0) + number)
    assert commits == 3 * [["question", "reserved", "sent"], ["answered"]]


def test_a_request_that_is_paid_by_attempt_is_sent_only_when_it_has_its_turn(tmp_path, monkeypatch):
    """Without keys, what is written as sent and was not would count as paid after a crash."""
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(
            lambda z: (z**2 / 2, z), ledger=ledger, name="squares", price=1, batch=2, concurrency=1
        ) as oracle,
    ):
        commits = _commits(ledger, monkeypatch)
        oracle.query(torch.arange(4.0))
    first = ["question", "reserved", "reserved"]
    assert commits == [first, ["sent"], ["answered"], ["sent"], ["answered"]]


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_requests_that_were_announced_and_not_sent_cost_nothing(tmp_path, seconds):
    """The first request fails for good, or time runs out; the others never had their turn."""

    def simulator(z):
        time.sleep(30 * seconds)
        raise TypeError("no such engine")

    budget = to.Budget(seconds=seconds) if seconds else to.Budget()
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(
            simulator, ledger=ledger, name="x", batch=1, concurrency=1, budget=budget
        ) as oracle,
    ):
        with pytest.raises(to.BudgetExceeded if seconds else TypeError):
            oracle.query(torch.arange(6.0))
        assert not ledger.unsettled()
        assert (ledger.spent.calls, ledger.spent.rows, ledger.maybe.rows) == (1, 1, 1)
        assert (budget.spent.calls, budget.spent.rows) == (1, 1)


def test_those_who_write_at_the_same_time_share_commits(tmp_path, monkeypatch):
    with Ledger(tmp_path / "run.ledger") as ledger:
        commits = _commits(ledger, monkeypatch)
        go = threading.Barrier(8)

        def work(number: int) -> None:
            go.wait()
            for i in range(6):
                ask(ledger, question(100 * number + i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.questions) == 48
        assert sum(map(len, commits)) == 4 * 48
        assert len(commits) < 3 * 48 / 2  # three writes for each question
    with Ledger(tmp_path / "run.ledger") as ledger:
        assert all(is_replayed(ledger, question(100 * n + i)) for n in range(8) for i in range(6))


# -- killed -----------------------------------------------------------------------------------------


def _killed_at(path: Path, moment: float, *, after_first: bool) -> set[int]:
    """A child writes questions and says when each answer is written; what it said before it was killed."""
    listening, saying = os.pipe()
    child = os.fork()
    if child == 0:  # a process of its own, to its death
        os.close(listening)
        try:
            ledger = Ledger(path)
            for number in range(len(ledger.questions), 10_000):
                ask(ledger, question(number))
                os.write(saying, number.to_bytes(4, "little"))
        finally:
            os._exit(1)
    os.close(saying)
    first = os.read(listening, 4) if after_first else b""
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(listening, "rb") as pipe:
        said = first + pipe.read()
    return {int.from_bytes(said[i : i + 4], "little") for i in range(0, len(said), 4)}


@pytest.mark.parametrize("size", [tail.SIZE, 3000])
def test_killed_at_random_moments_nothing_written_is_lost(tmp_path, monkeypatch, size):
    """In a small tail most moments are those in which it is full and SQLite gets its events."""
    monkeypatch.setattr(tail, "SIZE", size)
    path = tmp_path / "run.ledger"
    dice = random.Random(3)
    said: set[int] = set()
    for kill in range(20):  # every other one at any moment, the others after an answer is written
        said |= _killed_at(path, dice.uniform(0.0, 0.15), after_first=kill % 2 == 0)
        with Ledger(path) as ledger:
            assert all(is_replayed(ledger, question(number)) for number in said)
            begun = set(ledger.questions)
    assert len(said) >= 10
    assert len(begun) > len(said)  # some were killed between question and answer
    assert {p.name for p in tmp_path.iterdir()} == {"run.ledger", "run.ledger-writer"}


# -- damaged ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "sound.ledger"
    with Ledger(path) as ledger:
        ledger.admit("teacher")
        ask(ledger, question(0))
        ask(ledger, question(1), until="sent")
        ask(ledger, question(2, rows=300))  # larger than a page
    return path


def contents(path: Path) -> list[str]:
    with Ledger(path, write=False) as ledger:
        return [repr((line, {n: np.asarray(c).tobytes() for n, c in columns.items()}))
                for line, columns in ledger.records()]  # fmt: skip


def _the_same_or_refused(path: Path, truth: list[str]) -> str:
    try:
        assert contents(path) == truth
    except LedgerError:
        return "refused"
    return "the same"


def _probe(sound: Path, where: Path, places: range, dice: random.Random) -> dict[str, int]:
    truth, data = contents(sound), sound.read_bytes()
    copy = where / "copy.ledger"
    outcomes = {"refused": 0, "the same": 0}
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= dice.randrange(1, 256)
        copy.write_bytes(damaged)
        outcomes[_the_same_or_refused(copy, truth)] += 1
        assert copy.read_bytes() == damaged  # looking changes nothing
    return outcomes


def test_damage_is_refused_or_does_not_matter(sound, tmp_path):
    size = sound.stat().st_size
    outcomes = _probe(sound, tmp_path, range(3, size, 61), random.Random(0))
    assert outcomes["refused"] > 0.3 * sum(outcomes.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_damage_at_every_byte(sound, tmp_path):
    outcomes = _probe(sound, tmp_path, range(sound.stat().st_size), random.Random(1))
    assert sum(outcomes.values()) == sound.stat().st_size


def test_a_file_cut_short_is_refused(sound, tmp_path):
    truth, data = contents(sound), sound.read_bytes()
    copy = tmp_path / "copy.ledger"
    for length in range(0, len(data), 509):
        copy.write_bytes(data[:length])
        assert _the_same_or_refused(copy, truth) == "refused"
        with pytest.raises(LedgerError):
            Ledger(copy)
        assert copy.stat().st_size == length


def test_what_is_refused_leaves_no_file_open(sound, tmp_path, monkeypatch):
    """Python 3.13 warns of connections that are forgotten; on other systems the file could not be deleted."""
    opened = []

    def connect(*arguments, really=sqlite3.connect, **options):
        opened.append(really(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    copy, data = tmp_path / "copy.ledger", sound.read_bytes()
    for length in (0, 100, len(data) // 2, len(data) - 509):
        copy.write_bytes(data[:length])
        with pytest.raises(LedgerError):
            Ledger(copy)
    with pytest.raises(CacheError, match="an SQLite file of something else"):
        to.Cache(sound)
    assert len(opened) > 5
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("rubbish", [b"", b"\0" * 5000, b"\xd9\xd5\x05\xf9" * 900])
def test_rubbish_in_place_of_a_journal_does_no_harm(sound, tmp_path, rubbish):
    copy = tmp_path / "copy.ledger"
    shutil.copy(sound, copy)
    copy.with_name("copy.ledger-journal").write_bytes(rubbish)
    with Ledger(copy) as ledger:
        ask(ledger, question(7))
    assert contents(copy)[: len(contents(sound))] == contents(sound)
    with Ledger(copy) as ledger:
        assert is_replayed(ledger, question(7))


def test_a_damaged_ledger_is_not_written_to_and_is_salvaged(sound, tmp_path):
    copy = tmp_path / "copy.ledger"
    shutil.copy(sound, copy)
    data = bytearray(copy.read_bytes())
    place = data.find(b'"kind":"sent"')
    data[place + 9] ^= 1
    copy.write_bytes(data)
    with pytest.raises(
        DamagedLedger, match=r"record \d+ is not what was written.*--salvage"
    ) as caught:
        Ledger(copy)
    assert caught.value.trusted > 0
    assert copy.read_bytes() == data
    whole = {line.seq for line, _ in salvaged(sound)}
    saved = {line.seq for line, _ in salvaged(copy)}
    assert saved < whole
    assert (
        len(whole - saved) == 1
    )  # the damaged record; all others are certain by their own digests


# -- the tail: what is written and not yet in SQLite ------------------------------------------------------


def _as_it_lies(path: Path, where: Path) -> Path:
    """What a machine that loses its power now finds again: the files of an open ledger, without its lock."""
    where.mkdir(exist_ok=True)
    for name in (path.name, f"{path.name}-tail", f"{path.name}-journal"):
        (where / name).unlink(missing_ok=True)
        if path.with_name(name).exists():
            shutil.copy(path.with_name(name), where / name)
    return where / path.name


@pytest.fixture
def unfinished(tmp_path, monkeypatch) -> tuple[Path, list[str], list[int]]:
    """A ledger whose process was killed, its contents, and where its tail's groups begin and end."""
    monkeypatch.setattr(tail, "SIZE", 8192)
    with Ledger(tmp_path / "run.ledger") as ledger:
        for number in range(
            12
        ):  # the tail was full and began again: old groups lie behind the new ones
            ask(ledger, question(number))
        truth = contents(ledger.path)
        copy = _as_it_lies(ledger.path, tmp_path / "found")
        folded, end = ledger._log._folded[0], ledger._log._tail._end
    data = tail.beside(copy).read_bytes()
    groups = [group for group in tail.groups(data) if group.last > folded]
    assert 2 < len(groups) < len(list(tail.groups(data)))
    return copy, truth, [*(data.find(tail._encoded(*group)) for group in groups), end]


def test_a_question_waits_for_the_disk_twice(tmp_path, monkeypatch):
    waits = []
    real = tail._sync
    monkeypatch.setattr(tail, "_sync", lambda handle: waits.append(real(handle)))
    with (
        to.Ledger(tmp_path / "run.ledger") as ledger,
        to.RemoteOracle(lambda z: (z**2 / 2, z), ledger=ledger, name="squares") as oracle,
    ):
        folds = []
        fold = ledger._log._fold
        monkeypatch.setattr(ledger._log, "_fold", lambda *a: folds.append(fold(*a)))
        waits.clear()
        for number in range(10):
            oracle.query(torch.arange(4.0) + number)
        assert (len(waits), len(folds)) == (20, 0)
    assert len(folds) == 1  # when it was closed
    assert not tail.beside(tmp_path / "run.ledger").exists()


@pytest.mark.parametrize("size", [tail.SIZE, 5000, 1])
def test_whatever_moment_the_power_goes_what_was_written_is_there(tmp_path, monkeypatch, size):
    monkeypatch.setattr(tail, "SIZE", size)
    path = tmp_path / "run.ledger"
    with Ledger(path) as ledger:
        fold = ledger._log._fold

        def looked_at(*arguments):
            """SQLite has it, and the tail has it too: the moment before the tail begins again."""
            before = (tail.found(path), contents(path))
            fold(*arguments)
            copy = _as_it_lies(path, tmp_path / "found")
            tail.beside(copy).write_bytes(before[0])
            assert contents(copy)[: len(before[1])] == before[1]

        monkeypatch.setattr(ledger._log, "_fold", looked_at)
        for number in range(8):
            ask(ledger, question(number))
            copy = _as_it_lies(path, tmp_path / "found")
            assert contents(copy) == contents(path)
            with Ledger(copy) as again:
                assert all(is_replayed(again, question(n)) for n in range(number + 1))
                ask(again, question(100))
            assert contents(copy)[: len(contents(path))] == contents(path)
            assert not tail.beside(copy).exists()
        monkeypatch.setattr(ledger._log, "_fold", fold)
    assert verified(path).questions == 8


def test_a_write_that_was_cut_off_never_happened(unfinished):
    """Whatever part of the last group is on the disk, the events before it are whole and it is not there."""
    path, truth, ends = unfinished
    data = tail.beside(path).read_bytes()
    begin, end = ends[-2], ends[-1]
    for cut in range(begin, end, 5):
        tail.beside(path).write_bytes(data[:cut] + bytes(end - cut) + data[end:])
        assert contents(path) == truth[:-1]
    tail.beside(path).write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    with Ledger(path) as ledger:
        assert not ledger.replay(question(11))
        ask(ledger, question(12))
    assert contents(path)[: len(truth) - 1] == truth[:-1]


def test_damage_of_the_tail_is_refused_or_does_not_matter(unfinished):
    path, truth, ends = unfinished
    data, dice = tail.beside(path).read_bytes(), random.Random(2)
    for place in range(0, len(data), 37):
        damaged = bytearray(data)
        damaged[place] ^= dice.randrange(1, 256)
        tail.beside(path).write_bytes(damaged)
        if ends[0] <= place < ends[-2]:
            with pytest.raises(DamagedLedger, match="does not continue it after record"):
                contents(path)
            with pytest.raises(DamagedLedger):
                Ledger(path)
            assert tail.beside(path).read_bytes() == damaged
            saved = [line.seq for line, _ in salvaged(path)]
            assert len(saved) < len(truth)
            assert saved[-1] == len(truth)
        elif ends[-2] <= place < ends[-1]:  # as if it had been cut off
            assert contents(path) == truth[:-1]
        else:
            assert contents(path) == truth


def test_a_ledger_and_its_tail_belong_together(unfinished, tmp_path):
    path, truth, _ = unfinished
    data = tail.beside(path).read_bytes()
    tail.beside(path).unlink()
    with pytest.raises(DamagedLedger, match=r"in run\.ledger-tail, which is not beside it"):
        Ledger(path)
    with Ledger(tmp_path / "other.ledger") as other:
        ask(other, question(0))
        theirs = tail.beside(other.path).read_bytes()
        tail.beside(path).write_bytes(data)
    shutil.copy(tmp_path / "other.ledger", tmp_path / "found" / "other.ledger")
    tail.beside(tmp_path / "found" / "other.ledger").write_bytes(data)
    with pytest.raises(DamagedLedger, match=r"other\.ledger-tail does not continue it"):
        Ledger(tmp_path / "found" / "other.ledger")
    with Ledger(path) as ledger:  # with its own it goes on
        ask(ledger, question(12))
    tail.beside(path).write_bytes(data)  # and what SQLite has by now does no harm
    assert contents(path)[: len(truth)] == truth
    assert theirs != data


# -- the command line -----------------------------------------------------------------------------------


def run(*words: object) -> tuple[int, str]:
    from typer.testing import CliRunner

    from targetopt.lab.cli.ledger import app

    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_show_and_verify_say_what_is_there(sound):
    code, text = run("show", sound)
    assert code == 0
    for line in ("questions   3, in 3 requests", "rows        308", "money       0.12"):
        assert line in text
    assert "may have been paid: 4 rows, 0.04" in text
    assert "request 2: 4 rows sent, no outcome" in text
    assert run("verify", sound) == (0, f"{sound}: sound, 14 records of 3 questions in 1 sessions\n")
    code, text = run("show", sound.with_name("absent"))
    assert code == 1
    assert "there is no ledger" in text


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_export_writes_every_answered_row(sound, tmp_path, kind):
    out = tmp_path / f"answers.{kind}"
    assert run("export", sound, out) == (0, f"304 answered rows in {out}\n")
    if kind == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pyarrow.parquet.read_table(out).to_pylist()
    asked = question(2, rows=300)
    for row in rows[4:]:
        assert row["question"] == asked.digest
        assert np.array_equal(row["targets"], asked.columns["targets"][row["row"]])
        assert np.array_equal(row["gradients"], row["targets"])
    assert run("export", sound, out)[0] == 1  # it does not overwrite


def test_export_salvages(sound, tmp_path):
    copy = tmp_path / "copy.ledger"
    data = bytearray(sound.read_bytes())
    data[data.find(b'"kind":"sent"') + 9] ^= 1
    copy.write_bytes(data)
    code, text = run("export", copy)
    assert code == 1
    assert "is damaged" in text
    code, text = run("export", copy, "--salvage")
    assert (code, text.startswith("304 answered rows")) == (0, True)
