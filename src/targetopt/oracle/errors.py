"""What goes wrong with oracles that are paid for, remote or slow; each error says how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from targetopt.types import TargetoptError


class BudgetExceeded(TargetoptError, RuntimeError):
    """The next request would exceed the budget. It was not sent, and nothing was changed."""


class OracleUnavailable(TargetoptError, ConnectionError):
    """An oracle gave no usable answer after all attempts. Answers that came are kept in the ledger."""


class LedgerError(TargetoptError, OSError):
    """The ledger cannot be opened, read or written. Its file was not changed."""


class DamagedLedger(LedgerError):
    """Bytes of the ledger are not what was written.

    Attributes:
        path: the file.
        trusted: records before the first damaged one, which can still be exported.
    """

    def __init__(self, path: Path, what: str, trusted: int = 0) -> None:
        super().__init__(
            f"the ledger {path} is damaged: {what}. The file was not changed. Restore it from a copy, or "
            f"save what can still be read ({trusted} records are certain) with: targetopt ledger export "
            f"{path} --salvage"
        )
        self.path = path
        self.trusted = trusted


class WrongLedger(LedgerError):
    """The ledger belongs to another run or to other oracles."""


class UnsettledRequests(TargetoptError, RuntimeError):
    """Requests were sent, the process ended, and no answer was written: they may have been paid.

    Attributes:
        requests: their numbers in the ledger.
    """

    def __init__(self, requests: Sequence[int], rows: int, path: Path | None) -> None:
        shown = ", ".join(map(str, requests[:10])) + (", …" if len(requests) > 10 else "")
        super().__init__(
            f"{len(requests)} requests with {rows} rows were sent by an earlier process that ended before "
            f"their answers were written to {path}: {shown}. They may have been paid. Nothing was sent. Look "
            "at them with 'targetopt ledger show', then open the ledger with unsettled='again' to ask (and "
            "perhaps pay) again, or with unsettled='key' if the service bills one idempotency key once."
        )
        self.requests = list(requests)
