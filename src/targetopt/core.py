"""The algorithm, once: ask for targets, build the surrogate from the answer, minimise it.

``ask`` evaluates the forward and says what the oracle must be asked; ``tell`` takes the answer and
does the rest. Everything a step changes (parameters, buffers, generators, states) changes completely
or not at all: a `Journal` knows the way back until the step is adopted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.ranks import agreed
from targetopt.distributed.world import local, present
from targetopt.inner import InnerResult, Objective
from targetopt.inner.economy import UNKNOWN_PRICE, timed
from targetopt.inner.space import Space
from targetopt.oracle import CountedValue, checked
from targetopt.oracle.answer import checked_scales
from targetopt.rules import Proposal
from targetopt.step.determinism import FrozenForward
from targetopt.step.journal import Journal, at_once
from targetopt.step.method import Method
from targetopt.step.progress import Progress
from targetopt.step.question import Live, checked_index, joined
from targetopt.step.targets import Targets
from targetopt.surrogate import Surrogate
from targetopt.types import (
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


def ask(
    targets: Targets,
    method: Method,
    progress: Progress,
    journal: Journal,
    *,
    oracle: object = None,
    index: Tensor | None = None,
    scales: Any = None,
    check_purity: bool = False,
) -> Query:
    """Evaluate the forward; the query carries the targets and the live graph.

    Whatever can be refused is refused here, before the oracle is asked (and paid): what the oracle
    says of itself included, if it is known already.
    """
    if not method.still:
        method.rule.check(oracle, method.lr, answered=False)
    if not progress.inner_state:
        method.inner.check(targets.params)
    frozen = FrozenForward(targets, [str(p.device) for p in targets.params], journal)
    begin = time.perf_counter()
    with torch.enable_grad():
        z = frozen.first()
    seconds = time.perf_counter() - begin
    if check_purity:
        frozen.check_pure(z.detach())
    question = z.detach()[: targets.batch].clone()
    if not all_finite(question):
        raise BadForward(
            "forward() returned targets that are not finite: the model has diverged, or its input "
            "has nan or inf. Nothing was asked of the oracle."
        )
    if targets.regularise_on is not None and not (method.rule.uniform or method.rule.everywhere):
        raise MissingCapability(
            f"regularise_on= needs a rule whose metric is one number; that of {type(method.rule).__name__} varies "
            "by example. Use GradientStep, LineSearch or AdaGradNorm."
        )
    index, scales = checked_index(index, question), checked_scales(scales, question)
    if scales is not None:
        _check_scaled(targets, method)
    method.rule.check_targets(question, index, progress.rule_state)
    method.rule.check_everything(question, targets.everything_of(z), index, progress.rule_state)
    versions = [local(p)._version for p in targets.params]
    return Query(
        targets=question,
        step=progress.steps,
        index=index,
        scales=scales,
        rng=frozen.rng,
        buffers=frozen.buffers,
        forward_calls=1 + check_purity,
        regularised=targets.regularise_on is not None,
        live=Live(frozen, z, versions),
        seconds=seconds,
    )


def tell(
    query: Query,
    targets: Targets,
    point: object,
    method: Method,
    progress: Progress,
    journal: Journal,
    oracle_seconds: float | None = None,
) -> tuple[StepReport, Progress]:
    """Finish the step: check the answer, propose, minimise. Returns the report and what to adopt.

    The parameters are then where the step ends, and all else that the step changes is in the new
    `Progress`. After an error the journal puts everything back, and the query can be told again.
    ``oracle_seconds`` is how long the answer took, if it was waited for.
    """
    if oracle_seconds is not None:
        progress = replace(progress, costs=timed(progress.costs, oracle_seconds, query.seconds))
    if query.regularised != (targets.regularise_on is not None):
        raise BadArgument(
            "regularise_on= was given to ask: give it to tell too, the same forward of all data"
            if query.regularised
            else "regularise_on= was not given to ask: leave it out of tell, or ask again with it"
        )
    live, z, joining = joined(query, targets, journal)
    # The graph's own targets: the oracle may have worked on its copy in place.
    anchor = z.detach()[: query.targets.shape[0]]
    answer = replace(checked(point, anchor), index=query.index)
    if query.scales is not None:
        answer = replace(answer, scales=query.scales)
    journal.answers[:] = [answer] if journal.answers else []
    answer = agreed(answer)
    counter = CountedValue(answer)
    if not method.still:
        method.rule.check(answer, method.lr)
    live.z = None  # the inner loop consumes the graph
    here: tuple[Tensor, ...] = ()
    if method.rule.looks_back:
        here = journal.parameters(targets.params)
    looking_back = bool(here and progress.accepted and not method.still)
    answer = replace(
        answer,
        penalty=_penalty(targets.params, method.weight_decay),
        everything=targets.everything_of(z),
        earlier=_earlier(live.frozen, targets, progress.accepted, journal)
        if looking_back
        else None,
    )
    solved = _solved(live.frozen, z, counter.attached(answer), targets, method, progress, journal)
    proposal, result = solved.proposal, solved.result
    query.live = None
    report = StepReport(
        oracle_calls=1,
        value_calls=counter.calls,
        inner_steps=solved.steps,
        forward_calls=targets.passes
        * (query.forward_calls + joining + looking_back + solved.forward_calls),
        backward_calls=targets.passes * solved.backward_calls,
        jvp_calls=targets.passes * solved.jvp_calls,
        interactions=answer.interactions,
        step=query.step + 1,
        loss=math.nan if answer.losses is None else float(answer.loss),
        gradient_norm=math.sqrt(answer.gradient_norm_squared),
        eta=proposal.eta,
        surrogate_decrease=math.nan if result.decrease is None else result.decrease,
        stop_reason=result.reason,
        memory=proposal.memory,
        form=result.form,
        ratio=proposal.ratio,
        accepted=not proposal.returned,
        steps_at=result.steps_at,
        solves=solved.solves,
        measures={**proposal.measures, **_spread(answer.scales, proposal.eta)},
    )
    return report, replace(
        progress,
        steps=progress.steps + 1,
        totals=progress.totals + report,
        rule_state=proposal.state,
        inner_state=result.state,
        accepted=progress.accepted if proposal.returned else here,
    )


def _check_scaled(targets: Targets, method: Method) -> None:
    """Refuse steps by rows, before the oracle is asked, where there can be only one."""
    if targets.regularise_on is not None:
        raise MissingCapability(
            "scales= gives each row of the batch a step of its own, and regularise_on= has one for all data. Leave one "
            "of them out."
        )
    method.rule.check_rows()


def _spread(scales: Tensor | None, eta: float) -> dict[str, float]:
    """The smallest and the largest step of all rows, if they have steps of their own."""
    if scales is None:
        return {}
    world = present()
    least, most = -world.largest(float(-scales.min())), world.largest(float(scales.max()))
    return {"least_eta": eta * least, "most_eta": eta * most}


@torch.no_grad()
def _earlier(
    frozen: FrozenForward, targets: Targets, before: Sequence[Tensor], journal: Journal
) -> Tensor:
    """The targets that this question's rows had at other parameters, by one forward.

    The parameters lend their names to other memory meanwhile: nothing is written to their own, so that
    the graph of the question stays valid.
    """
    if Space(targets.params).sharded:  # FSDP2's graph has copies of its own
        own = [local(p.detach()).clone() for p in targets.params]
        put_at(targets.params, before)
        z = frozen()[: targets.batch].clone()
        put_at(targets.params, own)
        return z
    own = [p.data for p in targets.params]
    back = [partial(setattr, p, "data", d) for p, d in zip(targets.params, own, strict=True)]
    journal.remember(lambda: back)
    at_once(partial(setattr, p, "data", b) for p, b in zip(targets.params, before, strict=True))
    try:
        return frozen()[: targets.batch].clone()
    finally:
        at_once(back)


@torch.no_grad()
def put_at(params: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give the parameters these values."""
    for p, value in zip(params, values, strict=True):
        local(p).copy_(value)


def _penalty(params: Sequence[Tensor], weight_decay: float) -> float:
    """½λ‖θ‖², which belongs to the objective beside the oracle's loss."""
    if not weight_decay:
        return 0.0
    space = Space(params)
    with torch.no_grad():
        return 0.5 * weight_decay * space.dot(space.parts, space.parts)


@dataclass
class _Solved:
    """What came out of all inner solves of a step, and what they have cost together."""

    proposal: Proposal
    result: InnerResult
    solves: int = 0
    steps: int = 0
    forward_calls: int = 0
    backward_calls: int = 0
    jvp_calls: int = 0

    def add(self, objective: Objective, proposal: Proposal, result: InnerResult) -> None:
        self.proposal, self.result = proposal, result
        self.solves += 1
        self.steps += result.steps
        self.forward_calls += objective.forward_calls
        self.backward_calls += objective.backward_calls
        self.jvp_calls += objective.jvp_calls


def _solved(
    frozen: FrozenForward,
    z: Tensor,
    answer: TargetPoint,
    targets: Targets,
    method: Method,
    progress: Progress,
    journal: Journal,
) -> _Solved:
    """Propose and minimise, again and again if the rule looks at what comes out and asks for another η."""

    def back() -> None:
        if solved.proposal.returned:
            put_at(targets.params, progress.accepted)
        else:
            journal.put_parameters_back()

    with torch.no_grad():
        proposal = (
            Proposal.nowhere(answer, progress.rule_state)
            if method.still
            else method.rule.propose(answer, method.lr, method.decay, progress.rule_state)
        )
    nothing = InnerResult(0, 0.0, "zero-step", progress.inner_state)
    solved = _Solved(proposal, nothing)
    begin: Tensor | None = z
    while proposal.eta != 0.0:
        solved.add(*_minimised(frozen, begin, answer, proposal, targets, method, progress))
        if not proposal.provisional:
            break
        with torch.no_grad():
            landed = frozen()[: targets.batch]
            solved.forward_calls += 1
            proposal, again = method.rule.reconsider(answer, proposal, landed, solved.solves)
        solved.proposal = proposal
        if not again:
            break
        back()
        begin = None  # the first solve has consumed the graph
        if proposal.eta == 0.0:
            solved.result = replace(nothing, reason="refused")
    if solved.result.steps == 0:
        back()  # trials that were all refused leave rounding errors behind
    return solved


def _minimised(
    frozen: FrozenForward,
    z: Tensor | None,
    answer: TargetPoint,
    proposal: Proposal,
    targets: Targets,
    method: Method,
    progress: Progress,
) -> tuple[Objective, Proposal, InnerResult]:
    """Decrease the surrogate; the parameters are left at the answer. ``z`` has the targets' graph, if there is one."""
    inner_state = progress.inner_state
    with torch.no_grad():
        surrogate: Surrogate = proposal.surrogate
        if answer.everything is not None and not method.rule.everywhere:
            surrogate = surrogate.regularised_on(answer.everything)
    penalty = method.weight_decay * proposal.losses_summed
    if proposal.returned:
        put_at(targets.params, progress.accepted)
    first = targets.batch if answer.everything is not None and method.rule.everywhere else 0
    with torch.enable_grad():  # whatever the caller's mode: the first gradient goes through it
        begin = None if proposal.returned or z is None else z[first:] if first else z
    forward = (lambda: frozen()[first:]) if first else frozen
    price = present().largest(float(progress.costs.get("price", UNKNOWN_PRICE)))
    objective = Objective(forward, list(targets.params), surrogate, penalty, begin, price)
    with torch.no_grad():  # evaluations switch it on for themselves
        result = _solver(targets, method, surrogate)(objective, inner_state)
    measured = result.decrease is None or math.isfinite(result.decrease)
    finite = measured and all_finite(*map(local, targets.params))
    if not present().all(finite):
        raise Diverged(
            f"{type(method.inner).__name__} left the finite numbers after {result.steps} inner steps; the "
            f"parameters were put back. {method.inner.remedy}"
        )
    return objective, proposal, result


def _solver(
    targets: Targets, method: Method, surrogate: Surrogate
) -> Callable[[Objective, State], InnerResult]:
    """``inner.minimise``, unless the forward knows a way of its own to do the same (see `Linear`)."""
    everywhere = method.rule.everywhere and targets.regularise_on is not None
    forward: Forward | None = targets.regularise_on if everywhere else targets.forward
    stacked = targets.regularise_on is not None and not everywhere
    offer = None if stacked else getattr(forward, "solver_for", None)
    # such ways know the rows of this rank alone
    own = (
        None
        if offer is None or present().size > 1
        else offer(method.inner, surrogate, targets.params)
    )
    return method.inner.minimise if own is None else own
