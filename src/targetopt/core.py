"""The algorithm, once: ask for targets, build the surrogate from the answer, minimise it.

``ask`` evaluates the forward and says what the oracle must be asked; ``tell`` takes the answer and
does the rest. Everything a step changes (parameters, buffers, generators, states) changes completely
or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from targetopt import linear
from targetopt.determinism import FrozenForward
from targetopt.inner import LBFGS, Armijo, Exact, GaussNewton, Inner, InnerResult, Objective
from targetopt.oracle import CountedValue, checked
from targetopt.rules import Proposal, Rule
from targetopt.surrogate import Quadratic, Surrogate
from targetopt.types import (
    HALF,
    BadArgument,
    BadForward,
    Diverged,
    Forward,
    MissingCapability,
    Query,
    State,
    StepReport,
    TargetPoint,
    all_finite,
)


@dataclass(frozen=True)
class Method:
    """What one step is made of: the rule, the inner solver, η = lr · decay and λ."""

    rule: Rule
    inner: Inner
    lr: float | None
    decay: float
    weight_decay: float


class Targets:
    """The user's forward, checked; with ``regularise_on``, its rows below the batch's.

    (The analysis surrogate q̃ takes its gradient on the batch and its regulariser on all data.)
    """

    def __init__(
        self, forward: Forward, params: Sequence[Tensor], regularise_on: Forward | None
    ) -> None:
        self.forward = forward
        self.params = params
        self.regularise_on = regularise_on
        self.batch = 0

    @property
    def passes(self) -> int:
        """Calls of the user's code (and backward passes through it) that one evaluation takes."""
        return 1 if self.regularise_on is None else 2

    def __call__(self) -> Tensor:
        z = self._usable(self.forward())
        self.batch = z.shape[0]
        if self.regularise_on is None:
            return z
        everything = self._usable(self.regularise_on())
        if everything.shape[1:] != z.shape[1:] or everything.dtype != z.dtype:
            raise BadForward(
                f"regularise_on() must give targets like forward()'s, one row per example of all data; got "
                f"{everything.dtype} of shape {tuple(everything.shape)} against {z.dtype} of shape {tuple(z.shape)}"
            )
        return torch.cat([z, everything])

    def _usable(self, z: Tensor) -> Tensor:
        if not isinstance(z, Tensor):
            raise BadForward(
                f"forward() must return a tensor of targets; it returned {type(z).__name__}"
            )
        if not z.is_floating_point():
            raise BadForward(
                f"forward() must return floating-point targets; got {z.dtype}. Return the logits or "
                "means, not the predicted classes."
            )
        if z.ndim == 0:
            raise BadForward(
                "forward() must return one row of targets per example; it returned a single number. "
                "Return the model's outputs: the loss belongs in the oracle."
            )
        if z.shape[0] == 0:
            raise BadForward("forward() returned no rows: the batch is empty")
        detached = z.grad_fn is None and not any(z is p for p in self.params)
        if detached and torch.is_grad_enabled():
            raise BadForward(
                "forward() returned targets that do not depend on the parameters through autograd. "
                "Remove detach(), no_grad() or .numpy() from it, and give SSO the parameters it uses."
            )
        # Half precision is for the model; differences of targets need more digits.
        if z.dtype in HALF:
            return z.float()
        # Targets that are a parameter, or a view of one, must not move with it.
        base = z if z._base is None else z._base
        return z.clone() if any(base is p for p in self.params) else z


@dataclass
class Live:
    """A query in the process that asked it: its graph serves the first inner gradient, once."""

    frozen: FrozenForward
    z: Tensor | None
    versions: list[int]


def ask(
    targets: Targets, *, step: int, index: Tensor | None = None, check_purity: bool = False
) -> Query:
    """Evaluate the forward; the query carries the targets and the live graph."""
    frozen = FrozenForward(targets, [str(p.device) for p in targets.params])
    try:
        with torch.enable_grad():
            z = frozen.first()
        if check_purity:
            frozen.check_pure(z.detach())
        question = z.detach()[: targets.batch].clone()
        if not all_finite(question):
            raise BadForward(
                "forward() returned targets that are not finite: the model has diverged, or its input "
                "has nan or inf. Nothing was asked of the oracle."
            )
        index = _checked_index(index, question)
    except BaseException:
        frozen.abandon()
        raise
    versions = [p._version for p in targets.params]
    return Query(
        targets=question,
        step=step,
        index=index,
        rng=frozen.rng,
        buffers=frozen.buffers,
        forward_calls=1 + check_purity,
        regularised=targets.regularise_on is not None,
        live=Live(frozen, z, versions),
    )


def tell(
    query: Query,
    targets: Targets,
    point: object,
    method: Method,
    rule_state: State,
    inner_state: State,
) -> tuple[StepReport, State, State]:
    """Finish the step: check the answer, propose, minimise. Returns the report and new states.

    After an error everything is as it was before ``tell``, and the query can be told again.
    """
    params = targets.params
    if query.regularised != (targets.regularise_on is not None):
        raise BadArgument(
            "regularise_on= was given to ask: give it to tell too, the same forward of all data"
            if query.regularised
            else "regularise_on= was not given to ask: leave it out of tell, or ask again with it"
        )
    live, z, joining = _joined(query, targets)
    snapshot = [p.detach().clone() for p in params]
    try:
        # The graph's own targets: the oracle may have worked on its copy in place.
        anchor = z.detach()[: query.targets.shape[0]]
        answer = replace(checked(point, anchor), index=query.index)
        counter = CountedValue(answer)
        method.rule.check(answer)
        live.z = None  # the inner loop consumes the graph
        objective, proposal, result = _minimised(
            live.frozen, z, counter.attached(answer), targets, method, rule_state, inner_state
        )
    except BaseException:
        _assign(params, snapshot)
        raise
    if result.steps == 0:  # trials that were all refused leave rounding errors behind
        _assign(params, snapshot)
    query.live = None
    report = StepReport(
        oracle_calls=1,
        value_calls=counter.calls,
        inner_steps=result.steps,
        forward_calls=targets.passes * (query.forward_calls + joining + objective.forward_calls),
        backward_calls=targets.passes * objective.backward_calls,
        jvp_calls=targets.passes * objective.jvp_calls,
        step=query.step + 1,
        loss=float(answer.loss),
        gradient_norm=math.sqrt(float(answer.gradient_norm_squared)),
        eta=proposal.eta,
        surrogate_decrease=math.nan if result.decrease is None else result.decrease,
        stop_reason=result.reason,
        memory=proposal.memory,
        form=result.form,
    )
    return report, proposal.state, result.state


def _minimised(
    frozen: FrozenForward,
    z: Tensor,
    answer: TargetPoint,
    targets: Targets,
    method: Method,
    rule_state: State,
    inner_state: State,
) -> tuple[Objective, Proposal, InnerResult]:
    """Build the surrogate and decrease it; the parameters are left at the answer."""
    # a schedule or scheduler has brought η to nought, whatever lr=None stands for
    still = (1.0 if method.lr is None else method.lr) * method.decay == 0.0
    with torch.no_grad():
        proposal = (
            Proposal.nowhere(answer, rule_state)
            if still
            else method.rule.propose(answer, method.lr, method.decay, rule_state)
        )
        surrogate: Surrogate = proposal.surrogate
        if proposal.eta == 0.0:  # the minimiser is θ_t itself
            nothing = InnerResult(0, 0.0, "zero-step", inner_state)
            return Objective(frozen, list(targets.params), surrogate), proposal, nothing
        if targets.regularise_on is not None:
            if not isinstance(surrogate, Quadratic):
                raise MissingCapability(
                    "regularise_on= needs a quadratic surrogate; this rule's is "
                    f"{type(surrogate).__name__}. Use GradientStep, LineSearch or AdaGradNorm."
                )
            surrogate = surrogate.regularised_on(z.detach()[answer.targets.shape[0] :])
    penalty = method.weight_decay * proposal.losses_summed
    objective = Objective(frozen, list(targets.params), surrogate, penalty, z)
    with torch.no_grad():  # evaluations switch it on for themselves
        forward = targets.forward if targets.regularise_on is None else None
        if isinstance(forward, linear.Linear) and linear.supports(
            method.inner, surrogate, forward, targets.params
        ):
            result = linear.minimise(method.inner, objective, forward, inner_state)
        else:
            result = method.inner.minimise(objective, inner_state)
    measured = result.decrease is None or math.isfinite(result.decrease)
    if not (measured and all_finite(*targets.params)):
        raise Diverged(
            f"{type(method.inner).__name__} left the finite numbers after {result.steps} inner steps; the "
            f"parameters were put back. {_remedy(method.inner)}"
        )
    return objective, proposal, result


def _remedy(failed: Inner) -> str:
    """What to try where this solver has diverged: not the same again."""
    finds_its_own = isinstance(failed, Armijo | LBFGS | GaussNewton | Exact)
    lower = "lr" if finds_its_own else "its step size (or lr)"
    others = [s.__name__ for s in (Armijo, LBFGS) if not isinstance(failed, s)]
    return f"Lower {lower}, or use {' or '.join(others)}."


def _joined(query: Query, targets: Targets) -> tuple[Live, Tensor, int]:
    """The query's graph, and the forwards it took to make it again.

    Within a step the live one serves. In `tell` the forward is evaluated anew, in whatever process:
    a closure may mean something else by then, and it is the one the inner loop will call.
    """
    versions = [p._version for p in targets.params]
    live: Live | None = query.live
    if (
        live is not None
        and live.z is not None
        and live.frozen.forward is targets
        and live.versions == versions
    ):
        return live, live.z, 0
    with torch.enable_grad():
        if live is None:
            live = Live(FrozenForward(targets, [str(p.device) for p in targets.params]), None, [])
            z = live.frozen.rejoin(query.rng, query.buffers)
            calls = 2 if query.buffers else 1
        else:
            live.z = None  # its memory first
            z = live.frozen.retake(targets)
            calls = 1
    now = z.detach()[: targets.batch]
    tolerance = 10 * torch.finfo(now.dtype).eps ** 0.5
    if now.shape != query.targets.shape or not torch.allclose(
        now, query.targets.to(now), rtol=tolerance, atol=tolerance
    ):
        raise BadForward(
            "the forward no longer gives the targets the oracle was asked about: the parameters, the "
            "batch or the model's mode changed between ask and tell. Load the parameters as they were "
            "at ask, and pass the same forward."
        )
    live.z, live.versions = z, versions
    query.live = live
    return live, z, calls


@torch.no_grad()
def _assign(params: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for p, value in zip(params, values, strict=True):
        p.copy_(value)


def _checked_index(index: Tensor | None, z: Tensor) -> Tensor | None:
    if index is None:
        return None
    index = torch.as_tensor(index, device=z.device)
    if index.is_floating_point() or index.dtype == torch.bool or index.shape != z.shape[:1]:
        raise BadArgument(
            f"index= must be one whole number per example, shape ({z.shape[0]},): the data rows of this "
            f"batch; got {index.dtype} of shape {tuple(index.shape)}"
        )
    if (index < 0).any():
        raise BadArgument(f"index= has a negative row, {int(index.min())}; rows count from 0")
    return index.long()
