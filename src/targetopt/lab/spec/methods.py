"""The methods a specification can name: their options, checked, and how each is built in torch.

A new method is one subclass of `MethodSpec` with the decorator :func:`register`; a plugin can
have it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from targetopt import inner as solvers
from targetopt import linear, registry, rules, schedules
from targetopt.baselines import SLS, SVRG, AdaGradNorm, theoretical_step
from targetopt.baselines.sls import Search
from targetopt.lab.problems import Problem
from targetopt.lab.problems.base import BatchSize
from targetopt.lab.spec.options import (
    Fraction,
    InnerName,
    Positive,
    ProblemOrNumber,
    RuleName,
    ScheduleName,
    TheoryOrNumber,
    theory_factor,
)
from targetopt.lab.spec.trainers import (
    GradientTrainer,
    Rows,
    SlsTrainer,
    SsoTrainer,
    SvrgTrainer,
    Trainer,
)
from targetopt.linear import baselines as compiled
from targetopt.optim import SSO
from targetopt.types import BadArgument


@dataclass(frozen=True)
class OnLinear:
    """A method as the compiled driver takes it: a rule and an inner solver, or a baseline."""

    lr: float | None
    rule: rules.Rule | None = None
    inner: solvers.Inner | None = None
    baseline: compiled.Baseline | None = None


class MethodSpec(BaseModel):
    """Options of a method, with the names that are typed in specifications.

    ``weight_decay`` is λ of ½λ‖θ‖² in the objective; ``"problem"`` takes the problem's own.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True
    )

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    colour: ClassVar[str | None] = None
    """In figures, as CSS writes it; None takes one from the name."""
    marker: ClassVar[str] = "circle"

    schedule: ScheduleName = "constant"
    weight_decay: ProblemOrNumber = "problem"

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The keys that a table of this method can have, with their defaults."""
        return {item.alias or name: item.default for name, item in cls.model_fields.items()}

    def with_defaults(self, keys: Iterable[str]) -> Self:
        """The same, with the options that specifications call so at their defaults."""
        fields = type(self).model_fields.items()
        usual = {item.alias or name: (name, item.default) for name, item in fields}
        return self.model_copy(update=dict(usual[key] for key in keys))

    def resolved(self) -> dict[str, Any]:
        """All options with their values, defaults filled in."""
        return {"name": self.name, **self.model_dump(mode="json", by_alias=True)}

    def label(self) -> str:
        """The name in legends: the title, and every option that is not at its default."""
        return " ".join([self.title, *self._unusual()])

    def _unusual(self, hidden: tuple[str, ...] = ()) -> list[str]:
        chosen = self.model_dump(by_alias=True)
        shown = []
        for key, default in self.options().items():
            value = chosen[key]
            if key not in hidden and value != default:
                shown.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
        return shown

    def conflicts(self) -> list[tuple[str, str]]:
        """Options that cannot go together: (key, why)."""
        return []

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        """Why the method cannot run on ``problem``: (key, why); None if it can."""
        return None

    def weight_decay_on(self, problem: Problem) -> float:
        """λ as a number."""
        if self.weight_decay == "problem":
            return problem.weight_decay
        return float(self.weight_decay)

    @property
    def knows_its_end(self) -> bool:
        """Whether the steps depend on how many there will be."""
        return self.schedule == "exponential"

    def make_schedule(self, total_steps: int) -> schedules.Schedule:
        return registry.schedules[self.schedule].item(total_steps)

    @property
    def steps_per_round(self) -> int:
        """Steps on each round of states, where their labels are paid for once (imitation)."""
        return 1

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        """The method on the torch path, before its first step."""
        raise NotImplementedError

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear | None:
        """The method in the compiled driver; None if it has no kernel there."""
        return None


METHODS: dict[str, type[MethodSpec]] = {}
"""What ``name`` in a ``[[methods]]`` table can be."""


def register(method: type[MethodSpec]) -> type[MethodSpec]:
    """Let specifications use ``method`` by its ``name``."""
    taken = METHODS.setdefault(method.name, method)
    if taken is not method:
        raise ValueError(f"a method named {method.name!r} is registered already: choose another")
    return method


@register
class Sso(MethodSpec):
    """Target-space surrogates: one oracle call, then ``m`` inner steps."""

    name = "sso"
    title = "SSO"
    about = "target-space surrogates: one oracle call, then m inner steps"

    rule: RuleName = "gradient-step"
    inner: InnerName = "armijo"
    max_steps: int = Field(default=20, ge=1, alias="m")
    lr: TheoryOrNumber = "theory"
    step_size: Positive | None = None
    floor: Annotated[float, Field(allow_inf_nan=False)] | None = None

    def resolved(self) -> dict[str, Any]:
        """All options; ``floor`` only where it is given, so that ids from before it existed remain."""
        options = super().resolved()
        return {key: value for key, value in options.items() if key != "floor" or value is not None}

    def label(self) -> str:
        count = [f"m={self.max_steps}"] if registry.inner[self.inner].item.iterates else []
        return " ".join(
            [registry.rules[self.rule].title, *count, *self._unusual(hidden=("rule", "m"))]
        )

    def conflicts(self) -> list[tuple[str, str]]:
        found, inner = [], registry.inner[self.inner].item
        if not inner.iterates and "max_steps" in self.model_fields_set:
            why = f"inner = {self.inner!r} solves the surrogate at once and has no m; remove m"
            found.append(("m", why))
        if inner.step_size == "required" and self.step_size is None:
            found.append(("inner", f"{self.inner!r} needs step_size, a number above 0"))
        if inner.step_size == "none" and self.step_size is not None:
            why = f"inner = {self.inner!r} finds its own step; remove step_size"
            found.append(("step_size", why))
        if not self._steps_by_smoothness and theory_factor(self.lr) not in (None, 1.0):
            why = f"rule = {self.rule!r} has no step 1/(2L) to take {self.lr!r} of; give a number"
            found.append(("lr", why))
        if self.floor is not None:
            try:
                self._rule()
            except TypeError:
                found.append(("floor", f"rule = {self.rule!r} has no floor; remove it"))
            except BadArgument as error:
                found.append(("floor", str(error)))
        return found

    def _rule(self) -> rules.Rule:
        """The rule by its name, with the floor that was given."""
        usual = registry.rules[self.rule].item
        return usual if self.floor is None else replace(usual, floor=self.floor)  # type: ignore[call-arg]

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if self.inner == "exact" and not problem.is_linear:
            return "inner", f"'exact' needs a linear problem; {problem.name!r} is not one"
        rule = registry.rules[self.rule].item
        for need in sorted(rule.needs - problem.reveals):
            return "rule", f"{self.rule!r} needs the loss's {need}; {problem.name!r} has none"
        by_theory = isinstance(self.lr, str) and self._steps_by_smoothness
        if by_theory and problem.target_smoothness is None:
            why = f"'theory' is 1/(2L), but the loss of {problem.name!r} has no finite L"
            way_out = ", or rule = 'line-search'" if "value" in problem.reveals else ""
            return "lr", f"{why}. Give a number{way_out}"
        return None

    @property
    def _steps_by_smoothness(self) -> bool:
        """Whether ``lr = "theory"`` is 1/(2L); other rules have a natural step, or search for it."""
        rule = registry.rules[self.rule].item
        return rule._wants_smoothness(None)

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

    def make_rule(self, problem: Problem, batch_size: BatchSize) -> rules.Rule:
        """The rule; a line-search in target space has the constants that :class:`Sls` has."""
        if self.rule == "line-search":
            usual, batches = Sls(), problem.batches(batch_size)
            grow = usual.growth ** (1.0 / batches)
            return rules.LineSearch(c=usual.c, shrink=usual.shrink, grow=grow)
        rule = self._rule()
        return rule if problem.divergence is None else rule.measured_by(problem.divergence)

    def make_inner(self) -> solvers.Inner:
        return registry.inner[self.inner].item.make(self.max_steps, self.step_size)

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = SSO(
            model.parameters(),
            lr=self.learning_rate(problem),
            rule=self.make_rule(problem, batch_size),
            inner=self.make_inner(),
            schedule=self.make_schedule(total_steps),
            weight_decay=self.weight_decay_on(problem),
            warn=False,  # runs that diverge are results here
        )
        return SsoTrainer(problem, model, optimiser)

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear | None:
        rule, inner = self.make_rule(problem, batch_size), self.make_inner()
        if not linear.has_kernels(rule, inner):
            return None
        return OnLinear(self.learning_rate(problem), rule=rule, inner=inner)


class _WithTheory(MethodSpec):
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
        own, wanted = problem.weight_decay, self.weight_decay_on(problem)
        return factor * theoretical_step(smoothness - own + wanted)


@register
class Sgd(_WithTheory):
    """Stochastic gradient descent; lr = "theory" is 1/(2 L_θ)."""

    name = "sgd"
    title = "SGD"
    about = "stochastic gradient descent (torch)"
    colour = "oklch(0.22 0 0)"

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        lr = self.learning_rate(problem)
        optimiser = torch.optim.SGD(
            model.parameters(), lr=lr, weight_decay=self.weight_decay_on(problem)
        )
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear:
        return OnLinear(self.learning_rate(problem), baseline=compiled.SGD())


@register
class Svrg(_WithTheory):
    """Variance-reduced SGD, one snapshot per epoch."""

    name = "svrg"
    title = "SVRG"
    about = "variance-reduced SGD, a full gradient per epoch"
    colour = "oklch(0.42 0.06 80)"
    marker = "plus"

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        lr = self.learning_rate(problem)
        optimiser = SVRG(model.parameters(), lr=lr, weight_decay=self.weight_decay_on(problem))
        batches: Sequence[Rows] = [None]
        if problem.n is not None:
            size = problem.n if batch_size == "full" else batch_size
            batches = torch.arange(problem.n).split(size)
        return SvrgTrainer(problem, model, optimiser, self.make_schedule(total_steps), batches)

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear:
        return OnLinear(self.learning_rate(problem), baseline=compiled.SVRG())


@register
class Sls(MethodSpec):
    """SGD with an Armijo line-search on each batch; ``lr`` is the largest step tried.

    A schedule multiplies the step that was found.
    """

    name = "sls"
    title = "SLS"
    about = "SGD with an Armijo line-search on each batch"
    colour = "oklch(0.66 0.15 72)"
    marker = "square"

    steps_by: ClassVar[type[SlsTrainer]] = SlsTrainer

    lr: Positive = 1.0
    c: Fraction = Search.c
    shrink: Fraction = Search.shrink
    reset: Literal["keep", "restart", "grow"] = Search.reset
    growth: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Search.growth

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if "value" not in problem.reveals:
            why = "tries steps by the loss's value, which the oracle gives only with its gradient"
            return "name", f"{self.name!r} {why} on {problem.name!r}. Use 'sgd' or 'sso'"
        return None

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = SLS(
            model.parameters(),
            lr=self.lr,
            c=self.c,
            shrink=self.shrink,
            reset=self.reset,
            growth=self.growth,
            batches_per_epoch=problem.batches(batch_size),
            weight_decay=self.weight_decay_on(problem),
            schedule=self.make_schedule(total_steps),
        )
        return self.steps_by(problem, model, optimiser, schedules.constant())

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear:
        search = compiled.SLS(c=self.c, shrink=self.shrink, reset=self.reset, growth=self.growth)
        return OnLinear(self.lr, baseline=search)


class _Adaptive(MethodSpec):
    """A torch optimiser with a number for its learning rate."""

    optimiser: ClassVar[type[torch.optim.Optimizer]]
    baseline: ClassVar[type[compiled.Baseline]]
    lr: Positive

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        settings: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay_on(problem)}
        optimiser = self.optimiser(model.parameters(), **settings)
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))

    def on_linear(self, problem: Problem, batch_size: BatchSize) -> OnLinear:
        return OnLinear(self.lr, baseline=self.baseline())


@register
class Adam(_Adaptive):
    """Adam (torch)."""

    name = "adam"
    title = "Adam"
    about = "Adam (torch)"
    colour = "oklch(0.58 0.14 346)"
    marker = "triangle"
    optimiser = torch.optim.Adam
    baseline = compiled.Adam
    lr: Positive = 1e-3


@register
class Adagrad(_Adaptive):
    """Adagrad, one step per coordinate (torch)."""

    name = "adagrad"
    title = "Adagrad"
    about = "Adagrad, a step size per coordinate (torch)"
    colour = "oklch(0.5 0.12 165)"
    marker = "diamond"
    optimiser = torch.optim.Adagrad
    baseline = compiled.Adagrad
    lr: Positive = 1e-2


@register
class AdagradNorm(_Adaptive):
    """Adagrad with one step for all coordinates."""

    name = "adagrad-norm"
    title = "AdaGradNorm"
    about = "Adagrad with one step size for all coordinates"
    colour = "oklch(0.62 0.12 135)"
    marker = "down"
    optimiser = AdaGradNorm
    baseline = compiled.AdaGradNorm
    lr: Positive = 1.0
