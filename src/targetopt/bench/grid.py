"""From an experiment to its runs: lists become alternatives, defaults are filled in, ids made."""

import hashlib
import importlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from targetopt.bench.document import Fault, KeyPath, SpecError, dotted
from targetopt.bench.methods import METHODS, Method
from targetopt.bench.problem_options import load_problem, problem_options
from targetopt.bench.session import Conflict, choose_engine
from targetopt.bench.spec import BatchSize, Experiment, faults_of, suggestion
from targetopt.types import BadArgument, TargetoptError

CONFIG_FORMAT = 2
"""Part of every id: raised when the meaning of a configuration changes."""

NOT_OPTIONS = ("name", "label", "on")
"""Keys of a method's table that are not options of the method."""


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved: everything its numbers depend on, and the labels it is shown under."""

    problem: Mapping[str, Any]
    method: Method
    seed: int
    batch_size: BatchSize
    epochs: int
    engine: str
    problem_label: str
    method_label: str

    def resolved(self) -> dict[str, Any]:
        """The configuration as plain JSON values; labels are no part of it."""
        return {
            "format": CONFIG_FORMAT,
            "problem": dict(self.problem),
            "method": self.method.resolved(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "engine": self.engine,
        }

    @cached_property
    def id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the canonical JSON of :meth:`resolved`."""
        text = json.dumps(self.resolved(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def described_problem(self) -> dict[str, Any]:
        return {"name": self.problem["name"], "label": self.problem_label, **self.problem}

    def described_method(self) -> dict[str, Any]:
        return {"name": self.method.name, "label": self.method_label, **self.method.resolved()}


@dataclass(frozen=True)
class Choice:
    """One alternative of a table: its values, and where each of them stands."""

    values: dict[str, Any]
    paths: dict[str, KeyPath]
    varying: tuple[str, ...]
    root: KeyPath

    def fault(self, key: str, message: str) -> Fault:
        return Fault(self.paths.get(key, self.root), message)


@dataclass
class _ProblemChoice:
    choice: Choice
    options: dict[str, Any]
    batch_sizes: list[tuple[BatchSize, KeyPath]]
    epochs: int
    loaded: Any = field(default=None)


def choices(table: Mapping[str, Any], root: KeyPath, whole: Iterable[str] = ()) -> Iterator[Choice]:
    """Every combination of a table's lists. Keys in ``whole`` take a list as one value.

    >>> [choice.values for choice in choices({"name": "sso", "m": [1, 10]}, ("methods", 0))]
    [{'name': 'sso', 'm': 1}, {'name': 'sso', 'm': 10}]
    """
    spread = {
        key: value
        for key, value in table.items()
        if isinstance(value, list)
        and (key not in whole or (value and all(isinstance(item, list) for item in value)))
    }
    positions = [range(len(value)) for value in spread.values()]
    for picks in itertools.product(*positions):
        chosen = dict(zip(spread, picks, strict=True))
        yield Choice(
            values={key: table[key][chosen[key]] if key in chosen else table[key] for key in table},
            paths={
                key: (*root, key, chosen[key]) if key in chosen else (*root, key) for key in table
            },
            varying=tuple(key for key in spread if len(spread[key]) > 1),
            root=root,
        )


def expand(experiment: Experiment) -> list[RunConfig]:
    """Every run of the grid, resolved and checked, in the order of the specification.

    Raises:
        SpecError: all faults at once, at their lines if the experiment has a file.

    Example:
        >>> from targetopt.bench import Experiment
        >>> runs = expand(
        ...     Experiment(
        ...         problems=[{"name": "breast_cancer"}],
        ...         methods=[{"name": "sso", "m": [1, 20]}, {"name": "sgd"}],
        ...         epochs=5,
        ...         batch_size=64,
        ...     )
        ... )
        >>> [run.method_label for run in runs]
        ['SSO m=1', 'SSO m=20', 'SGD']
    """
    faults: list[Fault] = []
    try:
        load_plugins(experiment.plugins)
    except PluginError as error:
        raise SpecError(
            [Fault(("plugins", error.position), str(error))], experiment.document
        ) from None
    problems = list(_problem_choices(experiment, faults))
    methods = list(_method_choices(experiment, faults))
    runs: dict[str, RunConfig] = {}
    for choice, _, _ in methods:
        faults += _misplaced(choice, {key for problem in problems for key in problem.options})
    if not faults:
        for problem, (choice, method, label) in itertools.product(problems, methods):
            _cross(experiment, problem, choice, method, label, runs, faults)
    if faults:
        raise SpecError(list(dict.fromkeys(faults)), experiment.document)
    return list(runs.values())


def _problem_choices(experiment: Experiment, faults: list[Fault]) -> Iterator[_ProblemChoice]:
    default_sizes = list(_batch_sizes(experiment.batch_size, ("batch_size",), faults))
    for position, table in enumerate(experiment.problems):
        root: KeyPath = ("problems", position)
        options = {key: table[key] for key in table if key not in ("batch_size", "epochs")}
        sizes = default_sizes
        if "batch_size" in table:
            sizes = list(_batch_sizes(table["batch_size"], (*root, "batch_size"), faults))
        epochs = table.get("epochs", experiment.epochs)
        if type(epochs) is not int or epochs < 1:
            message = f"{epochs!r} must be an integer of at least 1"
            faults.append(Fault((*root, "epochs"), message))
        for choice in _named(options, root, faults):
            try:
                model = problem_options(choice.values["name"])
            except BadArgument as error:
                faults.append(choice.fault("name", str(error)))
                continue
            given = {key: value for key, value in choice.values.items() if key != "name"}
            try:
                resolved = model(**given).model_dump(mode="json")
            except ValidationError as error:
                known = (*model.model_fields, "name", "batch_size", "epochs")
                faults += faults_of(error, known, choice.paths)
                continue
            name = choice.values["name"]
            entry = _ProblemChoice(choice, {"name": name, **resolved}, sizes, epochs)
            try:
                entry.loaded = load_problem(entry.options)
            except (TargetoptError, ImportError, ValueError) as error:
                # the builders' errors begin with the option at fault: "loss='x' must be …"
                key = str(error).partition("=")[0]
                faults.append(choice.fault(key if key in given else "name", str(error)))
                continue
            yield entry


def _named(table: dict[str, Any], root: KeyPath, faults: list[Fault]) -> Iterator[Choice]:
    """The choices of a table whose ``name`` is there and is text."""
    if not isinstance(table.get("name"), str):
        message = "needs a name, in quotes" if "name" not in table else "the name must be text"
        faults.append(Fault((*root, "name"), message))
        return
    whole: tuple[str, ...] = ()
    if root[0] == "problems":
        try:
            fields = problem_options(table["name"]).model_fields
        except BadArgument:
            fields = {}
        whole = tuple(key for key, item in fields.items() if "list" in str(item.annotation))
    for key, value in table.items():
        if value == []:
            faults.append(Fault((*root, key), "an empty list leaves nothing to run"))
    yield from choices(table, root, whole)


def _batch_sizes(
    value: Any, path: KeyPath, faults: list[Fault]
) -> Iterator[tuple[BatchSize, KeyPath]]:
    items = value if isinstance(value, list) else [value]
    for position, item in enumerate(items):
        where = (*path, position) if isinstance(value, list) else path
        if item == "full" or (type(item) is int and item >= 1):
            yield item, where
        else:
            message = f"{item!r} must be an integer of at least 1, or 'full'"
            faults.append(Fault(where, message))
    if not items:
        faults.append(Fault(path, "an empty list leaves nothing to run"))


def _method_choices(
    experiment: Experiment, faults: list[Fault]
) -> Iterator[tuple[Choice, Method, str]]:
    for position, table in enumerate(experiment.methods):
        for choice in _named(table, ("methods", position), faults):
            name = choice.values["name"]
            if name not in METHODS:
                message = f"{name!r} is no method. {suggestion(name, METHODS)}"
                faults.append(choice.fault("name", message))
                continue
            model = METHODS[name]
            values = {key: item for key, item in choice.values.items() if key not in NOT_OPTIONS}
            try:
                method = model(**values)
            except ValidationError as error:
                known = (*model.model_fields, *NOT_OPTIONS)
                faults += faults_of(error, known, choice.paths)
                continue
            conflicts = method.conflicts()
            faults += [choice.fault(key, message) for key, message in conflicts]
            label = choice.values.get("label", "")
            if not isinstance(label, str):
                faults.append(choice.fault("label", f"{label!r} must be text"))
            elif label:
                varying = [
                    f"{key}={choice.values[key]}" for key in choice.varying if key != "label"
                ]
                label = " ".join([label, *varying])
            yield choice, method, label or method.label()


def _cross(
    experiment: Experiment,
    problem: _ProblemChoice,
    choice: Choice,
    method: Method,
    label: str,
    runs: dict[str, RunConfig],
    faults: list[Fault],
) -> None:
    """The runs of one problem and one method, added to ``runs``; what cannot be, to ``faults``."""
    if not _applies(choice, problem):
        return
    try:
        engine = choose_engine(experiment.engine, problem.loaded, method)
    except Conflict as conflict:
        path = (
            ("engine",) if conflict.key == "engine" else choice.paths.get(conflict.key, choice.root)
        )
        faults.append(Fault(path, str(conflict)))
        return
    limit, shown = problem.loaded.largest_batch, problem.options["name"]
    for size, path in problem.batch_sizes:
        if size == "full" and limit is None:
            message = f"{shown!r} makes its examples as it goes: say how many a step takes"
            faults.append(Fault(path, message))
            continue
        if size != "full" and limit is not None and size > limit:
            message = f"{size} is more than the {limit} examples of {shown!r}; use 'full'"
            faults.append(Fault(path, message))
            continue
        for seed in _seeds(experiment.seeds):
            run = RunConfig(
                problem=problem.options,
                method=method,
                seed=seed,
                batch_size=size,
                epochs=problem.epochs,
                engine=engine,
                problem_label=problem.loaded.label,
                method_label=label,
            )
            if run.id in runs:
                where = f"{dotted(problem.choice.root)} × {dotted(choice.root)}"
                faults.append(
                    Fault(choice.root, f"{where} repeats a run that stands above; remove one")
                )
                return
            runs[run.id] = run


def _misplaced(choice: Choice, known: Iterable[str]) -> Iterator[Fault]:
    """What is wrong with the table ``on`` of a method: which problems it is for."""
    wanted = choice.values.get("on", {})
    if not isinstance(wanted, dict):
        shown = 'a table of problem options, such as { name = "mushrooms" }'
        yield choice.fault("on", f"{wanted!r} must be {shown}")
        return
    for key in wanted:
        if key not in known:
            yield choice.fault("on", f"no problem has an option {key!r}. {suggestion(key, known)}")


def _applies(choice: Choice, problem: _ProblemChoice) -> bool:
    """Whether the problem's options are, each, among those that the method is for."""
    return all(
        problem.options.get(key) in (item if isinstance(item, list) else [item])
        for key, item in choice.values.get("on", {}).items()
    )


def _seeds(seeds: int | Sequence[int]) -> Sequence[int]:
    return range(seeds) if isinstance(seeds, int) else seeds


class PluginError(TargetoptError, ImportError):
    """A plugin cannot be imported; ``position`` is its place in the list."""

    def __init__(self, position: int, plugin: str, error: Exception) -> None:
        self.position = position
        super().__init__(
            f"the plugin {plugin!r} cannot be imported: {type(error).__name__}: {error}"
        )


def load_plugins(plugins: Sequence[str]) -> None:
    """Import files and modules that register problems and methods, each once per process."""
    for position, plugin in enumerate(plugins):
        try:
            if plugin.endswith(".py"):
                _import_file(Path(plugin))
            else:
                importlib.import_module(plugin)
        except Exception as error:
            raise PluginError(position, plugin, error) from error


def _import_file(path: Path) -> None:
    name = f"targetopt_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
