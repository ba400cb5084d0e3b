"""`SSO`, the torch optimiser: a validating shell over `targetopt.core`."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from targetopt import core
from targetopt.distributed.ranks import together
from targetopt.distributed.world import present
from targetopt.inner import LBFGS, Inner
from targetopt.lazy import without_compiler
from targetopt.oracle import as_oracle, as_point, check_ids
from targetopt.rules import Automatic, GradientStep, Rule
from targetopt.schedules import Constant, Schedule
from targetopt.step import watch
from targetopt.step.journal import Journal
from targetopt.step.method import Method, check_lr, check_weight_decay
from targetopt.step.progress import Progress, explained
from targetopt.step.question import checked_ids, digest
from targetopt.step.targets import Targets
from targetopt.types import (
    BadArgument,
    Counts,
    Forward,
    MissingCapability,
    Query,
    StepReport,
)


class SSO(Optimizer):
    """Stochastic surrogate optimisation: one expensive oracle call, then m cheap steps.

    Each step evaluates the targets z_t = f(θ_t), asks the oracle for ∇ℓ(z_t), builds the surrogate ::

        q_t(z) = ℓ(z_t) + ⟨g_t, z − z_t⟩ + (1/η_t) mean_i D(z_i, z_t,i)

    by its *rule*, and decreases q_t(f(θ)) + ½λ‖θ‖² by its *inner solver*, which calls no oracle.

    Args:
        params: the parameters, in one group.
        lr: η, the step in target space (torch's schedulers drive it). ``None`` lets the rule find it: from the
            answers, or as 1/(2L) for rules that need the oracle's L. A scheduler then has nothing to
            drive: give ``lr=``, or use ``schedule=``.
        rule: how the surrogate is built. Without ``lr=`` the default is `Automatic`, which needs nothing
            chosen and works on every oracle; with ``lr=``, or ``inner=Exact()``, it is `GradientStep`, the
            paper's.
        inner: how it is minimised; ``LBFGS(max_steps="auto")`` by default (docs/choosing.md says why).
        schedule: a `targetopt.schedules` schedule that multiplies ``lr`` (or what ``None`` stands for).
        weight_decay: λ. The L2 term is exact: it is part of the inner objective and never goes
            through the surrogate.
        check_purity: evaluate the forward twice at the first step and refuse one that is not a
            function of the parameters.
        group: whose rows are one batch. ``"auto"`` joins the ranks of ``torch.distributed``'s default process group,
            if there is one; ``None`` keeps this process to itself; or a process group (see `targetopt.distributed`).
        warn: warn, once each, when the losses grow for many steps or a search finds no step any more.

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
        group: Any = "auto",
        warn: bool = True,
    ) -> None:
        inner = LBFGS(max_steps="auto") if inner is None else inner
        if not isinstance(inner, Inner):
            raise BadArgument(
                f"inner={inner!r} must be an inner solver such as to.Armijo(max_steps=20); a torch "
                "optimiser is wrapped as to.Torch(factory)"
            )
        if rule is None:
            rule = Automatic() if lr is None and inner.any_surrogate else GradientStep()
        if not isinstance(rule, Rule):
            raise BadArgument(
                f"rule={rule!r} must be a rule such as to.GradientStep() (with its parentheses)"
            )
        if schedule is not None and not callable(schedule):
            raise BadArgument(
                f"schedule={schedule!r} must be callable, such as to.schedules.inverse_sqrt()"
            )
        check_lr(lr, zero_allowed=False, unbounded=rule.unbounded)
        check_weight_decay(weight_decay)
        self.rule = rule
        self.inner = inner
        self.schedule: Schedule = Constant() if schedule is None else schedule
        self.check_purity = check_purity
        self.group = group
        self.warn = warn
        self._progress = Progress()
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
        without_compiler(super().add_param_group)(param_group)
        for p in self.param_groups[0]["params"]:
            if p.is_complex():
                raise BadArgument(
                    f"SSO: parameters must be real; got {p.dtype} of shape {tuple(p.shape)}. Train "
                    "torch.view_as_real of it, and let the forward make it complex."
                )

    @property
    def totals(self) -> Counts:
        """What all steps so far have cost."""
        return self._progress.totals

    def step(  # type: ignore[override]
        self,
        forward: Forward | None = None,
        oracle: Any = None,
        *,
        index: Tensor | None = None,
        scales: Any = None,
        regularise_on: Forward | None = None,
    ) -> StepReport:
        """One outer step: ``tell(ask(forward), oracle's answer)``, atomic.

        After an error or an interrupt (Ctrl-C) either nothing has changed, or the step is done and
        counted and the error has its ``report``. If nothing has changed but the oracle had answered, the
        error has the ``answer``, and ``opt.step(forward, error.answer)`` does the step without asking again.

        Args:
            forward: ``lambda: model(x)``, the targets of this batch at the present parameters.
            oracle: an `Oracle`, a `targetopt.losses` loss, or a function of the targets that gives one
                loss per example; or the answer that an interrupted step has handed back.
            index: the data rows of this batch, for rules that remember each example.
            scales: one number for each row of this batch: row i has the step η·scales_i, for rules that know what
                that means (`GradientStep`, `MirrorDescent` with `SquaredEuclidean`, policy steps).
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
        with together(self.group, "step") as world:
            answerer = as_oracle(oracle)
            targets = self._targets(forward, regularise_on)
            method = self._method(getattr(answerer, "anchored", None))
            world.agree(method.settings, targets.params)
            journal = Journal(targets.params)
            with journal, journal, journal:
                rows = {"index": index, "scales": scales}
                query = self._ask(targets, method, journal, answerer, **rows)
                begin = time.perf_counter()
                point = journal.paid(answerer.query, query.targets.clone())
                seconds = time.perf_counter() - begin
                world.meet()
                report = self._tell(query, targets, point, method, journal, seconds)
        if self.warn:
            watch.warn(self._progress.watch, report.eta)
        return report

    def ask(
        self,
        forward: Forward,
        *,
        index: Tensor | None = None,
        ids: Sequence[Any] | None = None,
        scales: Any = None,
        regularise_on: Forward | None = None,
    ) -> Query:
        """The query of the next step: ``query.targets`` is what the oracle must be asked.

        Answer it with `tell`, in this process or, pickled beside model and optimiser (saved after
        ``ask``), in another.

        Args:
            forward: ``lambda: model(x)``, the targets of this batch at the present parameters.
            index: the data rows of this batch, for rules that remember each example.
            ids: a name for each row, strings or whole numbers, all different. `tell` then takes only an
                answer whose rows carry the same ids in the same order.
            scales, regularise_on: as in `step`.
        """
        with together(self.group, "ask") as world:
            targets, method = self._targets(forward, regularise_on), self._method()
            world.agree(method.settings, targets.params)
            journal = Journal()
            with journal, journal, journal:
                query = self._ask(targets, method, journal, None, index=index, scales=scales)
                query.ids = checked_ids(ids, query.targets.shape[0])
                query.digest = digest(targets.params)
                query.live.z = (
                    None  # tell evaluates its own forward: the graph would wait for nothing
                )
                world.meet()
                journal.adopt(query=query)
        query.asked = time.perf_counter()
        return query

    def tell(
        self,
        query: Query,
        forward: Forward,
        losses: Any,
        gradients: Any = None,
        *,
        curvature: Any = None,
        value: Callable[[Tensor], Tensor] | None = None,
        smoothness: float | None = None,
        ids: Sequence[Any] | None = None,
        regularise_on: Forward | None = None,
    ) -> StepReport:
        """Finish the step that ``ask`` began, with the oracle's answer.

        After an error all is as before ``tell``; the query can be told again with a repaired answer.
        The parameters must be bit for bit those of ``ask``. The forward is evaluated once to see that it
        still gives the targets the oracle was asked about, and refused if it does not.

        Args:
            query: what ``ask`` returned.
            forward: the same forward; this one is used, whatever ``ask``'s has come to mean.
            losses: one per example, shape ``(n,)``; tensors, arrays or lists. Or `Answers`, which bring
                their gradients with them and are matched by the ids of their rows.
            gradients: of each example's loss, shaped like ``query.targets``.
            curvature: for `Newton`.
            value: a function from targets to losses, for `LineSearch`.
            smoothness: L, for ``lr=None``.
            ids: the ids of the answer's rows in the answer's order, if ``ask`` was given some: a permuted,
                partial or foreign answer is refused.
            regularise_on: as in ``ask``.
        """
        now = time.perf_counter()
        if not isinstance(query, Query):
            raise BadArgument(
                f"query={type(query).__name__} must be what opt.ask returned: tell(query, forward, losses, "
                "gradients)"
            )
        if query.step != self._progress.steps:
            raise BadArgument(
                f"this query belongs to step {query.step + 1}; the optimiser is at step {self._progress.steps + 1}. "
                "A query is told once, in order: ask again."
            )
        waited = None if query.asked is None else now - query.asked
        if hasattr(losses, "told"):  # Answers: in the query's order, perhaps of fewer rows
            query, forward, point = losses.told(query, forward)
        else:
            check_ids(query.ids, ids.tolist() if isinstance(ids, Tensor) else ids)
            point = as_point(query.targets, losses, gradients, curvature, value, smoothness)
        with together(self.group, "tell") as world:
            targets, method = self._targets(forward, regularise_on), self._method()
            world.agree(method.settings, targets.params)
            journal = Journal(targets.params)
            with journal, journal, journal:
                report = self._tell(query, targets, point, method, journal, waited)
        if self.warn:
            watch.warn(self._progress.watch, report.eta)
        return report

    def _targets(self, forward: Forward, regularise_on: Forward | None) -> Targets:
        params = [p for p in self.param_groups[0]["params"] if p.requires_grad]
        return Targets(forward, params, regularise_on)

    def _method(self, anchored: Callable[[Rule], Rule] | None = None) -> Method:
        """This step's parts; ``anchored`` is of an oracle whose answer is about other targets than the present ones."""
        rule = self.rule if anchored is None else anchored(self.rule)
        step = self._progress.steps + 1
        return Method.of(self.param_groups[0], rule, self.inner, self.schedule, step)

    def _ask(
        self, targets: Targets, method: Method, journal: Journal, oracle: object, **rows: Any
    ) -> Query:
        """``rows`` is what was said of the batch's rows: ``index=`` and ``scales=``."""
        first = self._progress.steps == 0 and self.check_purity
        here = self._present()
        return core.ask(targets, method, here, journal, oracle=oracle, check_purity=first, **rows)

    def _tell(
        self,
        query: Query,
        targets: Targets,
        point: object,
        method: Method,
        journal: Journal,
        oracle_seconds: float | None = None,
    ) -> StepReport:
        self._opt_called = True  # torch's schedulers warn when they run before the first step
        report, progress = core.tell(
            query, targets, point, method, self._present(), journal, oracle_seconds
        )
        searches = self.rule.searches and not method.still
        progress = replace(progress, watch=watch.looked(progress.watch, report, searches))
        present().agree(method.settings, targets.params)  # the last word of all ranks
        journal.adopt(partial(setattr, self, "_progress", progress), report=report)
        return report

    def _present(self) -> Progress:
        """How far the run has come; what the inner solver remembers of other parameters is left out."""
        group = self.param_groups[0]["params"]
        trained = tuple(i for i, p in enumerate(group) if p.requires_grad)
        if trained == self._progress.trained:
            return self._progress
        return replace(self._progress, inner_state={}, accepted=(), trained=trained)

    def explain(self) -> None:
        """Print which rule, η and number of inner steps are in use, and why.

        Example:
            >>> import torch, targetopt as to
            >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
            >>> opt = to.SSO([w])
            >>> _ = opt.step(lambda: 1 * w, to.losses.Squared(torch.ones(2, dtype=torch.float64)))
            >>> opt.explain()  # doctest: +ELLIPSIS
            Rule: Proximal, taken automatically because the oracle reveals the loss itself (labels), ...
        """
        print(explained(self.rule, self.inner, self._progress))

    def rewind(self) -> None:
        """Go back to the last point that the rule accepted: the best one the oracle has confirmed.

        After the last step of a run the parameters are where the surrogate says that the loss is lower,
        and nobody has asked the oracle yet. A rule that takes bad steps back (`TrustRegion`) remembers
        the last point whose loss it knows; this puts the parameters there. Nothing is counted.
        """
        accepted = self._progress.accepted
        if not accepted:
            raise MissingCapability(
                f"rewind() needs a rule that keeps its last accepted point, and at least one step. "
                f"{type(self.rule).__name__} keeps none after {self._progress.steps} steps. Use rule=to.TrustRegion()."
            )
        group = self.param_groups[0]["params"]
        trained = [group[i] for i in self._progress.trained]
        with Journal(trained) as journal:
            core.put_at(trained, accepted)
            journal.adopt()

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: rule and inner state, step number, counts.

        Tensors, numbers and strings only: ``torch.load(..., weights_only=True)`` reads it.
        """
        return {
            **without_compiler(super().state_dict)(),
            "sso": {
                "rule": type(self.rule).__name__,
                "inner": type(self.inner).__name__,
                **self._progress.saved(),
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from `state_dict`; refuses the state of another rule or inner solver."""
        if not isinstance(state_dict, dict):
            raise BadArgument(
                f"state_dict={state_dict!r} must be the dictionary that opt.state_dict() returned"
            )
        saved = copy.deepcopy(state_dict.get("sso"))
        if not isinstance(saved, dict):
            raise BadArgument(
                "this state_dict is not one of SSO: it has no 'sso' entry that is a dictionary"
            )
        for part in ("rule", "inner"):
            own = type(getattr(self, part)).__name__
            if saved.get(part) != own:
                raise BadArgument(
                    f"this state_dict was saved with {part}={saved.get(part)}, the optimiser has {own}; "
                    "build it with the same parts before loading"
                )
        progress = Progress.loaded(saved, self.rule, self.inner)
        of_torch = {k: v for k, v in state_dict.items() if k != "sso"}
        try:
            without_compiler(super().load_state_dict)(of_torch)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise BadArgument(
                f"torch cannot load this state_dict: {error}. Its 'state' and 'param_groups' must be those that "
                "opt.state_dict() returned for the same parameters; nothing has been loaded."
            ) from error
        self._progress = progress

    def __getstate__(self) -> dict[str, Any]:
        own = ["rule", "inner", "schedule", "check_purity", "warn", "_progress"]
        # a process group belongs to its process
        group = self.group if self.group is None or isinstance(self.group, str) else "auto"
        kept = {name: getattr(self, name) for name in own}
        return {**super().__getstate__(), **kept, "group": group}
