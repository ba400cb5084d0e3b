"""TOML text whose every key and value remembers its line and column.

``tomllib`` decides what is valid and what the values are; it does not say where they stand. The
scanner here walks text that ``tomllib`` has already accepted, so it only has to find the ends of
strings, arrays and tables, and never has to judge them.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from targetopt.types import TargetoptError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a specification: where (``path``), and what and how to mend it.

    ``on_key`` says that the key itself is at fault, not its value.
    """

    path: KeyPath
    message: str
    on_key: bool = False


class SpecError(TargetoptError, ValueError):
    """Every fault of a specification at once, each with its line and column when it has a file."""

    def __init__(self, faults: Sequence[Fault], document: "Document | None" = None) -> None:
        self.faults = tuple(faults)
        self.document = document
        super().__init__("\n".join(self._describe(fault) for fault in self.faults))

    def _describe(self, fault: Fault) -> str:
        where = dotted(fault.path)
        message = f"{where}: {fault.message}" if where else fault.message
        if self.document is None:
            return message
        line, column = self.document.position(fault.path, on_key=fault.on_key)
        return self.document.point_at(line, column, message)


def dotted(path: KeyPath) -> str:
    """``("methods", 1, "m")`` as users read it.

    >>> dotted(("methods", 1, "m"))
    'methods[1].m'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass
class Document:
    """Parsed TOML: ``data`` as ``tomllib`` gives it, and where each piece of it stands.

    >>> document = Document.parse("epochs = 3\\n[[methods]]\\nm = [1, 10]\\n")
    >>> document.data["methods"]
    [{'m': [1, 10]}]
    >>> document.position(("methods", 0, "m", 1))
    (3, 9)
    """

    text: str
    source: str = "<spec>"
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[KeyPath, int] = field(default_factory=dict)
    values: dict[KeyPath, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, source: str = "<spec>") -> "Document":
        # tomllib counts a lone carriage return as text; line ends are made one before both readers.
        text = text.replace("\r\n", "\n")
        document = cls(text, source)
        try:
            document.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError([_syntax_fault(document, error)]) from None
        _Scanner(document).run()
        return document

    @classmethod
    def read(cls, path: Path) -> "Document":
        try:
            return cls.parse(path.read_bytes().decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise SpecError([Fault((), f"{path} is not UTF-8 text: {error}")]) from None

    def position(self, path: KeyPath, *, on_key: bool = False) -> tuple[int, int]:
        """Line and column (from 1) of ``path``, or of the nearest thing that encloses it."""
        while path:
            for known in (self.keys, self.values) if on_key else (self.values, self.keys):
                if path in known:
                    return self._line_and_column(known[path])
            path = path[:-1]
        return 1, 1

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        start = self.text.rfind("\n", 0, offset) + 1
        return self.text.count("\n", 0, offset) + 1, offset - start + 1

    def point_at(self, line: int, column: int, message: str) -> str:
        source = [*self.text.split("\n"), ""][line - 1].expandtabs(1)
        return f"{self.source}:{line}:{column}: {message}\n    {source}\n    {' ' * (column - 1)}^"


def _syntax_fault(document: Document, error: tomllib.TOMLDecodeError) -> Fault:
    message = str(error)
    found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if found:
        line, column = int(found[1]), int(found[2])
        message = message[: found.start()]
    else:  # "(at end of document)"
        line, column = document._line_and_column(len(document.text.rstrip("\n")))
    return Fault((), document.point_at(line, column, f"not valid TOML: {message}"))


_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACES = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


class _Scanner:
    """Notes the offset of each key and value of valid TOML."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.text = document.text
        self.at = 0
        self.table_counts: dict[KeyPath, int] = {}

    def run(self) -> None:
        table: KeyPath = ()
        while self.skip(_BLANK) < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self.header(2)
            elif self.text[self.at] == "[":
                table = self.header(1)
            else:
                self.key_and_value(table)

    def skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.at)
        assert found is not None, "the scanner only sees TOML that tomllib accepted"
        self.at = found.end()
        return self.at

    def header(self, brackets: int) -> KeyPath:
        start = self.at
        self.at += brackets
        names = self.key()
        self.at += brackets
        path: KeyPath = ()
        for depth, (name, _) in enumerate(names):
            path = (*path, name)
            if brackets == 2 and depth == len(names) - 1:
                self.table_counts[path] = self.table_counts.get(path, 0) + 1
                self.document.keys.setdefault(path, start)
            if path in self.table_counts:
                path = (*path, self.table_counts[path] - 1)
        self.document.keys.setdefault(path, start)
        return path

    def key(self) -> list[tuple[str, int]]:
        """A dotted key, as its parts and their offsets."""
        parts = []
        while True:
            start = self.skip(_SPACES)
            if self.text[start] in "\"'":
                self.string()
                literal = self.text[start : self.at]
                name = str(tomllib.loads(f"key = {literal}")["key"])
            else:
                self.skip(_BARE_KEY)
                name = self.text[start : self.at]
            parts.append((name, start))
            if self.text[self.skip(_SPACES)] != ".":
                return parts
            self.at += 1

    def key_and_value(self, table: KeyPath) -> None:
        path = table
        for name, offset in self.key():
            path = (*path, name)
            self.document.keys.setdefault(path, offset)
        self.at += 1  # the equals sign
        self.skip(_SPACES)
        self.value(path)

    def value(self, path: KeyPath) -> None:
        self.document.values[path] = self.at
        character = self.text[self.at]
        if character == "[":
            self.items(path, "]")
        elif character == "{":
            self.items(path, "}")
        elif character in "\"'":
            self.string()
        else:
            self.skip(_SCALAR)

    def items(self, path: KeyPath, close: str) -> None:
        self.at += 1
        count = 0
        while self.text[self.skip(_BLANK)] != close:
            if close == "]":
                self.value((*path, count))
            else:
                self.key_and_value(path)
            count += 1
            if self.text[self.skip(_BLANK)] == ",":
                self.at += 1
        self.at += 1

    def string(self) -> None:
        for pattern in _STRINGS:
            found = pattern.match(self.text, self.at)
            if found:
                self.at = found.end()
                return
