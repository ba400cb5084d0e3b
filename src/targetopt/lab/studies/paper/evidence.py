"""The runs a claim speaks of: selected by figure, method and panel, paired seed by seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.spec.panels import MAIN
from targetopt.lab.store.directory import VALUE_PRICE, Run, Store, modelled_cost
from targetopt.types import TargetoptError

Array = NDArray[np.float64]


Reader = Callable[[Path, str], list[Run]]
"""Finds the runs of a figure in a directory."""


class NotJudged(TargetoptError, RuntimeError):
    """A claim cannot be judged on the runs that are there; the message says what is missing."""


@dataclass(frozen=True)
class Methods:
    """The methods of a figure that a claim means: a name, and rule and ``m`` where SSO is meant.

    Attributes:
        name: of the method, as in specifications.
        rule: SSO's target-space rule.
        panel: the further panel it belongs to; the figure as the paper has it by default.
        inner: SSO's inner solver.
        m: this number of inner steps alone; all if None.
        floor: the smallest curvature that SSO-Newton believes, where it is not the rule's own.
        figure: where to look, if not in the claim's own figure.
    """

    name: str
    rule: str | None = None
    m: int | None = None
    figure: str | None = None
    panel: str = MAIN
    inner: str | None = None
    floor: float | None = None

    def of(self, figure: str) -> Methods:
        """The same methods in another figure."""
        return replace(self, figure=figure)

    def match(self, run: Run) -> bool:
        method = run.manifest["method"]
        wanted = {"name": self.name, "rule": self.rule, "m": self.m, "inner": self.inner}
        named = all(method.get(key) == value for key, value in wanted.items() if value is not None)
        return named and self.panel in run.manifest["panels"] and method.get("floor") == self.floor


SGD, SLS, ADAM, ADAGRAD, SVRG = map(Methods, ("sgd", "sls", "adam", "adagrad", "svrg"))
ADAGRAD_NORM = Methods("adagrad-norm")
SSO = Methods("sso", "gradient-step")
SSO_SLS = Methods("sso", "line-search")
SSO_ADAGRAD = Methods("sso", "adagrad-norm")
SSO_NEWTON = Methods("sso", "newton")

TUNED, INNER, OTHER_FLOORS = "Tuned step sizes", "Inner solvers", "Other floors"
"""The further panels, as the specifications call them."""

SEPARABLE = ("mushrooms", "rcv1")
"""Data sets (with what stands in for them) whose classes a plane through the origin separates."""

INFIMUM_ERROR = 1e-12
"""How well infima are known, where they are."""


@dataclass(frozen=True)
class Where:
    """The panels a claim speaks of; all that the figure has where nothing is said."""

    batch_sizes: tuple[int | str, ...] | None = None
    problem: str | None = None

    def match(self, run: Run) -> bool:
        manifest = run.manifest
        right_problem = self.problem is None or self.problem in manifest["problem"]["name"]
        return right_problem and (
            self.batch_sizes is None or manifest["batch_size"] in self.batch_sizes
        )


EVERYWHERE = Where()


@dataclass(frozen=True)
class Case:
    """One method on one panel, over its seeds."""

    method: Mapping[str, object]
    label: str
    panel: str
    batch_size: int | str
    seeds: dict[int, Run]

    @property
    def problem(self) -> str:
        """The data set."""
        problem = next(iter(self.seeds.values())).manifest["problem"]
        return str(problem.get("data", problem["name"]))

    @property
    def problem_label(self) -> str:
        """The data set as reports call it."""
        return str(next(iter(self.seeds.values())).manifest["problem"]["label"])

    @property
    def separable(self) -> bool:
        """Whether the infimum of its loss is zero and lies at infinity: logistic loss, data that a plane separates."""
        problem = next(iter(self.seeds.values())).manifest["problem"]
        logistic = problem.get("loss") == "logistic" or problem["name"] == "probabilities"
        return logistic and any(n in self.problem for n in SEPARABLE)

    def knows(self, column: str) -> bool:
        """Whether all its runs have recorded ``column``."""
        return all(column in run.columns for run in self.seeds.values())

    def measure(self, of: Callable[[Run], float]) -> Array:
        """One number per seed, in the order of the seeds."""
        return np.array([of(self.seeds[seed]) for seed in sorted(self.seeds)])


class Evidence:
    """The results of one figure, and of those beside it.

    Args:
        directory: where the figures' result directories lie.
        figure: the one whose claims are judged.
        read: how the runs of a figure are found there, if they were published
            (:func:`targetopt.lab.studies.paper.curves.read`).
    """

    def __init__(self, directory: Path, figure: str, read: Reader | None = None) -> None:
        self.directory = directory
        self.figure = figure
        self._read = read or stored
        self._figures: dict[str, list[Run]] = {}

    @cached_property
    def scale(self) -> str:
        """What was run: epochs (of imitation: rounds) and seeds, for the statement of a test."""
        runs = self._runs(self.figure)
        epochs = sorted({run.manifest["epochs"] for run in runs})
        seeds = len({run.manifest["seed"] for run in runs})
        rounds = all(run.manifest["problem"]["name"] == "imitation" for run in runs)
        word = f"{'round' if rounds else 'epoch'}{'' if epochs == [1] else 's'}"
        shown = f"{' or '.join(map(str, epochs))} {word}"
        return f"{shown}, {seeds} seed{'s' if seeds > 1 else ''}"

    def cases(self, methods: Methods, where: Where = EVERYWHERE) -> list[Case]:
        """Every such method on every such panel."""
        figure = methods.figure or self.figure
        found: dict[tuple[str, str], Case] = {}
        for run in self._runs(figure):
            if methods.match(run) and where.match(run):
                manifest = run.manifest
                config, batch = manifest["config"], manifest["batch_size"]
                method = manifest["method"]
                panel = json.dumps([config["problem"], batch, config["epochs"]], sort_keys=True)
                key = (panel, json.dumps(method, sort_keys=True))
                label = f"{method['label']} on {manifest['problem']['label']}, {batch}"
                case = Case(method, label, panel, batch, {})
                found.setdefault(key, case).seeds[manifest["seed"]] = run
        if not found:
            shown = " ".join(str(p) for p in (methods.name, methods.rule, methods.m) if p)
            raise NotJudged(f"{figure} has no {shown} on the panels of the claim")
        return list(found.values())

    def pairs(
        self, x: Methods, y: Methods, where: Where = EVERYWHERE
    ) -> Iterator[tuple[Case, ...]]:
        """Cases of x and y on the same panel with the same seeds, and the same m unless y says which."""
        rivals = self.cases(y, where)
        for case in self.cases(x, where):
            for rival in rivals:
                free = y.m is not None or "m" not in rival.method
                same_m = free or case.method.get("m") == rival.method.get("m")
                if rival.panel == case.panel and same_m:
                    if rival.seeds.keys() != case.seeds.keys():
                        raise NotJudged(f"{case.label} and {rival.label} have different seeds")
                    yield case, rival

    def _runs(self, figure: str) -> list[Run]:
        if figure not in self._figures:
            self._figures[figure] = self._read(self.directory, figure)
        return self._figures[figure]


def stored(directory: Path, figure: str) -> list[Run]:
    """The runs of a figure in the directory where they were done, if all of them have ended well."""
    store = Store(directory / figure)
    planned = {entry["id"] for entry in store.plan()}
    if not planned:
        raise NotJudged(f"it needs the results of {figure} in the same directory")
    # Trials, too: where one is missing, what it was to decide is not in the plan at all.
    manifests = map(store.manifest, planned)
    ended = sum(m is not None and m["status"] in ("done", "diverged") for m in manifests)
    if ended < len(planned):
        lost = f"{len(planned) - ended} of the {len(planned)} runs"
        raise NotJudged(f"{lost} of {figure} have not ended well")
    return store.shown()


def diverged(run: Run) -> bool:
    return bool(run.manifest["status"] == "diverged")


def cost_of_loss(run: Run, goal: float, tau: float, value_price: float = VALUE_PRICE) -> float:
    """The modelled cost at which a run first had a loss of ``goal`` or less; infinite if it never did."""
    reached = np.flatnonzero(run.columns["loss"] <= goal)
    costs = modelled_cost(run.columns, tau, value_price)
    return float(costs[reached[0]]) if reached.size else np.inf


def final_loss(run: Run) -> float:
    """The loss at the end; the worst there is for a run that diverged."""
    return np.inf if diverged(run) else float(run.columns["loss"][-1])


def final_suboptimality(run: Run) -> float:
    """The loss at the end above its infimum; infinite for a run that diverged."""
    # Below its own accuracy the infimum says nothing: such runs are equally good.
    return np.inf if diverged(run) else max(float(run.columns["suboptimality"][-1]), INFIMUM_ERROR)


def final_gradient(run: Run) -> float:
    """The norm of the full gradient at the end; infinite for a run that diverged."""
    return np.inf if diverged(run) else float(run.columns["grad_norm"][-1])


def final_margin(run: Run) -> float:
    """The distance of the nearest row to the boundary at the end; the least there is for a run that diverged."""
    return -np.inf if diverged(run) else float(run.columns["margin"][-1])


def share_of_rises(run: Run) -> float:
    """How many of the recorded epochs ended with a higher loss than the one before, as a share."""
    if diverged(run):
        return 1.0
    epoch = run.columns["epoch"]
    ends = run.columns["loss"][epoch == np.round(epoch)]
    if len(ends) < 2:
        raise NotJudged("one epoch has no rises and falls")
    # what rounding moves is no rise
    return float(np.mean(ends[1:] > ends[:-1] * (1 + 1e-9)))
