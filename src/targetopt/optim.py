"""`SSO`, the torch optimiser: a validating shell over `targetopt.core`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from targetopt import core
from targetopt.inner import LBFGS, Inner
from targetopt.oracle import as_answer, as_oracle
from targetopt.rules import GradientStep, Rule
from targetopt.schedules import Constant, Schedule
from targetopt.types import BadArgument, Counts, Forward, Query, State, StepReport, TargetPoint


class SSO(Optimizer):
    """Stochastic surrogate optimisation: one expensive oracle call, then m cheap steps.

    Each step evaluates the targets z_t = f(θ_t), asks the oracle for ∇ℓ(z_t), builds the surrogate ::

        q_t(z) = ℓ(z_t) + ⟨g_t, z − z_t⟩ + (1/η_t) mean_i D(z_i, z_t,i)

    by its *rule*, and decreases q_t(f(θ)) + ½λ‖θ‖² by its *inner solver*, which calls no oracle.

    Args:
        params: the parameters, in one group.
        lr: η, the step in target space (torch's schedulers drive it). ``None`` means 1/(2L) when
            the oracle knows its L; a scheduler then has nothing to drive: give ``lr=``, or use
            ``schedule=``.
        rule: how the surrogate is built; `GradientStep` by default.
        inner: how it is minimised; ``LBFGS(max_steps=20)`` by default (docs/choosing.md says why).
        schedule: a `targetopt.schedules` schedule that multiplies ``lr`` (or what ``None`` stands for).
        weight_decay: λ. The L2 term is exact: it is part of the inner objective and never goes
            through the surrogate.
        check_purity: evaluate the forward twice at the first step and refuse one that is not a
            function of the parameters.

    Parameters may be frozen and freed (``requires_grad_``) between steps. What the inner solver carries
    over (a step size, Adam's moments) belongs to those that were trained: it begins anew when they
    change.

    Example:
        >>> import torch, targetopt as to
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(64, 5), torch.randn(64).sign()
        >>> model = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0))
        >>> opt = to.SSO(model.parameters(), lr=2.0, inner=to.Armijo(max_steps=20))
        >>> reports = [
        ...     opt.step(lambda: model(x), to.LossOracle(to.losses.Logistic(y))) for _ in range(10)
        ... ]
        >>> reports[-1].loss < reports[0].loss, opt.totals.oracle_calls
        (True, 10)

    Reference: Lavington et al., *Target-based Surrogates for Stochastic Optimization*, ICML 2023, Alg. 1.
    """

    # With this, torch.amp.GradScaler hands us its factors instead of unscaling gradients we have not.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | None = None,
        *,
        rule: Rule | None = None,
        inner: Inner | None = None,
        schedule: Schedule | None = None,
        weight_decay: float = 0.0,
        check_purity: bool = True,
    ) -> None:
        rule = GradientStep() if rule is None else rule
        inner = LBFGS() if inner is None else inner
        if not isinstance(rule, Rule):
            raise BadArgument(
                f"rule={rule!r} must be a rule such as to.GradientStep() (with its parentheses)"
            )
        if not isinstance(inner, Inner):
            raise BadArgument(
                f"inner={inner!r} must be an inner solver such as to.Armijo(max_steps=20); a torch "
                "optimiser is wrapped as to.Torch(factory)"
            )
        if schedule is not None and not callable(schedule):
            raise BadArgument(
                f"schedule={schedule!r} must be callable, such as to.schedules.inverse_sqrt()"
            )
        _check_lr(lr, zero_allowed=False)
        _check_weight_decay(weight_decay)
        self.rule = rule
        self.inner = inner
        self.schedule: Schedule = Constant() if schedule is None else schedule
        self.check_purity = check_purity
        self.totals = Counts()
        self._steps = 0
        self._rule_state: State = {}
        self._inner_state: State = {}
        self._trained: list[int] = []  # whose the inner state is: places in the group
        if isinstance(params, Tensor):
            raise BadArgument(
                f"params is one tensor of shape {tuple(params.shape)}; pass a list of tensors, [w], or "
                "model.parameters()"
            )
        parameters: list[Any] = list(params)
        if not parameters:
            raise BadArgument(
                "params is empty: SSO has nothing to train. Pass model.parameters(), and as a list if "
                "the generator was used before."
            )
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise BadArgument(
                "SSO takes one parameter group: the target step η belongs to the targets, not to "
                "parts of the model. Pass all parameters in one list."
            )
        super().add_param_group(param_group)
        for p in self.param_groups[0]["params"]:
            if p.is_complex():
                raise BadArgument(
                    f"SSO: parameters must be real; got {p.dtype} of shape {tuple(p.shape)}. Train "
                    "torch.view_as_real of it, and let the forward make it complex."
                )

    def step(  # type: ignore[override]
        self,
        forward: Forward | None = None,
        oracle: Any = None,
        *,
        index: Tensor | None = None,
        regularise_on: Forward | None = None,
    ) -> StepReport:
        """One outer step: ``tell(ask(forward), oracle's answer)``, atomic.

        Args:
            forward: ``lambda: model(x)``, the targets of this batch at the present parameters.
            oracle: an `Oracle`, a `targetopt.losses` loss, or a function of the targets that gives one
                loss per example.
            index: the data rows of this batch, for rules that remember each example.
            regularise_on: a second forward, of all data: use the paper's analysis surrogate q̃
                (gradient on the batch, regulariser on all data), which has no bias ζ².
        """
        if hasattr(self, "grad_scale") or hasattr(self, "found_inf"):
            vars(self).pop("grad_scale", None)
            vars(self).pop("found_inf", None)
            raise BadArgument(
                "SSO cannot be driven by GradScaler: it has no scaled gradients, the surrogate is "
                "computed in float32. Put autocast (bfloat16) inside forward and call "
                "opt.step(forward, oracle) yourself."
            )
        if forward is None or oracle is None:
            raise BadArgument(
                "SSO.step needs the forward and the oracle: opt.step(lambda: model(x), oracle). It was "
                "called the way torch's optimisers are; a backward pass or a closure that returns a "
                "scalar loss does not say where the targets are. Split it: forward returns the "
                "model's outputs, oracle the loss of each example."
            )
        answerer = as_oracle(oracle)
        targets = self._targets(forward, regularise_on)
        method = self._method()
        query = self._ask(targets, index)
        frozen = query.live.frozen
        try:
            return self._tell(query, targets, answerer.query(query.targets), method)
        except BaseException:
            frozen.abandon()
            raise

    def ask(
        self, forward: Forward, *, index: Tensor | None = None, regularise_on: Forward | None = None
    ) -> Query:
        """The query of the next step: ``query.targets`` is what the oracle must be asked.

        Answer it with `tell`, in this process or, pickled beside model and optimiser (saved after
        ``ask``), in another.
        """
        targets = self._targets(forward, regularise_on)
        self._method()
        query = self._ask(targets, index)
        query.live.z = None  # the graph would wait for nothing: tell evaluates its own forward
        return query

    def tell(
        self,
        query: Query,
        forward: Forward,
        losses: Any,
        gradients: Any,
        *,
        curvature: Any = None,
        value: Callable[[Tensor], Tensor] | None = None,
        smoothness: float | None = None,
        regularise_on: Forward | None = None,
    ) -> StepReport:
        """Finish the step that ``ask`` began, with the oracle's answer.

        After an error all is as before ``tell``; the query can be told again with a repaired answer.
        The forward is evaluated once to see that it still gives the targets the oracle was asked
        about, and refused if it does not.

        Args:
            query: what ``ask`` returned.
            forward: the same forward; this one is used, whatever ``ask``'s has come to mean.
            losses: one per example, shape ``(n,)``; tensors, arrays or lists.
            gradients: of each example's loss, shaped like ``query.targets``.
            curvature: for `Newton`.
            value: a function from targets to losses, for `LineSearch`.
            smoothness: L, for ``lr=None``.
            regularise_on: as in ``ask``.
        """
        if not isinstance(query, Query):
            raise BadArgument(
                f"query={type(query).__name__} must be what opt.ask returned: tell(query, forward, losses, "
                "gradients)"
            )
        if query.step != self._steps:
            raise BadArgument(
                f"this query belongs to step {query.step + 1}; the optimiser is at step {self._steps + 1}. "
                "A query is told once, in order: ask again."
            )
        z = query.targets
        curved = None if curvature is None else as_answer("curvature", curvature, z)
        point = TargetPoint(
            targets=z,
            losses=as_answer("losses", losses, z),
            gradients=as_answer("gradients", gradients, z),
            curvature=None if curved is None else (lambda: curved),
            value=value,
            smoothness=smoothness,
        )
        return self._tell(query, self._targets(forward, regularise_on), point, self._method())

    def _targets(self, forward: Forward, regularise_on: Forward | None) -> core.Targets:
        for name, function in (("forward", forward), ("regularise_on", regularise_on)):
            if not callable(function) and not (function is None and name == "regularise_on"):
                raise BadArgument(
                    f"{name}={type(function).__name__} must be a function without arguments, lambda: "
                    "model(x): SSO evaluates it again as the parameters move"
                )
        params = [p for p in self.param_groups[0]["params"] if p.requires_grad]
        if not params:
            raise BadArgument("no parameter requires a gradient: there is nothing to train")
        return core.Targets(forward, params, regularise_on)

    def _method(self) -> core.Method:
        """The parts of the next step, checked: schedulers and users write to the group."""
        group = self.param_groups[0]
        lr, weight_decay = group["lr"], group["weight_decay"]
        _check_lr(lr, zero_allowed=True)
        _check_weight_decay(weight_decay)
        if lr is None and "initial_lr" in group:  # torch's schedulers leave that behind
            raise BadArgument(
                "a torch scheduler cannot drive lr=None, which means 1/(2L) and is known only when the "
                "oracle has answered. Give lr=, or use schedule= (to.schedules, or any function of t)."
            )
        decay = self.schedule(self._steps + 1)
        if not 0.0 <= decay < float("inf"):
            raise BadArgument(
                f"schedule={self.schedule!r} gave {decay!r} at t = {self._steps + 1}; it multiplies lr and must "
                "be ≥ 0 and finite"
            )
        for device in {p.device.type for p in group["params"]}:
            if torch.is_autocast_enabled(device):
                raise BadArgument(
                    f"SSO was called inside torch.autocast({device!r}), which would round the surrogate and "
                    "the inner solver too. Put it inside forward, around the model alone."
                )
        return core.Method(
            self.rule,
            self.inner,
            None if lr is None else float(lr),
            float(decay),
            float(weight_decay),
        )

    def _ask(self, targets: core.Targets, index: Tensor | None) -> Query:
        first = self._steps == 0 and self.check_purity
        return core.ask(targets, step=self._steps, index=index, check_purity=first)

    def _tell(
        self, query: Query, targets: core.Targets, point: object, method: core.Method
    ) -> StepReport:
        trained = [i for i, p in enumerate(self.param_groups[0]["params"]) if p.requires_grad]
        inner_state = self._inner_state if trained == self._trained else {}
        report, self._rule_state, self._inner_state = core.tell(
            query, targets, point, method, self._rule_state, inner_state
        )
        self._trained = trained
        self._steps += 1
        self.totals = self.totals + report
        self._opt_called = True  # torch's schedulers warn when they run before the first step
        return report

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: rule and inner state, step number, counts.

        Tensors, numbers and strings only: ``torch.load(..., weights_only=True)`` reads it.
        """
        return {
            **super().state_dict(),
            "sso": {
                "steps": self._steps,
                "totals": asdict(self.totals),
                "rule": type(self.rule).__name__,
                "rule_state": self._rule_state,
                "inner": type(self.inner).__name__,
                "inner_state": self._inner_state,
                "trained": self._trained,
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from `state_dict`; refuses the state of another rule or inner solver."""
        saved = copy.deepcopy(state_dict.get("sso"))
        if saved is None:
            raise BadArgument("this state_dict is not one of SSO: it has no 'sso' entry")
        for part in ("rule", "inner"):
            own = type(getattr(self, part)).__name__
            if saved.get(part) != own:
                raise BadArgument(
                    f"this state_dict was saved with {part}={saved.get(part)}, the optimiser has {own}; "
                    "build it with the same parts before loading"
                )
        try:
            steps, totals = int(saved["steps"]), Counts(**saved["totals"])
            rule_state, inner_state = saved["rule_state"], saved["inner_state"]
            trained = [int(place) for place in saved["trained"]]
        except (KeyError, TypeError, ValueError) as error:
            raise BadArgument(
                f"this state_dict's 'sso' entry is damaged or of another version: {error!r}. Use one that "
                "opt.state_dict() of this version made."
            ) from error
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "sso"})
        self._steps, self.totals = steps, totals
        self._rule_state, self._inner_state, self._trained = rule_state, inner_state, trained

    def __getstate__(self) -> dict[str, Any]:
        own = ["rule", "inner", "schedule", "check_purity", "totals"]
        own += ["_steps", "_rule_state", "_inner_state", "_trained"]
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}


def _check_lr(lr: Any, *, zero_allowed: bool) -> None:
    if lr is None:
        return
    value = _number(lr)
    if not (0.0 < value < float("inf") or (zero_allowed and value == 0.0)):
        raise BadArgument(
            f"lr={lr!r} must be positive and finite: it is η, the step in target space. Pass None for "
            "1/(2L)."
        )


def _check_weight_decay(weight_decay: Any) -> None:
    if not 0.0 <= _number(weight_decay) < float("inf"):
        raise BadArgument(
            f"weight_decay={weight_decay!r} must be ≥ 0 and finite: it is λ. Pass 0 for none."
        )


def _number(value: Any) -> float:
    """The number, or nan for what is none."""
    if isinstance(value, (str, bytes, bool)):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")
