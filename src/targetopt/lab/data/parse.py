"""LIBSVM text to a matrix: fast when the text is right, exact about the line when it is not.

A line is ``label index:value index:value ...`` with indices counted from 1 and increasing.
"""

import bz2
import gzip
import lzma
import math
import re
import warnings
import zlib
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from targetopt.lab.data.errors import ParseError
from targetopt.lab.data.matrix import LabelledMatrix

_CHUNK = 1 << 20
_MAGIC: tuple[tuple[bytes, type[bz2.BZ2File | gzip.GzipFile | lzma.LZMAFile]], ...] = (
    (b"BZh", bz2.BZ2File),
    (b"\x1f\x8b", gzip.GzipFile),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)
_SPACE, _COLON, _NEWLINE = b" :\n"
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def read_text(path: Path, *, limit: int) -> bytes:
    """The text of a plain, bzip2, gzip or xz file, by its content and not by its name.

    Args:
        path: the file.
        limit: the most bytes of text that are accepted. Decompression stops there, so a small file
            that unfolds into gigabytes costs neither memory nor time.
    """
    with path.open("rb") as file:
        head = file.read(8)
    compressed = next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)
    chunks: list[bytes] = []
    size = 0
    try:
        with compressed(path) if compressed else path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise ParseError(
                        f"{path}: unfolds to more than {limit:,} bytes of text, the most that this "
                        "data set can have; this is another file. Remove it and fetch it again."
                    )
                chunks.append(chunk)
    except EOFError:
        lines = sum(chunk.count(b"\n") for chunk in chunks)
        raise ParseError(
            f"{path}: truncated, the compressed stream ends after line {lines}. "
            "Remove it and fetch it again."
        ) from None
    except (OSError, lzma.LZMAError, zlib.error) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # the disk's error, not the file's
            raise
        lines = sum(chunk.count(b"\n") for chunk in chunks)
        raise ParseError(
            f"{path}: damaged, the compressed stream cannot be read after line {lines} ({error}). "
            "Remove it and fetch it again."
        ) from None
    return b"".join(chunks)


def parse_text(text: bytes, *, columns: int, source: str = "text") -> LabelledMatrix:
    r"""Parse LIBSVM text.

    Args:
        text: the lines.
        columns: number of features; a larger index is an error.
        source: how errors call the text.

    Example:
        >>> data = parse_text(b"1 1:0.5 3:2\n-1 2:1e-1\n", columns=3)
        >>> data.X.toarray().tolist(), data.labels.tolist()
        ([[0.5, 0.0, 2.0], [0.0, 0.1, 0.0]], [1.0, -1.0])
    """
    parsed = _parse_clean(text, columns)
    return parsed if parsed is not None else _parse_lines(text, columns, source)


def _parse_clean(text: bytes, columns: int) -> LabelledMatrix | None:
    """Whole-array parsing of text without any flaw; None when there is anything to look at."""
    if not text.endswith(b"\n"):
        text += b"\n"
    if b"\r" in text or b"\t" in text:
        text = text.replace(b"\r\n", b" \n").replace(b"\t", b" ")
    raw = np.frombuffer(text, dtype=np.uint8)
    breaks = np.flatnonzero((raw == _SPACE) | (raw == _COLON) | (raw == _NEWLINE))
    after = raw[breaks]
    before = np.concatenate((np.array([_NEWLINE], np.uint8), after[:-1]))
    is_token = np.diff(breaks, prepend=-1) > 1  # else two separators stand side by side
    row = np.cumsum(before == _NEWLINE)[is_token] - 1
    rows = int((after == _NEWLINE).sum())
    tokens = np.bincount(row, minlength=rows)
    if tokens.min() == 0:
        return None  # an empty line

    is_index, is_value = after[is_token] == _COLON, before[is_token] == _COLON
    is_label = np.diff(row, prepend=-1) > 0
    one_role = is_label.astype(np.int8) + is_index + is_value == 1
    colons = (after == _COLON).sum()
    if not (one_role.all() and is_index.sum() == is_value.sum() == colons):
        return None

    numbers = _to_numbers(text, len(row))
    if numbers is None:
        return None
    labels, index, value = numbers[is_label], numbers[is_index], numbers[is_value]
    per_row = (tokens - 1) // 2
    indptr = np.concatenate(([0], np.cumsum(per_row)))
    column = index.astype(np.int64) - 1
    if len(column):
        increasing = np.diff(column) > 0
        row_starts = indptr[1:-1]
        increasing[row_starts[(row_starts > 0) & (row_starts < len(column))] - 1] = True
        in_range = column.min() >= 0 and column.max() < columns
        if not (in_range and increasing.all() and (column + 1 == index).all()):
            return None
    matrix = sp.csr_array((value, column.astype(np.int32), indptr), shape=(len(labels), columns))
    return LabelledMatrix.canonical(matrix, labels)


def _to_numbers(text: bytes, count: int) -> NDArray[np.float64] | None:
    """All numbers of the text in order, or None unless there are `count` finite ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy's word for "not a number"
        try:
            numbers = np.fromstring(text.replace(b":", b" ").decode("ascii"), sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    return numbers if len(numbers) == count and np.isfinite(numbers).all() else None


def _parse_lines(text: bytes, columns: int, source: str) -> LabelledMatrix:
    """The same, line by line: slow, and able to say what is wrong where."""
    labels: list[float] = []
    indptr, indices, values = [0], list[int](), list[float]()

    def fail(line: int, reason: str) -> ParseError:
        return ParseError(f"{source}, line {line}: {reason}")

    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields:
            raise fail(number, "empty; each line is 'label index:value ...'")
        if (label := _number(fields[0])) is None:
            raise fail(number, f"label {_show(fields[0])} is not a number")
        labels.append(label)
        previous = 0
        for field in fields[1:]:
            left, colon, right = field.partition(b":")
            if not colon:
                raise fail(number, f"{_show(field)} is not 'index:value'")
            index, value = _number(left), _number(right)
            if index is None or not index.is_integer():
                raise fail(number, f"index {_show(left)} is not a whole number")
            if value is None:
                raise fail(number, f"value {_show(right)} of index {index:.0f} is not a number")
            if not 1 <= index <= columns:
                raise fail(number, f"index {index:.0f} is outside 1..{columns}")
            if index <= previous:
                raise fail(number, f"index {index:.0f} follows {previous}; they must increase")
            previous = int(index)
            indices.append(previous - 1)
            values.append(value)
        indptr.append(len(indices))
    if not labels:
        raise ParseError(f"{source}: empty, there is no line in it")
    matrix = sp.csr_array((values, indices, indptr), shape=(len(labels), columns))
    return LabelledMatrix.canonical(matrix, labels)


def _number(field: bytes) -> float | None:
    """The finite number that a field spells, or None."""
    value = float(field) if _NUMBER.fullmatch(field) else math.inf
    return value if math.isfinite(value) else None


def _show(field: bytes) -> str:
    """A field as it may appear in a message: short, and printable whatever it holds."""
    text = field.decode("ascii", errors="backslashreplace")
    return repr(text if len(text) <= 30 else text[:30] + "…")
