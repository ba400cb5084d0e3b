"""What is to be compared: problems × methods × batch sizes × seeds, from TOML or from Python."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from targetopt.lab.spec.document import Document, Fault, KeyPath, SpecError


class Tuning(BaseModel):
    """How methods with a ``tune`` table choose: by the final ``metric`` of runs with one seed.

    Args:
        seed: of the runs that choose; by default one that no shown run has.
        epochs: of the runs that choose; as many as shown runs have by default.
        metric: what decides; "loss", or another of the problem's.
        extend: how many values may be added at either end of a list, one at a time, until its best lies inside. Only
            a method with one tuned option has its list extended, by the ratio of the last two values there.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    extend: int = Field(default=0, ge=0)

    seed: int | None = Field(default=None, ge=0)
    epochs: int | None = Field(default=None, ge=1)
    metric: str = "loss"


class FurtherPanel(BaseModel):
    """A figure beside the main one, with methods that are shown there and not in the main one.

    Args:
        title: what it shows.
        methods: labels of the methods it is about; ``*`` stands for anything.
        also: labels of methods of the main figure that are drawn in it again.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = Field(min_length=1)
    methods: list[str] = Field(min_length=1)
    also: list[str] = Field(default_factory=list)


class Experiment(BaseModel):
    """A grid of runs. Lists in ``problems`` and ``methods`` entries are alternatives.

    Args:
        name: title of the report.
        problems: tables with ``name`` and the options of that problem; ``batch_size`` and
            ``epochs`` in a table override those below for that problem.
        methods: tables with ``name`` and the options of that method, and perhaps a ``label``. A table
            ``tune`` in one, such as ``{"lr": [0.1, 1.0]}``, has options chosen from these values for
            each problem and batch size, on a seed that is not shown.
        seeds: how many (``3`` is 0, 1, 2), or which.
        epochs: passes over the data.
        batch_size: examples per step, or ``"full"``, or a list of such.
        engine: ``"torch"``, ``"compiled"`` (linear problems), or ``"auto"``: compiled where it can.
        plugins: Python files (relative to the TOML) or modules that register more problems and
            methods; imported before anything runs.
        tuning: how tuned methods choose; see :class:`Tuning`.
        panels: further figures; see :class:`FurtherPanel`.

    Example:
        >>> experiment = Experiment(
        ...     problems=[{"name": "breast_cancer"}],
        ...     methods=[{"name": "sso", "m": [1, 20]}, {"name": "sgd"}],
        ...     seeds=2,
        ...     epochs=5,
        ...     batch_size=64,
        ... )
        >>> print(experiment.to_toml())
        seeds = 2
        epochs = 5
        batch_size = 64
        <BLANKLINE>
        [[problems]]
        name = "breast_cancer"
        <BLANKLINE>
        [[methods]]
        name = "sso"
        m = [1, 20]
        <BLANKLINE>
        [[methods]]
        name = "sgd"
        <BLANKLINE>
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    problems: list[dict[str, Any]] = Field(min_length=1)
    methods: list[dict[str, Any]] = Field(min_length=1)
    name: str = "experiment"
    seeds: int | list[int] = 1
    epochs: int = Field(default=10, ge=1)
    batch_size: Any = "full"
    engine: Literal["auto", "torch", "compiled"] = "auto"
    plugins: list[str] = Field(default_factory=list)
    tuning: Tuning = Field(default_factory=Tuning)
    panels: list[FurtherPanel] = Field(default_factory=list)

    _document: Document | None = PrivateAttr(default=None)

    @property
    def document(self) -> Document | None:
        """The text this came from; errors found later point at its lines."""
        return self._document

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: int | list[int]) -> int | list[int]:
        if isinstance(seeds, int):
            if seeds < 1:
                raise ValueError("must be at least 1 (a number of seeds), or a list of seeds")
        elif not seeds or min(seeds) < 0 or max(seeds) >= 2**63 or len(set(seeds)) < len(seeds):
            raise ValueError("must be different integers from 0 on, at least one")
        return seeds

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The experiment in a TOML file. Raises :class:`SpecError`, with line and column."""
        path = Path(path)
        experiment = cls.parse(Document.read(path))
        experiment.plugins = [_beside(path, plugin) for plugin in experiment.plugins]
        return experiment

    @classmethod
    def parse(cls, document: Document) -> Self:
        try:
            experiment = cls.model_validate(document.data)
        except ValidationError as error:
            raise SpecError(faults_of(error, cls.model_fields), document) from None
        experiment._document = document
        return experiment

    def to_toml(self) -> str:
        """The experiment as a file that :meth:`read` gives back, wherever it lies."""
        fields = self.model_dump(exclude_defaults=True, exclude_none=True)
        if "plugins" in fields:
            fields["plugins"] = [_beside(Path(), plugin) for plugin in self.plugins]
        tables = {key: fields.pop(key) for key in ("problems", "methods")}
        lines = [f"{key} = {_toml(value)}" for key, value in fields.items()]
        for key, entries in tables.items():
            for entry in entries:
                said = (f"{k} = {_toml(v)}" for k, v in entry.items() if v is not None)
                lines += ["", f"[[{key}]]", *said]
        return "\n".join(lines) + "\n"


def _beside(spec: Path, plugin: str) -> str:
    return str((spec.parent / plugin).resolve()) if plugin.endswith(".py") else plugin


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    text = json.dumps(value, ensure_ascii=False)
    # the one value that JSON and TOML spell differently; a string may say anything
    return text.replace("Infinity", "inf") if isinstance(value, float) else text


def faults_of(
    error: ValidationError, known: Iterable[str], paths: Mapping[str, KeyPath] | None = None
) -> list[Fault]:
    """pydantic's errors in our words. ``paths`` says where a field stands, if not at the top."""
    faults: dict[KeyPath, Fault] = {}
    for item in error.errors(include_url=False):
        location = tuple(part for part in item["loc"] if not _names_a_union_branch(part))
        key = str(location[0]) if location else ""
        path = (*(paths or {}).get(key, location[:1]), *location[1:])
        kind = item["type"]
        if kind == "extra_forbidden":
            hint = f" {suggestion(key, known)}" if len(location) == 1 else ""
            faults[path] = Fault(path, f"unknown key.{hint}", on_key=True)
        elif kind == "missing":
            faults[path] = Fault(path, f"the key {str(path[-1])!r} is missing", on_key=True)
        else:
            message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
            message = f"{message[0].lower()}{message[1:]}"
            # the branches of one union say one after the other what each of them would take
            said = f"{faults[path].message}, or " if path in faults else f"{item['input']!r} "
            faults[path] = Fault(path, said + message)
    return list(faults.values())


def _names_a_union_branch(part: str | int) -> bool:
    return isinstance(part, str) and (part in ("int", "float", "str", "bool") or "[" in part)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The nearest known words, or all of them.

    >>> suggestion("newtn", ["newton", "adagrad"])
    "Did you mean 'newton'?"
    >>> suggestion("x", ["m", "lr"])
    'Known here: lr, m.'
    """
    words = sorted(known)
    near: Sequence[str] = difflib.get_close_matches(word, words, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(words)}."
