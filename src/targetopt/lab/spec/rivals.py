"""Methods that are compared where oracle calls are what counts: SSO as it comes, and its rivals.

Every question that a method asks is counted: the trials of a line-search as much as the first one of a step.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from targetopt import inner as solvers
from targetopt import rules
from targetopt.lab.problems import Problem
from targetopt.lab.problems.base import BatchSize
from targetopt.lab.problems.states import check_keys, check_tensor
from targetopt.lab.spec.methods import MethodSpec, Sls, register
from targetopt.lab.spec.options import Fraction, Positive
from targetopt.lab.spec.trainers import (
    BaselineTrainer,
    GradientTrainer,
    Rows,
    SlsTrainer,
    SsoTrainer,
    Trainer,
)
from targetopt.optim import SSO
from targetopt.types import BadArgument, Counts


@register
class Auto(MethodSpec):
    """``to.SSO(params)``, with nothing chosen; each option but ``price`` replaces a part of that.

    ``price`` is what a call is taken to cost in inner steps, in place of what the first steps measure:
    a run must not depend on how busy its machine was.
    """

    name = "sso-auto"
    title = "SSO"
    about = "to.SSO(params) with nothing chosen: it looks at what the oracle reveals"

    rule: Literal["automatic", "secant", "trust-region", "majoriser", "proximal"] = "automatic"
    inner: Literal["lbfgs", "armijo", "gauss-newton"] = "lbfgs"
    max_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(default="auto", alias="m")
    price: Positive = 1000.0

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = SSO(
            model.parameters(),
            rule=_PARTS[self.rule],
            inner=_SOLVERS[self.inner](
                max_steps=self.max_steps, stopping=solvers.Stopping(price=self.price)
            ),
            schedule=self.make_schedule(total_steps),
            weight_decay=self.weight_decay_on(problem),
            warn=False,
        )
        return SsoTrainer(problem, model, optimiser)


_PARTS: dict[str, rules.Rule] = {
    "automatic": rules.Automatic(),
    "secant": rules.TrustRegion(rules.Secant()),
    "trust-region": rules.TrustRegion(),
    "majoriser": rules.Majoriser(),
    "proximal": rules.Proximal(),
}
_SOLVERS: dict[str, Any] = {
    "lbfgs": solvers.LBFGS,
    "armijo": solvers.Armijo,
    "gauss-newton": solvers.GaussNewton,
}


@register
class Momentum(MethodSpec):
    """SGD with heavy-ball momentum (torch)."""

    name = "momentum"
    title = "SGD with momentum"
    about = "SGD with heavy-ball momentum (torch)"

    lr: Positive = 0.01
    momentum: Fraction = 0.9

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay_on(problem),
        )
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))


@register
class Lbfgs(MethodSpec):
    """L-BFGS in parameter space with a strong Wolfe line-search (torch); ``lr`` is its first trial step."""

    name = "lbfgs"
    title = "L-BFGS"
    about = (
        "L-BFGS on the parameters with a strong Wolfe line-search (torch); every trial is a call"
    )

    lr: Positive = 1.0
    history: int = Field(default=20, ge=1)

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if self.weight_decay_on(problem) > 0:
            return "weight_decay", f"{self.name!r} has none; {problem.name!r} wants some"
        return _without_losses(self.name, problem)

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = torch.optim.LBFGS(
            model.parameters(),
            lr=self.lr,
            max_iter=1,
            max_eval=25,
            history_size=self.history,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        return LbfgsTrainer(problem, model, optimiser, self.make_schedule(total_steps))


class LbfgsTrainer(BaselineTrainer):
    """torch's L-BFGS, one iteration a step, without the question that it asks twice.

    Each iteration begins with a question about the point where the last one ended, which has been
    answered already: what was answered there is kept, and is not paid for again.
    """

    _kept: dict[str, Tensor] | None = None

    def _update(self, rows: Rows) -> None:
        asked = [] if self._kept is None or rows is not None else [self._kept]

        def closure() -> Any:
            here = self._parameters()
            for known in asked:
                if torch.equal(known["parameters"], here):
                    self._set_gradient(known["gradient"])
                    return known["loss"]
            self.optimiser.zero_grad()
            loss = self._losses(rows).mean()
            loss.backward()
            known = {"parameters": here, "loss": loss.detach(), "gradient": self._gradient()}
            asked.append(known)
            return known["loss"]

        self.optimiser.step(closure)
        here = self._parameters()
        self._kept = next((k for k in asked if torch.equal(k["parameters"], here)), None)

    def _parameters(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def _gradient(self) -> Tensor:
        zero = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters())
        return torch.cat([g.detach().reshape(-1) for g in zero])

    def _set_gradient(self, gradient: Tensor) -> None:
        parts = gradient.split([p.numel() for p in self.model.parameters()])
        for p, part in zip(self.model.parameters(), parts, strict=True):
            p.grad = part.reshape(p.shape).clone()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or "kept" not in state:
            raise BadArgument("the state has no part 'kept'")
        kept = state["kept"]
        if kept is not None:
            check_keys(kept, ("parameters", "loss", "gradient"))
            usual = self._parameters()
            check_tensor("kept['parameters']", kept["parameters"], like=usual)
            check_tensor("kept['gradient']", kept["gradient"], like=usual)
            check_tensor("kept['loss']", kept["loss"], like=usual.sum())
        super().load_state_dict({name: part for name, part in state.items() if name != "kept"})
        self._kept = kept

    def _load_optimiser(self, state: Any) -> None:
        """What L-BFGS keeps, under its first parameter, is as long as all parameters together."""
        usual, like = self.optimiser.state_dict(), self._parameters()
        if not isinstance(state, dict) or state.keys() != usual.keys():
            raise BadArgument("the optimiser's state is not one of L-BFGS")
        if state["param_groups"] != usual["param_groups"] or not set(state["state"]) <= {0}:
            raise BadArgument("the optimiser's state is not one of this method and this model")
        for name, value in state["state"].get(0, {}).items():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Tensor) and each.ndim > 0:
                    check_tensor(f"optimiser[{name!r}]", each, like=like)
        self.optimiser.load_state_dict(state)


class QuestioningSlsTrainer(SlsTrainer):
    """SLS whose trials ask the oracle for everything and use the loss alone."""

    def _update(self, rows: Rows) -> None:
        forward, oracle = self.problem.forward(self.model, rows), self.problem.oracle(rows)

        def closure() -> Tensor:
            z = forward()
            point = oracle.query(z.detach())
            followed = int(torch.is_grad_enabled())
            self.counts += Counts(oracle_calls=1, forward_calls=1, backward_calls=followed)
            if not followed:
                return point.loss
            return point.loss + (point.gradients * (z - z.detach())).sum() / len(z)

        self.optimiser.step(closure)


@register
class SlsByQuestions(Sls):
    """SLS on oracles that give values only with gradients: each trial is a whole question."""

    name = "sls-questions"
    title = "SLS"
    about = "SLS whose trials are whole questions, for oracles that give no value alone"

    steps_by = QuestioningSlsTrainer

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        return _without_losses(self.name, problem)


def _without_losses(name: str, problem: Problem) -> tuple[str, str] | None:
    if "losses" in problem.reveals:
        return None
    why = f"{name!r} searches by losses, and the oracle of {problem.name!r} gives none"
    return "name", f"{why}. Use 'sgd', 'adam' or 'sso'"
