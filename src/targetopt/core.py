"""The algorithm, once: ask for targets, build the surrogate from the answer, minimise it.

``ask`` evaluates the forward and says what the oracle must be asked; ``tell`` takes the answer and
does the rest. Everything a step changes (parameters, buffers, generators, states) changes completely
or not at all: a `Journal` knows the way back until the step is adopted.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from targetopt.calls import found_from
from targetopt.determinism import FrozenForward
from targetopt.distributed import agreed
from targetopt.inner import Inner, InnerResult, Objective
from targetopt.inner.economy import UNKNOWN_PRICE, timed
from targetopt.inner.space import Space
from targetopt.journal import Journal, at_once
from targetopt.oracle import CountedValue, checked
from targetopt.progress import Progress
from targetopt.rules import Proposal, Rule
from targetopt.surrogate import Surrogate
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
    differing_rows,
    shown,
)
from targetopt.world import local, present


@dataclass(frozen=True)
class Method:
    """What one step is made of: the rule, the inner solver, η = lr · decay and λ."""

    rule: Rule
    inner: Inner
    lr: float | None
    decay: float
    weight_decay: float

    @property
    def settings(self) -> str:
        """What all ranks must have alike, in words."""
        return (
            f"rule={type(self.rule).__name__}, inner={type(self.inner).__name__}, lr={self.lr!r}, schedule's factor "
            f"{self.decay!r}, weight_decay={self.weight_decay!r}"
        )

    @property
    def still(self) -> bool:
        """Whether a schedule or scheduler has brought η to nought, whatever lr=None stands for."""
        return (1.0 if self.lr is None else self.lr) * self.decay == 0.0


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
        self.computed_in: torch.dtype | None = None
        self._shards = _sharding_modules(forward, regularise_on, params)

    @property
    def passes(self) -> int:
        """Calls of the user's code (and backward passes through it) that one evaluation takes."""
        return 1 if self.regularise_on is None else 2

    def everything_of(self, z: Tensor) -> Tensor | None:
        """The targets of all data among the stacked ones, if there are any."""
        return None if self.regularise_on is None else z.detach()[self.batch :]

    def __call__(self) -> Tensor:
        raw = self.forward()
        for module in self._shards:
            module.reshard()
        z = self._usable(raw)
        self.batch, self.computed_in = z.shape[0], raw.dtype
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
        if z.layout is not torch.strided or z.is_nested:
            raise BadForward(
                f"forward() must return dense targets; got the layout {z.layout}. Return z.to_dense(), or for "
                "nested tensors torch.nested.to_padded_tensor(z, 0.0)."
            )
        if z.is_meta:
            raise BadForward(
                "forward() returned targets on the device 'meta', which hold no numbers. Build the model on a "
                "real device, or give it memory and weights: model.to_empty(device='cpu'), then load_state_dict."
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


def _sharding_modules(
    forward: Forward, regularise_on: Forward | None, params: Sequence[Tensor]
) -> list[Any]:
    """The modules of FSDP2 that a forward calls, if the parameters are sharded.

    They keep what they have put together until a backward comes. Inner solvers move the parameters without one
    (a refused trial), and the next forward would compute with the old values.
    """
    if not any(hasattr(p, "to_local") for p in params):
        return []
    held = [m for f in (forward, regularise_on) for m in found_from(f)[0]]
    found = {id(child): child for m in held for child in m.modules() if hasattr(child, "reshard")}
    if not found:
        raise BadForward(
            "the parameters are sharded (DTensor), and no module that fully_shard has prepared can be found from the "
            "forward. Let it name the model itself: lambda: model(x)."
        )
    return list(found.values())


@dataclass
class Live:
    """A query in the process that asked it: its graph serves the first inner gradient, once."""

    frozen: FrozenForward
    z: Tensor | None
    versions: list[int]


def ask(
    targets: Targets,
    method: Method,
    progress: Progress,
    journal: Journal,
    *,
    oracle: object = None,
    index: Tensor | None = None,
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
    if targets.regularise_on is not None and not method.rule.uniform:
        raise MissingCapability(
            f"regularise_on= needs a rule whose metric is one number; that of {type(method.rule).__name__} varies "
            "by example. Use GradientStep, LineSearch or AdaGradNorm."
        )
    index = _checked_index(index, question)
    method.rule.check_targets(question, index, progress.rule_state)
    method.rule.check_everything(question, targets.everything_of(z), index, progress.rule_state)
    versions = [local(p)._version for p in targets.params]
    return Query(
        targets=question,
        step=progress.steps,
        index=index,
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
    live, z, joining = _joined(query, targets, journal)
    # The graph's own targets: the oracle may have worked on its copy in place.
    anchor = z.detach()[: query.targets.shape[0]]
    answer = replace(checked(point, anchor), index=query.index)
    journal.answers[:] = [answer] if journal.answers else []
    answer = agreed(answer)
    counter = CountedValue(answer)
    if not method.still:
        method.rule.check(answer, method.lr)
    live.z = None  # the inner loop consumes the graph
    here: tuple[Tensor, ...] = ()
    if method.rule.looks_back:
        here = tuple(local(p.detach()).clone() for p in targets.params)
    looking_back = bool(here and progress.accepted and not method.still)
    answer = replace(
        answer,
        penalty=_penalty(targets.params, method.weight_decay),
        everything=targets.everything_of(z),
        earlier=_earlier(live.frozen, targets, progress.accepted, journal)
        if looking_back
        else None,
    )
    objective, proposal, result = _minimised(
        live.frozen, z, counter.attached(answer), targets, method, progress
    )
    if result.steps == 0:  # trials that were all refused leave rounding errors behind
        if proposal.returned:
            put_at(targets.params, progress.accepted)
        else:
            journal.put_parameters_back()
    query.live = None
    report = StepReport(
        oracle_calls=1,
        value_calls=counter.calls,
        inner_steps=result.steps,
        forward_calls=targets.passes
        * (query.forward_calls + joining + looking_back + objective.forward_calls),
        backward_calls=targets.passes * objective.backward_calls,
        jvp_calls=targets.passes * objective.jvp_calls,
        step=query.step + 1,
        loss=float(answer.loss),
        gradient_norm=math.sqrt(answer.gradient_norm_squared),
        eta=proposal.eta,
        surrogate_decrease=math.nan if result.decrease is None else result.decrease,
        stop_reason=result.reason,
        memory=proposal.memory,
        form=result.form,
        ratio=proposal.ratio,
        accepted=not proposal.returned,
        steps_at=result.steps_at,
    )
    return report, replace(
        progress,
        steps=progress.steps + 1,
        totals=progress.totals + report,
        rule_state=proposal.state,
        inner_state=result.state,
        accepted=progress.accepted if proposal.returned else here,
    )


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


def _minimised(
    frozen: FrozenForward,
    z: Tensor,
    answer: TargetPoint,
    targets: Targets,
    method: Method,
    progress: Progress,
) -> tuple[Objective, Proposal, InnerResult]:
    """Build the surrogate and decrease it; the parameters are left at the answer."""
    rule_state, inner_state = progress.rule_state, progress.inner_state
    with torch.no_grad():
        proposal = (
            Proposal.nowhere(answer, rule_state)
            if method.still
            else method.rule.propose(answer, method.lr, method.decay, rule_state)
        )
        surrogate: Surrogate = proposal.surrogate
        if proposal.eta == 0.0:  # the minimiser is θ_t itself
            nothing = InnerResult(0, 0.0, "zero-step", inner_state)
            return Objective(frozen, list(targets.params), surrogate), proposal, nothing
        if answer.everything is not None and not method.rule.everywhere:
            surrogate = surrogate.regularised_on(answer.everything)
    penalty = method.weight_decay * proposal.losses_summed
    if proposal.returned:
        put_at(targets.params, progress.accepted)
    first = targets.batch if answer.everything is not None and method.rule.everywhere else 0
    with torch.enable_grad():  # whatever the caller's mode: the first gradient goes through it
        begin = None if proposal.returned else z[first:] if first else z
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


def _joined(query: Query, targets: Targets, journal: Journal) -> tuple[Live, Tensor, int]:
    """The query's graph, and the forwards it took to make it again.

    Within a step the live one serves. In `tell` the forward is evaluated anew, in whatever process:
    a closure may mean something else by then, and it is the one the inner loop will call.
    """
    versions = [local(p)._version for p in targets.params]
    live: Live | None = query.live
    if (
        live is not None
        and live.z is not None
        and live.frozen.forward is targets
        and live.versions == versions
    ):
        return live, live.z, 0
    if query.digest and query.digest != digest(targets.params):
        raise BadForward(
            "the parameters are not those at which the oracle was asked: they changed between ask and tell (or "
            "others are trained now). Load the parameters as they were at ask, and pass the same forward."
        )
    with torch.enable_grad():
        if live is None:
            frozen = FrozenForward(targets, [str(p.device) for p in targets.params], journal)
            live = Live(frozen, None, [])
            z = frozen.rejoin(query.rng, query.buffers)
            calls = 2 if query.buffers else 1
        else:
            live.z = None  # its memory first
            live.frozen.continued(journal)
            z = live.frozen.retake(targets)
            calls = 1
    now = z.detach()[: targets.batch]
    same_shape = now.shape == query.targets.shape
    rows = differing_rows(now, query.targets, targets.computed_in) if same_shape else []
    if rows or not same_shape:
        what = (
            f"{len(rows)} of {now.shape[0]} rows differ: {shown(rows)}"
            if same_shape
            else f"their shape is {tuple(now.shape)} and was {tuple(query.targets.shape)}"
        )
        raise BadForward(
            f"the forward no longer gives the targets the oracle was asked about ({what}): the "
            "batch or the model's mode changed between ask and tell. Load the parameters as they were "
            "at ask, and pass the same forward."
        )
    live.z, live.versions = z, versions
    query.live = live
    return live, z, calls


def digest(params: Sequence[Tensor]) -> str:
    """A fingerprint of the parameters' values, the same in every process and on every device."""
    found = hashlib.blake2b(digest_size=16)
    for p in params:
        values = local(p.detach()).cpu().contiguous().reshape(-1)
        found.update(f"{p.dtype} {tuple(p.shape)} ".encode())
        found.update(values.view(torch.uint8).numpy().data)
    return found.hexdigest()


def checked_ids(ids: Sequence[Any] | None, rows: int) -> list[Any] | None:
    """The ids of a query's rows: one each, all different."""
    if ids is None:
        return None
    names = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    try:
        distinct = len(set(names))
    except TypeError:
        distinct = -1
    if len(names) != rows or distinct != rows:
        raise BadArgument(
            f"ids= must name each of the {rows} rows differently, by strings or whole numbers; got {len(names)}, "
            f"{'not all hashable' if distinct < 0 else f'{distinct} different ones'}"
        )
    return names


def _checked_index(index: Tensor | None, z: Tensor) -> Tensor | None:
    if index is None:
        return None
    try:
        index = torch.as_tensor(index, device=z.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadArgument(
            f"index= must be whole numbers, the data rows of this batch ({error}). Number the examples 0, 1, 2, … "
            "by their place in the data set."
        ) from error
    if index.is_floating_point() or index.dtype == torch.bool or index.shape != z.shape[:1]:
        raise BadArgument(
            f"index= must be one whole number per example, shape ({z.shape[0]},): the data rows of this "
            f"batch; got {index.dtype} of shape {tuple(index.shape)}"
        )
    if (index < 0).any():
        raise BadArgument(f"index= has a negative row, {int(index.min())}; rows count from 0")
    return index.to(torch.long, copy=True)
