"""From an experiment to its runs: lists become alternatives, defaults are filled in, ids made."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from targetopt.lab.problems.base import BatchSize, Problem
from targetopt.lab.run import imitation as imitation  # its methods are registered
from targetopt.lab.spec import muon as muon  # their methods are registered
from targetopt.lab.spec import rivals as rivals
from targetopt.lab.spec import tricks as tricks
from targetopt.lab.spec.config import Grid, RunConfig, Tuned
from targetopt.lab.spec.document import Fault, KeyPath, SpecError, dotted
from targetopt.lab.spec.experiment import Experiment, faults_of, suggestion
from targetopt.lab.spec.lists import extended
from targetopt.lab.spec.methods import METHODS, MethodSpec
from targetopt.lab.spec.panels import COLOUR, MAIN
from targetopt.lab.spec.plugins import PluginError, load_plugins
from targetopt.lab.spec.problem_options import load_problem, present_names, problem_options
from targetopt.types import BadArgument, TargetoptError

NOT_OPTIONS = ("name", "label", "colour", "on", "tune")
"""Keys of a method's table that are not options of the method."""


@dataclass(frozen=True)
class Choice:
    """One alternative of a table: its values, and where each of them stands."""

    values: dict[str, Any]
    paths: dict[str, KeyPath]
    varying: tuple[str, ...]
    root: KeyPath

    def fault(self, key: str, message: str) -> Fault:
        return Fault(self.paths.get(key, self.root), message)

    def renamed(self) -> "Choice":
        """The choice of a problem with its options under their present names."""
        try:
            values = present_names(self.values["name"], self.values)
        except BadArgument:  # there is no such problem, as will be said
            return self
        paths = dict(zip(values, (self.paths[key] for key in self.values), strict=True))
        return replace(self, values=values, paths=paths)


@dataclass(frozen=True)
class _MethodChoice:
    """One line of the legend: its method, or the methods that it is chosen from."""

    choice: Choice
    alternatives: list[MethodSpec]
    values: list[dict[str, Any]]
    label: str
    panels: tuple[str, ...]
    colour: str | None
    first: range | None = None


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
    """The runs of the grid, resolved and checked, in the order of the specification.

    Those that tuning chooses are not among them, those that it chooses by are.

    Raises:
        SpecError: all faults at once, at their lines if the experiment has a file.

    Example:
        >>> from targetopt.lab import Experiment
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
    return resolve(experiment).known()


def resolve(experiment: Experiment) -> Grid:
    """The grid of an experiment, checked; raises as :func:`expand` does."""
    faults: list[Fault] = []
    try:
        load_plugins(experiment.plugins)
    except PluginError as error:
        raise SpecError(
            [Fault(("plugins", error.position), str(error))], experiment.document
        ) from None
    problems = list(_problem_choices(experiment, faults))
    methods = list(_method_choices(experiment, faults))
    for method in methods:
        faults += _misplaced(method.choice, {key for each in problems for key in each.options})
    faults += _idle_patterns(experiment, [method.label for method in methods])
    runs: dict[str, RunConfig] = {}
    tuned: list[Tuned] = []
    if not faults:
        for problem, method in itertools.product(problems, methods):
            for found in _cross(experiment, problem, method, faults):
                if isinstance(found, Tuned):
                    tuned.append(found)
                elif found.id in runs:
                    root = method.choice.root
                    where = f"{dotted(problem.choice.root)} × {dotted(root)}"
                    said = f"{where} repeats a run that stands above; remove one"
                    faults.append(Fault(root, said))
                else:
                    runs[found.id] = found
    if faults:
        raise SpecError(list(dict.fromkeys(faults)), experiment.document)
    return Grid(list(runs.values()), tuned)


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
        for spelt in _named(options, root, faults):
            choice = spelt.renamed()
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


def _method_choices(experiment: Experiment, faults: list[Fault]) -> Iterator[_MethodChoice]:
    for position, table in enumerate(experiment.methods):
        for choice in _named(table, ("methods", position), faults):
            name = choice.values["name"]
            if name not in METHODS:
                message = f"{name!r} is no method. {suggestion(name, METHODS)}"
                faults.append(choice.fault("name", message))
                continue
            alternatives = []
            choice, first = _extended(choice, experiment.tuning.extend)
            tried = list(_tried(choice, faults))
            for each in tried:
                method = _method(METHODS[name], each, faults)
                if method is not None:
                    alternatives.append(method)
            if not alternatives:
                continue
            tuned = tuple(choice.values.get("tune", {}))
            label = _label(choice, alternatives[0], tuned, faults)
            values = [{key: each.values[key] for key in tuned} for each in tried]
            panels = _panels(experiment, label)
            shown = (label, panels, _colour(choice, faults))
            yield _MethodChoice(choice, alternatives, values if tuned else [], *shown, first)


def _extended(choice: Choice, extend: int) -> tuple[Choice, range | None]:
    """The choice with the values that may be tried beyond its list, and the places of those that are in any case."""
    tune = choice.values.get("tune")
    if not isinstance(tune, dict) or len(tune) != 1:
        return choice, None
    [(key, values)] = tune.items()
    if not isinstance(values, list):
        return choice, None
    whole, first = extended(values, extend)
    return replace(choice, values={**choice.values, "tune": {key: whole}}), first


def _tried(choice: Choice, faults: list[Fault]) -> Iterator[Choice]:
    """The choice with each combination of the values that it tunes; itself, if it tunes nothing."""
    tune = choice.values.get("tune")
    if tune is None:
        yield choice
        return
    if not isinstance(tune, dict) or not tune:
        said = "must be a table of options with the values to try, such as { lr = [0.1, 1.0] }"
        faults.append(choice.fault("tune", f"{tune!r} {said}"))
        return
    root = (*choice.root, "tune")
    for key, values in tune.items():
        if not isinstance(values, list) or not values:
            faults.append(Fault((*root, key), f"{values!r} must be a list of values to try"))
        elif key in choice.values or key in NOT_OPTIONS:
            said = "cannot be tuned" if key in NOT_OPTIONS else "has a value already: remove one"
            faults.append(Fault((*root, key), said))
        else:
            continue
        return
    for each in choices(tune, root):
        yield Choice(
            values={**choice.values, **each.values},
            paths={**choice.paths, **each.paths},
            varying=choice.varying,
            root=choice.root,
        )


def _method(model: type[MethodSpec], choice: Choice, faults: list[Fault]) -> MethodSpec | None:
    values = {key: item for key, item in choice.values.items() if key not in NOT_OPTIONS}
    try:
        method = model.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += faults_of(error, (*model.options(), *NOT_OPTIONS), choice.paths)
        return None
    faults += [choice.fault(key, message) for key, message in method.conflicts()]
    return method


def _label(choice: Choice, method: MethodSpec, tuned: tuple[str, ...], faults: list[Fault]) -> str:
    """What the legend says: the label given and what varies, or the method's own words."""
    label = choice.values.get("label", "")
    if not isinstance(label, str):
        faults.append(choice.fault("label", f"{label!r} must be text"))
        return ""
    if label:
        varying = [f"{key}={choice.values[key]}" for key in choice.varying if key != "label"]
        return " ".join([label, *varying])
    if not tuned:
        return method.label()
    return f"{method.with_defaults(tuned).label()} tuned"


def _colour(choice: Choice, faults: list[Fault]) -> str | None:
    """The colour given for the lines of the method, as CSS writes it."""
    colour = choice.values.get("colour")
    if colour is None or (isinstance(colour, str) and COLOUR.fullmatch(colour)):
        return colour
    said = "must be a colour such as '#d55e00', or 'oklch(0.6 0.2 40)'"
    faults.append(choice.fault("colour", f"{colour!r} {said}"))
    return None


def _panels(experiment: Experiment, label: str) -> tuple[str, ...]:
    """The figures a method is drawn in: the main one, unless a further panel is about it."""

    def of(patterns: list[str]) -> bool:
        return any(fnmatchcase(label, pattern) for pattern in patterns)

    about_it = [panel.title for panel in experiment.panels if of(panel.methods)]
    return tuple(about_it or [MAIN, *(p.title for p in experiment.panels if of(p.also))])


def _idle_patterns(experiment: Experiment, labels: list[str]) -> Iterator[Fault]:
    """Patterns of panels that no method's label matches: misspelt, most likely."""
    for position, panel in enumerate(experiment.panels):
        for key, patterns in (("methods", panel.methods), ("also", panel.also)):
            for place, pattern in enumerate(patterns):
                if not any(fnmatchcase(label, pattern) for label in labels):
                    known = ", ".join(map(repr, labels))
                    said = f"{pattern!r} is the label of no method; there are {known}"
                    yield Fault(("panels", position, key, place), said)


def _cross(
    experiment: Experiment, problem: _ProblemChoice, method: _MethodChoice, faults: list[Fault]
) -> Iterator[RunConfig | Tuned]:
    """The runs of one problem and one method; what cannot be is added to ``faults``."""
    choice = method.choice
    if not _applies(choice, problem):
        return
    engines = []
    for each in method.alternatives:
        engine = _engine(experiment.engine, problem.loaded, each, choice)
        if isinstance(engine, Fault):
            faults.append(engine)
            return
        engines.append(engine)

    def run(alternative: int, seed: int, epochs: int, *, shown: bool) -> RunConfig:
        tried = "" if shown else f" ({_spelt(method.values[alternative])})"
        chosen = method.alternatives[alternative]
        # A short trial is the beginning of the run it stands for, not that run in haste.
        beginning = epochs < problem.epochs and chosen.knows_its_end
        return RunConfig(
            problem=problem.options,
            method=chosen,
            seed=seed,
            batch_size=size,
            epochs=epochs,
            engine=engines[alternative],
            problem_label=problem.loaded.label,
            method_label=method.label + tried,
            colour=method.colour,
            panels=method.panels if shown else (),
            tuned=tuple(choice.values.get("tune", ())) if shown else (),
            horizon=problem.epochs if beginning else None,
        )

    seeds = _seeds(experiment.seeds)
    for size, path in problem.batch_sizes:
        refused = problem.loaded.refused_batch(size)
        if refused is not None:
            faults.append(Fault(path, refused))
            continue
        if not method.values:
            yield from (run(0, seed, problem.epochs, shown=True) for seed in seeds)
            continue
        tuning = experiment.tuning
        seed = max(seeds) + 1 if tuning.seed is None else tuning.seed
        others = [each for each in seeds if each != seed]
        if not others:
            said = f"{seed} is the only seed, so none is left to show what was chosen"
            faults.append(Fault(("tuning", "seed"), said))
            return
        tried = range(len(method.values))
        yield Tuned(
            values=method.values,
            trials=[run(k, seed, tuning.epochs or problem.epochs, shown=False) for k in tried],
            shown=[[run(k, each, problem.epochs, shown=True) for each in others] for k in tried],
            first=method.first,
        )


def _engine(wanted: str, problem: Problem, method: MethodSpec, choice: Choice) -> str | Fault:
    """``auto`` resolved, or why the method cannot run on the problem or on the engine."""
    misfit = method.misfit(problem)
    if misfit is not None:
        return choice.fault(*misfit)
    obstacle = problem.why_not_compiled(method)
    if wanted == "compiled" and obstacle:
        return Fault(("engine",), f"'compiled' cannot run this grid: {obstacle}. Use 'auto'")
    return "torch" if wanted == "torch" or obstacle else "compiled"


def _spelt(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


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
