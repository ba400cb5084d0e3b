"""The methods a specification can name: their options, checked, and how each is built in torch.

A new method is one subclass of :class:`Method` with the decorator :func:`register`; a plugin can
have it.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from torch import nn

from targetopt import inner as solvers
from targetopt import rules, schedules
from targetopt.baselines import SLS, SVRG, AdaGradNorm, theoretical_step
from targetopt.bench.named_rules import RULES, RuleName
from targetopt.bench.trainers import GradientTrainer, SlsTrainer, SsoTrainer, SvrgTrainer, Trainer
from targetopt.linear import baselines as compiled
from targetopt.linear.spec import RULE_KINDS
from targetopt.losses import Loss
from targetopt.optim import SSO
from targetopt.problems import Problem

InnerName = Literal["armijo", "gradient-descent", "adam", "lbfgs", "gauss-newton", "exact"]
ScheduleName = Literal["constant", "inverse-sqrt", "exponential"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step(value: Any) -> float | str:
    if _is_number(value) and 0 < value < float("inf"):
        return float(value)
    multiple = re.fullmatch(r"theory(?:([*/])(\d+\.?\d*))?", str(value).replace(" ", ""))
    if multiple is not None and float(multiple[2] or 1.0) > 0:
        number = float(multiple[2] or 1.0)
        return "theory" if number == 1.0 else f"theory{multiple[1]}{number:g}"
    raise ValueError("must be 'theory', a multiple ('theory*4', 'theory/4') or a finite number > 0")


def _decay(value: Any) -> float | str:
    if value == "problem" or (_is_number(value) and 0 <= value < float("inf")):
        return value if isinstance(value, str) else float(value)
    raise ValueError("must be 'problem' or a finite number ≥ 0")


TheoryOrNumber = Annotated[float | str, BeforeValidator(_step)]
ProblemOrNumber = Annotated[Literal["problem"] | float, BeforeValidator(_decay)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


@dataclass(frozen=True)
class OnLinear:
    """A method as the compiled driver takes it: a rule and an inner solver, or a baseline."""

    lr: float | None
    rule: rules.Rule | None = None
    inner: solvers.Inner | None = None
    baseline: compiled.Baseline | None = None


class Method(BaseModel):
    """Options of a method, with the names that are typed in specifications.

    ``weight_decay`` is λ of ½λ‖θ‖² in the objective; ``"problem"`` takes the problem's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]

    schedule: ScheduleName = "constant"
    weight_decay: ProblemOrNumber = "problem"

    def resolved(self) -> dict[str, Any]:
        """All options with their values, defaults filled in."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def label(self) -> str:
        """The name in legends: the title, and every option that is not at its default."""
        return " ".join([self.title, *self._unusual()])

    def _unusual(self, hidden: tuple[str, ...] = ()) -> list[str]:
        shown = []
        for key, item in type(self).model_fields.items():
            value = getattr(self, key)
            if key not in hidden and value != item.default:
                shown.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
        return shown

    def conflicts(self) -> list[tuple[str, str]]:
        """Options that cannot go together: (key, why)."""
        return []

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        """Why the method cannot run on ``problem``: (key, why); None if it can."""
        return None

    def l2(self, problem: Problem) -> float:
        return problem.l2 if self.weight_decay == "problem" else float(self.weight_decay)

    @property
    def knows_its_end(self) -> bool:
        """Whether the steps depend on how many there will be."""
        return self.schedule == "exponential"

    def make_schedule(self, total_steps: int) -> schedules.Schedule:
        if self.schedule == "exponential":
            return schedules.exponential(total_steps)
        return schedules.inverse_sqrt() if self.schedule == "inverse-sqrt" else schedules.constant()

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        """The method on the torch path, before its first step."""
        raise NotImplementedError

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear | None:
        """The method in the compiled driver; None if it has no kernel there."""
        return None


def theory_factor(lr: float | str) -> float | None:
    """The multiple of the theoretical step that ``lr`` stands for; None for a plain number.

    >>> theory_factor("theory"), theory_factor("theory*4"), theory_factor("theory/4")
    (1.0, 4.0, 0.25)
    """
    if not isinstance(lr, str):
        return None
    factor = float(lr[len("theory*") :] or 1.0)
    return 1.0 / factor if "/" in lr else factor


METHODS: dict[str, type[Method]] = {}
"""What ``name`` in a ``[[methods]]`` table can be."""


def register(method: type[Method]) -> type[Method]:
    """Let specifications use ``method`` by its ``name``."""
    taken = METHODS.setdefault(method.name, method)
    if taken is not method:
        raise ValueError(f"a method named {method.name!r} is registered already: choose another")
    return method


@register
class Sso(Method):
    """Target-space surrogates: one oracle call, then ``m`` inner steps."""

    name = "sso"
    title = "SSO"
    about = "target-space surrogates: one oracle call, then m inner steps"

    rule: RuleName = "gradient-step"
    inner: InnerName = "armijo"
    m: int = Field(default=20, ge=1)
    lr: TheoryOrNumber = "theory"
    step_size: Positive | None = None

    def label(self) -> str:
        count = [] if self.inner == "exact" else [f"m={self.m}"]
        return " ".join([RULES[self.rule][1], *count, *self._unusual(hidden=("rule", "m"))])

    def conflicts(self) -> list[tuple[str, str]]:
        found = []
        if self.inner == "exact" and "m" in self.model_fields_set:
            found.append(
                ("m", "inner = 'exact' solves the surrogate at once and has no m; remove m")
            )
        if self.inner == "gradient-descent" and self.step_size is None:
            found.append(("inner", "'gradient-descent' needs step_size, a number above 0"))
        if self.inner not in ("gradient-descent", "adam") and self.step_size is not None:
            why = f"inner = {self.inner!r} finds its own step; remove step_size"
            found.append(("step_size", why))
        if not self._steps_by_smoothness and theory_factor(self.lr) not in (None, 1.0):
            why = f"rule = {self.rule!r} has no step 1/(2L) to take {self.lr!r} of; give a number"
            found.append(("lr", why))
        return found

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if self.inner == "exact" and not problem.is_linear:
            return "inner", f"'exact' needs a linear problem; {problem.name!r} is not one"
        rule, _ = RULES[self.rule]
        if "curvature" in rule.needs and not _has_curvature(problem):
            return "rule", f"{self.rule!r} needs the loss's curvature; {problem.name!r} has none"
        unknown = isinstance(self.lr, str) and problem.target_smoothness is None
        if unknown and self._steps_by_smoothness:
            why = f"'theory' is 1/(2L), but the loss of {problem.name!r} has no finite L"
            return "lr", f"{why}. Give a number, or rule = 'line-search'"
        return None

    @property
    def _steps_by_smoothness(self) -> bool:
        """Whether ``lr = "theory"`` is 1/(2L); other rules have a natural step, or search for it."""
        rule, _ = RULES[self.rule]
        return rule.natural_lr is None and not isinstance(rule, rules.LineSearch)

    def learning_rate(self, problem: Problem) -> float | None:
        """η as `SSO` takes it: None is the rule's own choice, 1/(2L) for most."""
        if self.lr == "theory":
            return None
        factor = theory_factor(self.lr)
        if factor is None:
            return float(self.lr)
        smoothness = problem.target_smoothness
        assert smoothness is not None  # conflicts() and misfit() have seen to that
        return factor * theoretical_step(smoothness)

    def make_rule(self, problem: Problem, batch_size: int) -> rules.Rule:
        """The rule; a line-search in target space has the constants that :class:`Sls` has."""
        if self.rule == "line-search":
            usual, batches = Sls(), -(-problem.n // batch_size)
            grow = usual.growth ** (1.0 / batches)
            return rules.LineSearch(c=usual.c, shrink=usual.shrink, grow=grow)
        rule, _ = RULES[self.rule]
        return rule

    def make_inner(self) -> solvers.Inner:
        if self.inner == "gradient-descent":
            assert self.step_size is not None
            return solvers.GradientDescent(step_size=self.step_size, max_steps=self.m)
        if self.inner == "exact":
            return solvers.Exact()
        if self.inner == "adam":
            lr = 1e-3 if self.step_size is None else self.step_size
            return solvers.Torch(partial(torch.optim.Adam, lr=lr), max_steps=self.m)
        if self.inner == "gauss-newton":
            return solvers.GaussNewton(max_steps=self.m)
        solver = solvers.LBFGS if self.inner == "lbfgs" else solvers.Armijo
        return solver(max_steps=self.m)

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        optimiser = SSO(
            model.parameters(),
            lr=self.learning_rate(problem),
            rule=self.make_rule(problem, batch_size),
            inner=self.make_inner(),
            schedule=self.make_schedule(total_steps),
            weight_decay=self.l2(problem),
        )
        return SsoTrainer(problem, model, optimiser)

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear | None:
        rule = self.make_rule(problem, batch_size)
        if self.inner in ("gauss-newton", "adam") or type(rule) not in RULE_KINDS:
            return None
        return OnLinear(self.learning_rate(problem), rule=rule, inner=self.make_inner())


def _has_curvature(problem: Problem) -> bool:
    return type(problem.loss).curvature is not Loss.curvature


class _WithTheory(Method):
    """A parameter-space method whose step theory knows on linear problems: 1/(2 L_θ)."""

    lr: TheoryOrNumber = "theory"

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if isinstance(self.lr, str) and problem.parameter_smoothness is None:
            why = f"'theory' is 1/(2L_θ), and no L_θ is known for {problem.name!r}"
            return "lr", f"{why}. Give a number"
        return None

    def learning_rate(self, problem: Problem) -> float:
        factor = theory_factor(self.lr)
        if factor is None:
            return float(self.lr)
        smoothness = problem.parameter_smoothness
        assert smoothness is not None  # misfit() has seen to that
        return factor * theoretical_step(smoothness - problem.l2 + self.l2(problem))


@register
class Sgd(_WithTheory):
    """Stochastic gradient descent; lr = "theory" is 1/(2 L_θ)."""

    name = "sgd"
    title = "SGD"
    about = "stochastic gradient descent (torch)"

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        lr = self.learning_rate(problem)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=self.l2(problem))
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear:
        return OnLinear(self.learning_rate(problem), baseline=compiled.SGD())


@register
class Svrg(_WithTheory):
    """Variance-reduced SGD, one snapshot per epoch."""

    name = "svrg"
    title = "SVRG"
    about = "variance-reduced SGD, a full gradient per epoch"

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        lr = self.learning_rate(problem)
        optimiser = SVRG(model.parameters(), lr=lr, weight_decay=self.l2(problem))
        batches = torch.arange(problem.n).split(batch_size)
        return SvrgTrainer(problem, model, optimiser, self.make_schedule(total_steps), batches)

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear:
        return OnLinear(self.learning_rate(problem), baseline=compiled.SVRG())


@register
class Sls(Method):
    """SGD with an Armijo line-search on each batch; ``lr`` is the largest step tried.

    A schedule multiplies the step that was found.
    """

    name = "sls"
    title = "SLS"
    about = "SGD with an Armijo line-search on each batch"

    lr: Positive = 1.0
    c: Fraction = 0.5
    shrink: Fraction = 0.7
    reset: Literal["keep", "restart", "grow"] = "grow"
    growth: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 2.0

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        optimiser = SLS(
            model.parameters(),
            lr=self.lr,
            c=self.c,
            shrink=self.shrink,
            reset=self.reset,
            growth=self.growth,
            batches_per_epoch=-(-problem.n // batch_size),
            weight_decay=self.l2(problem),
            schedule=self.make_schedule(total_steps),
        )
        return SlsTrainer(problem, model, optimiser, schedules.constant())

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear:
        search = compiled.SLS(c=self.c, shrink=self.shrink, reset=self.reset, growth=self.growth)
        return OnLinear(self.lr, baseline=search)


class _Adaptive(Method):
    """A torch optimiser with a number for its learning rate."""

    optimiser: ClassVar[type[torch.optim.Optimizer]]
    baseline: ClassVar[type[compiled.Baseline]]
    lr: Positive

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.l2(problem)}
        optimiser = self.optimiser(model.parameters(), **settings)
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))

    def on_linear(self, problem: Problem, batch_size: int) -> OnLinear:
        return OnLinear(self.lr, baseline=self.baseline())


@register
class Adam(_Adaptive):
    """Adam (torch)."""

    name = "adam"
    title = "Adam"
    about = "Adam (torch)"
    optimiser = torch.optim.Adam
    baseline = compiled.Adam
    lr: Positive = 1e-3


@register
class Adagrad(_Adaptive):
    """Adagrad, one step per coordinate (torch)."""

    name = "adagrad"
    title = "Adagrad"
    about = "Adagrad, a step size per coordinate (torch)"
    optimiser = torch.optim.Adagrad
    baseline = compiled.Adagrad
    lr: Positive = 1e-2


@register
class AdagradNorm(_Adaptive):
    """Adagrad with one step for all coordinates."""

    name = "adagrad-norm"
    title = "AdaGradNorm"
    about = "Adagrad with one step size for all coordinates"
    optimiser = AdaGradNorm
    baseline = compiled.AdaGradNorm
    lr: Positive = 1.0
