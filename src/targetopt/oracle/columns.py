"""Rows of questions and answers as named columns, and their one encoding in bytes.

A column is a numpy array with one row per example, or a list of JSON values (prompts, say). The encoding
is a JSON header and the arrays' raw bytes, little-endian. Reading it never runs code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from targetopt.types import BadArgument

Column = np.ndarray[Any, Any] | list[Any]
"""One value per example."""

Columns = dict[str, Column]
"""Columns of equal length, by name."""

KINDS = "bifu"  # booleans, whole and floating-point numbers
JSON = "json"


def as_column(name: str, values: object) -> Column:
    """``values`` as a column: tensors and arrays of numbers as arrays, other sequences as JSON values."""
    if isinstance(values, Tensor):
        try:
            values = values.detach().cpu().numpy()
        except TypeError as error:
            raise BadArgument(
                f"{name}: tensors of {values.dtype} have no numpy counterpart; pass {name}.float()"
            ) from error
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in KINDS or values.ndim == 0:
            raise BadArgument(
                f"{name} must be an array of numbers with one row per example; got {values.dtype} of "
                f"shape {values.shape}"
            )
        return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadArgument(
                f"{name} must be a tensor, an array, or a list of texts or other JSON values: {error}"
            ) from error
        return list(values)
    raise BadArgument(
        f"{name}={type(values).__name__} must be a tensor, an array or a list, one row per example"
    )


def taken(columns: Mapping[str, Column], positions: Sequence[int]) -> Columns:
    """These rows of every column, in this order."""
    rows = np.asarray(positions, dtype=np.intp)
    return {
        name: column[rows] if isinstance(column, np.ndarray) else [column[i] for i in rows]
        for name, column in columns.items()
    }


def joined(parts: Sequence[tuple[Sequence[int], Mapping[str, Column]]], rows: int) -> Columns:
    """Columns of ``rows`` rows from parts that say which rows they are; all rows must be there."""
    names = list(parts[0][1])
    result: Columns = {}
    for name in names:
        first = parts[0][1][name]
        if isinstance(first, np.ndarray):
            dtype = np.result_type(*(np.asarray(part[name]).dtype for _, part in parts))
            array = np.empty((rows, *first.shape[1:]), dtype=dtype)
            for positions, part in parts:
                array[np.asarray(positions, dtype=np.intp)] = part[name]
            result[name] = array
        else:
            values: list[Any] = [None] * rows
            for positions, part in parts:
                for position, value in zip(positions, part[name], strict=True):
                    values[position] = value
            result[name] = values
    return result


def pack(columns: Mapping[str, Column]) -> bytes:
    """Columns as bytes.

    Example:
        >>> import numpy as np
        >>> unpack(pack({"ids": ["a", "b"], "z": np.array([1.5, 2.0])}))
        {'ids': ['a', 'b'], 'z': array([1.5, 2. ])}
    """
    header: list[list[object]] = []
    payload: list[bytes] = []
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            header.append([name, column.dtype.str, list(column.shape)])
            payload.append(column.tobytes())
        else:
            data = json.dumps(column, ensure_ascii=False, separators=(",", ":")).encode()
            header.append([name, JSON, [len(column), len(data)]])
            payload.append(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *payload])


def unpack(data: bytes) -> Columns:
    """What `pack` encoded; `ValueError` where the bytes are none of it."""
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    columns: Columns = {}
    start = 4 + size
    for name, dtype, shape in header:
        if dtype == JSON:
            end = start + shape[1]
            columns[name] = json.loads(data[start:end])
        else:
            kind = np.dtype(dtype)
            if kind.kind not in KINDS:
                raise ValueError(f"column {name!r} is of type {dtype}")
            count = math.prod(shape)
            end = start + count * kind.itemsize
            columns[name] = (
                np.frombuffer(data, dtype=kind, count=count, offset=start).reshape(shape).copy()
            )
        start = end
    if start != len(data):
        raise ValueError("bytes are left over")
    return columns


def digest(*parts: bytes) -> str:
    """A name for these bytes: 128 bits, hexadecimal."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def row_digests(identity: str, columns: Mapping[str, Column]) -> list[bytes]:
    """A key for every row: the same for the same oracle and the same content."""
    start = hashlib.blake2b(identity.encode(), digest_size=16)
    rows = len(next(iter(columns.values())))
    hashes = [start.copy() for _ in range(rows)]
    for name, column in columns.items():
        label = name.encode()
        if isinstance(column, np.ndarray):
            label += f"{column.dtype.str}{column.shape[1:]}".encode()
            for total, row in zip(hashes, column, strict=True):
                total.update(label + row.tobytes())
        else:
            for total, value in zip(hashes, column, strict=True):
                total.update(label + json.dumps(value, sort_keys=True).encode())
    return [total.digest() for total in hashes]
