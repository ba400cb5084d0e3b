"""`Ledger`: every question and answer of a run in a file, written before it is believed."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Literal

from targetopt.oracle.columns import Columns, unpack
from targetopt.oracle.errors import DamagedLedger, LedgerError, WrongLedger
from targetopt.oracle.ledger.book import Book
from targetopt.oracle.ledger.log import Event, EventLog, Line
from targetopt.oracle.question import Question, from_ranges
from targetopt.types import BadArgument

Policy = Literal["key", "again", "stop"]
POLICIES = ("key", "again", "stop")


class Ledger(Book):
    """The questions and answers of one run, in a file that survives the process.

    Give it to an oracle that is paid for. Each request is written before it is sent, each answer before
    it is used. A run that is started again (from a checkpoint, or from the beginning) asks the same
    questions, and those that were answered are replayed from the file: nothing is paid twice.

    Requests that were sent when the process ended, and whose answers were not written, may have been
    paid. ``unsettled`` says what happens to them when their question comes up again.

    Args:
        path: the file; made if it is not there. Keep it on a local disk.
        name: of the run. A ledger made under another name is refused.
        unsettled: ``"key"`` asks again with the same idempotency key, for services that bill a key once;
            ``"again"`` asks again and counts both as paid; ``"stop"`` raises `UnsettledRequests`. By
            default the oracle chooses: by key where its service honours keys, again where it has no price,
            else stop.
        write: False to read while another process writes.

    Example:
        >>> import tempfile, pathlib, torch, targetopt as to
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.ledger"
        >>> calls = []
        >>> def simulator(z):
        ...     calls.append(len(z))
        ...     return 0.5 * z**2, z
        >>> z = torch.tensor([1.0, 2.0])
        >>> for process in range(2):
        ...     with to.Ledger(path) as ledger:
        ...         with to.RemoteOracle(simulator, ledger=ledger) as oracle:
        ...             print(oracle.query(z).losses, calls)
        tensor([0.5000, 2.0000]) [2]
        tensor([0.5000, 2.0000]) [2]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "",
        unsettled: Policy | None = None,
        write: bool = True,
    ) -> None:
        super().__init__()
        if unsettled is not None and unsettled not in POLICIES:
            raise BadArgument(
                f"Ledger: unsettled={unsettled!r} must be one of {', '.join(POLICIES)}, or None"
            )
        self.name = name
        self.policy = unsettled
        self.run = self.name_in_file = ""
        self._log = EventLog(path, write=write)
        self.path = self._log.path
        try:
            self._load()
            if write:
                self._begin()
        except BaseException:
            self._log.close()
            raise

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, {len(self.questions)} questions)"

    def _load(self) -> None:
        trusted = 0
        self.last_seen = 0.0
        try:
            for line in self.load(self._log.lines()):
                trusted = line.seq
                self.last_seen = max(self.last_seen, line.body.get("at", 0.0))
        except (KeyError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise DamagedLedger(
                self.path, f"record {trusted + 1} cannot be read ({error!r})", trusted
            ) from error
        self._old_oracles = set(self.oracles)

    def _begin(self) -> None:
        events = []
        if not self.run:
            events.append(
                Event({"kind": "run", "run": secrets.token_hex(8), "name": self.name, "format": 1})
            )
        elif self.name and self.name != self.name_in_file:
            raise WrongLedger(
                f"the ledger {self.path} belongs to the run {self.name_in_file!r}, not to {self.name!r}. "
                "Choose another path for this run."
            )
        self.write([*events, Event({"kind": "session"})]).result()

    def _on_run(self, line: Line) -> None:
        super()._on_run(line)
        self.name_in_file = line.body["name"]

    def admit(self, oracle: str) -> None:
        """Let an oracle use this ledger; refused if the ledger was made with others only."""
        if oracle in self.oracles:
            return
        if self._old_oracles:
            raise WrongLedger(
                f"the ledger {self.path} has answers of {', '.join(map(repr, sorted(self._old_oracles)))}, "
                f"none of {oracle!r}: it belongs to another run, or the oracle's name or version changed. "
                "Choose another path, or give the oracle the name= and version= it had."
            )
        self.write([Event({"kind": "oracle", "oracle": oracle})]).result()

    # -- writing --------------------------------------------------------------------------------------

    def write(self, events: Sequence[Event]) -> Future[None]:
        """Append events in one transaction; done when they are on the disk and in the book."""
        now = round(time.time(), 3)
        return self._log.append(
            [Event({**e.body, "at": now}, e.content) for e in events], self.apply
        )

    def _keep_answer(self, line: Line) -> None:
        self._answers[line.body["question"]].append(line)

    def forget(self, question: Question) -> None:
        """A ledger remembers."""

    # -- reading --------------------------------------------------------------------------------------

    def replay(self, question: Question) -> list[tuple[list[int], Columns]]:
        with self._guard:
            lines = list(self._answers.get(question.digest, ()))
        return [(from_ranges(line.body["positions"]), self._columns(line)) for line in lines]

    def _columns(self, line: Line) -> Columns:
        data = self._log.content(line)
        try:
            return unpack(data)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"record {line.seq} of {self.path} has arrays this version cannot read: {error}"
            ) from error

    def lines(self) -> Iterator[Line]:
        """Every event in order, without its columns."""
        yield from list(self._log.lines())

    def check(self) -> None:
        """Let SQLite check the file; `DamagedLedger` if it finds something."""
        self._log.check()

    def records(self) -> Iterator[tuple[Line, Columns]]:
        """Every event in order, with its columns where it has any."""
        for line in self.lines():
            yield line, self._columns(line) if "content" in line.body else {}

    # -- closing --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is left, and let go of the file. Closing twice does nothing."""
        self._log.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
