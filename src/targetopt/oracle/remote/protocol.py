"""The protocol between `RemoteOracle` and a service: one POST per request, in JSON or Arrow.

A request has ``question`` (a digest), ``ids`` (one whole number per row) and the columns ``targets``
and/or ``inputs``, one entry per row. The answer repeats ``question``, has the ``ids`` of the rows it answers
(all, some, in any order) and the columns of the oracle's form, ``losses`` and ``gradients`` by default; it
may have ``price``, what was billed. The header ``Idempotency-Key`` names the request: a service that
gets a key again must answer as before and not bill again. In Arrow the columns are those of one stream of
record batches, and ``question`` and ``price`` are metadata of its schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol

import numpy as np

from targetopt.oracle.columns import Column, Columns
from targetopt.oracle.remote.outcome import Reply
from targetopt.types import BadAnswer, BadArgument, MissingCapability


class Wire(Protocol):
    """A way to write requests and to read answers.

    Attributes:
        content_type: what it calls itself in HTTP headers.
    """

    content_type: str

    def encode(self, question: str, ids: Sequence[int], columns: Columns) -> bytes: ...

    def decode(self, body: bytes, question: str, names: Sequence[str]) -> Reply: ...


class Json:
    """Numbers as text that reads back to the same bits; any language speaks it."""

    content_type = "application/json"

    def encode(self, question: str, ids: Sequence[int], columns: Columns) -> bytes:
        body = {"question": question, "ids": list(ids)}
        listed = {n: c.tolist() if isinstance(c, np.ndarray) else c for n, c in columns.items()}
        try:
            return json.dumps({**body, **listed}, allow_nan=False).encode()
        except ValueError as error:
            raise BadArgument(
                "the question has numbers that are not finite, which JSON cannot express; clean the inputs, or "
                "use Service(url, format='arrow')"
            ) from error

    def decode(self, body: bytes, question: str, names: Sequence[str]) -> Reply:
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise BadAnswer(f"it is not JSON ({error}); it begins {body[:40]!r}") from error
        if not isinstance(answer, dict):
            raise BadAnswer(f"it must be a JSON object; got {type(answer).__name__}")
        columns = {name: answer[name] for name in names if name in answer}
        return _reply(answer, columns, question, names)


class Arrow:
    """Arrays as Arrow record batches: several times smaller and faster than JSON for wide targets."""

    content_type = "application/vnd.apache.arrow.stream"

    def __init__(self) -> None:
        try:
            import pyarrow
        except ImportError as error:
            raise MissingCapability(
                "format='arrow' needs pyarrow, which is not installed: pip install pyarrow. Or use "
                "format='json'."
            ) from error
        self.arrow: Any = pyarrow

    def encode(self, question: str, ids: Sequence[int], columns: Columns) -> bytes:
        return self.written({"question": question}, {"ids": np.asarray(ids, np.int64), **columns})

    def written(self, metadata: Mapping[str, str], columns: Columns) -> bytes:
        """A stream with these columns; services in Python may use it for their answers."""
        table = self.arrow.table({name: self.column(c) for name, c in columns.items()})
        table = table.replace_schema_metadata(dict(metadata))
        sink = self.arrow.BufferOutputStream()
        with self.arrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def column(self, column: Column) -> Any:
        """An Arrow array: rows of an array as lists of fixed sizes, JSON values as text."""
        if not isinstance(column, np.ndarray):
            return self.arrow.array([json.dumps(value) for value in column])
        flat = self.arrow.array(column.reshape(-1))
        for extent in reversed(column.shape[1:]):
            flat = self.arrow.FixedSizeListArray.from_arrays(flat, extent)
        return flat

    def read(self, body: bytes) -> tuple[dict[str, str], Columns]:
        """The metadata and columns of a stream."""
        try:
            with self.arrow.ipc.open_stream(body) as reader:
                table = reader.read_all()
        except (self.arrow.ArrowException, OSError, ValueError) as error:
            raise BadAnswer(f"it is not an Arrow stream: {error}") from error
        metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        return metadata, {n: self._array(n, table[n].combine_chunks()) for n in table.column_names}

    def _array(self, name: str, values: Any) -> Column:
        if isinstance(values, self.arrow.ChunkedArray):
            values = self.arrow.concat_arrays(values.chunks)
        if values.null_count:
            raise BadAnswer(f"{name} has nulls")
        if self.arrow.types.is_string(values.type):
            return [json.loads(text) for text in values.to_pylist()]
        shape = [len(values)]
        while self.arrow.types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
            values = values.flatten()
        if self.arrow.types.is_list(values.type):
            return np.asarray(values.to_pylist())
        return np.asarray(values).reshape(shape)

    def decode(self, body: bytes, question: str, names: Sequence[str]) -> Reply:
        metadata, columns = self.read(body)
        answer: dict[str, Any] = dict(metadata)
        if "ids" in columns:
            answer["ids"] = np.asarray(columns["ids"]).tolist()
        return _reply(answer, columns, question, names)


FORMATS: dict[str, type[Json] | type[Arrow]] = {"json": Json, "arrow": Arrow}


def _reply(
    answer: Mapping[str, Any], columns: Columns, question: str, names: Sequence[str]
) -> Reply:
    if answer.get("question") != question:
        raise BadAnswer(
            f"it answers another question: {str(answer.get('question'))[:40]!r}, not {question!r}"
        )
    missing = [name for name in names if name not in columns]
    if missing:
        raise BadAnswer(f"it has no {' and no '.join(missing)}")
    ids = answer.get("ids")
    if ids is not None and not (
        isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    ):
        raise BadAnswer("its ids must be a list of whole numbers")
    return Reply({name: columns[name] for name in names}, ids, price(answer.get("price")))


def price(stated: object) -> Decimal | None:
    """What was billed, if the answer says so."""
    if stated is None:
        return None
    try:
        amount = Decimal(repr(stated) if isinstance(stated, float) else str(stated))
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite() or amount < 0 or not math.isfinite(amount):
        raise BadAnswer(f"its price {stated!r} must be a number ≥ 0")
    return amount
