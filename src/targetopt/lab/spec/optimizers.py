"""Any torch optimiser as a method of specifications: :func:`register_optimizer`."""

import inspect
from typing import Any, ClassVar

import torch
from torch import nn

from targetopt.lab.problems import Problem
from targetopt.lab.problems.base import BatchSize
from targetopt.lab.spec.methods import METHODS, MethodSpec
from targetopt.lab.spec.options import Positive
from targetopt.lab.spec.trainers import GradientTrainer, Rows, Trainer
from targetopt.types import BadArgument


class _Penalised(GradientTrainer):
    """The problem's ½λ‖θ‖² is part of what is differentiated; an optimiser's weight decay may be another thing."""

    weight_decay = 0.0

    def _update(self, rows: Rows) -> None:
        self.optimiser.zero_grad()
        loss = self._losses(rows).mean()
        if self.weight_decay:
            squares = [p.square().sum() for p in self.model.parameters() if p.requires_grad]
            loss = loss + 0.5 * self.weight_decay * torch.stack(squares).sum()
        loss.backward()
        self.optimiser.step()


class OwnOptimizer(MethodSpec):
    """A torch optimiser under a name; :func:`register_optimizer` makes the subclasses."""

    optimiser: ClassVar[type[torch.optim.Optimizer]]
    settings: ClassVar[dict[str, Any]]
    lr: Positive = 1e-3

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        settings: dict[str, Any] = {**self.settings, "lr": self.lr}
        optimiser = self.optimiser(model.parameters(), **settings)
        made = _Penalised(problem, model, optimiser, self.make_schedule(total_steps))
        made.weight_decay = self.weight_decay_on(problem)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name: a worker that has read the same plugins knows the class by it."""
        return _named, (self.name, self.model_dump(include=self.model_fields_set))


def _named(name: str, options: dict[str, Any]) -> MethodSpec:
    return METHODS[name](**options)


def register_optimizer(
    name: str,
    optimiser: type[torch.optim.Optimizer],
    *,
    lr: float = 1e-3,
    title: str | None = None,
    colour: str | None = None,
    **settings: Any,
) -> None:
    """Let specifications use a torch optimiser by a name of your choice.

    Put the call into a plugin, a Python file that the specification names under ``plugins``. Methods of that name then
    take ``lr``, ``schedule`` and ``weight_decay``, like every other, and ``lr = [0.001, 0.01, 0.1]`` is a sweep.
    The problem's own ½λ‖θ‖² is part of the objective that is differentiated, whatever the optimiser means by its
    weight decay.

    Args:
        name: what specifications call it.
        optimiser: a class whose ``step()`` reads ``.grad`` and needs no closure, and which takes ``lr``.
        lr: its learning rate unless a specification says otherwise.
        title: its name in legends; ``name`` if left out.
        colour: its colour in figures, as ``"oklch(0.5 0.12 165)"``; one is chosen by its name if left out.
        settings: further arguments of the optimiser, the same in every run.

    Example:
        >>> import torch
        >>> from targetopt.lab import METHODS, register_optimizer
        >>> register_optimizer("rprop", torch.optim.Rprop, lr=0.01, title="Rprop")
        >>> METHODS["rprop"](lr=0.1).label()
        'Rprop lr=0.1'
        >>> _ = METHODS.pop("rprop")
    """
    if not (isinstance(optimiser, type) and issubclass(optimiser, torch.optim.Optimizer)):
        raise BadArgument(
            f"optimiser={optimiser!r} must be a class of optimisers, such as torch.optim.NAdam, without parentheses."
        )
    closure = inspect.signature(optimiser.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise BadArgument(
            f"optimiser={optimiser.__name__} needs a closure in every step, so it asks the oracle as often as it "
            "likes. Use it as an inner solver instead: to.Torch(...)."
        )
    if not lr > 0:
        raise BadArgument(f"lr={lr!r} must be above 0.")
    before = METHODS.get(name)
    if before is not None:
        again = issubclass(before, OwnOptimizer) and (before.optimiser, before.settings) == (
            optimiser,
            settings,
        )
        if again:  # a plugin that is read twice
            return
        raise BadArgument(f"name={name!r} is the name of another method already. Choose another.")
    default_lr = float(lr)

    class Registered(OwnOptimizer):
        lr: Positive = default_lr

    Registered.name = name
    Registered.title = title or name
    Registered.about = f"{optimiser.__module__}.{optimiser.__name__}, from a plugin"
    Registered.colour = colour
    Registered.optimiser = optimiser
    Registered.settings = settings
    METHODS[name] = Registered
