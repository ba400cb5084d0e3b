"""The target step chosen by comparing what each step promised with what it brought."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Reconsidered, Rule
from targetopt.rules.parts.evidence import adapted, evidence, first_step, same_rows
from targetopt.rules.secant import LowRankQuadratic, Secant, inner
from targetopt.surrogate import Surrogate
from targetopt.types import BadArgument, State, TargetPoint, check_entries, is_positive, is_table

WORTHWHILE = 1.1
"""A first step that would be longer by less than this factor is not solved again."""

ROUNDING = 10.0
"""Units in the loss's last place by which decreases may be off before they decide anything."""


@dataclass(frozen=True)
class TrustRegion(Rule):
    """η_t from the ratio of actual to predicted decrease; a step that did not pay is taken back.

    The rule needs gradients only: no smoothness, no step size, no value calls. At z_t it minimises

        q_t(z) = ℓ(z_t) + ⟨g_t, z − z_t⟩ + (1/2η_t)‖z − z_t‖²_B,

    with B = I, or the `Secant` metric learned from past answers. The oracle's next answer tells how good
    that was: ρ = (ℓ(z_t) − ℓ(z_{t+1})) / (q_t(z_t) − q_t(z_{t+1})). Above ``good``, η grows by
    ``grow``; below ``accept`` the step is refused: the parameters go back to the last accepted point, η
    shrinks to fit the curvature that was met (by at most ``shrink``), and the same answer is used once
    more. A refused answer is not lost: it tells the metric about curvature. So the losses of accepted
    points never rise on a full batch. Decreases that are both within the loss's rounding say nothing: ρ is
    then 1, and η stays. ``report.ratio`` is ρ, ``report.accepted`` whether the point of this question was
    accepted; ``opt.rewind()`` goes back to the last accepted point at the end of a run.

    The first η is ``lr`` if it is given. Else it is |ℓ|/‖g‖², where the linear model of the loss reaches zero if the
    targets can go anywhere. Most models cannot move them so: where the first inner solve shows that the linear model
    falls by less, η becomes as many times longer as is missing (up to 1/``shrink`` times, which one refusal takes
    back), and the step is solved again. That costs inner steps in the first step, and no call of the oracle. If the
    second question is about other rows, η goes on from |ℓ|/‖g‖² all the same.

    Two answers can be compared if they are about the same rows: on a full batch always, on mini-batches when
    the same one comes twice in a row. One forward at the last point shows whether they are (with ``index=``
    their numbers do). On fresh rows that forward shows how the last step has moved them, and η follows their
    agreement with it: η ← η · exp(β cos), where cos = −⟨g, δ⟩/(‖g‖‖δ‖) is positive as long as rows
    that the step has not seen want to go on in the same direction. No step is taken back then.

    Args:
        metric: ``None``, or `Secant` for a metric from past answers (needs the same rows every time).
        accept: ρ below which a step is taken back.
        good: ρ above which η grows.
        shrink: the smallest factor on η after a refusal (the largest is ½).
        grow: the factor on η after a good step.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.ScalarOracle(lambda z: torch.cosh(3 * z - 3).sum(), autograd=True)
        >>> opt = to.SSO([w], rule=to.TrustRegion(), inner=to.LBFGS(max_steps=10))
        >>> reports = [opt.step(lambda: 1 * w, oracle) for _ in range(12)]
        >>> reports[-1].loss < 2.001, opt.totals.value_calls  # the minimum is 2
        (True, 0)

    References: Conn, Gould, Toint, *Trust-Region Methods*, 2000, ch. 6 and 17 (step control by ρ); Baydin et
    al., *Online learning rate adaptation with hypergradient descent*, ICLR 2018 (agreement of successive
    gradients; here in target space, on fresh rows).
    """

    metric: Secant | None = None
    accept: float = 0.1
    good: float = 0.75
    shrink: float = 0.1
    grow: float = 2.0

    needs: ClassVar[frozenset[str]] = frozenset({"losses"})
    monotone: ClassVar[bool] = True
    uniform: ClassVar[bool] = False
    searches: ClassVar[bool] = True
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 < self.accept < self.good < 1 and 0 < self.shrink <= 0.5 and self.grow > 1):
            raise BadArgument(
                "TrustRegion needs 0 < accept < good < 1, 0 < shrink ≤ ½ and grow > 1; got "
                f"accept={self.accept!r}, good={self.good!r}, shrink={self.shrink!r}, grow={self.grow!r}"
            )
        if self.metric is not None and not isinstance(self.metric, Secant):
            raise BadArgument(
                f"TrustRegion: metric={self.metric!r} must be None or to.Secant(pairs=40)"
            )

    def check_state(self, state: State) -> None:
        check_entries(
            "TrustRegion",
            state,
            eta=is_positive,
            first=is_positive,
            used=is_positive,
            ahead=lambda flag: flag is True,
            targets=is_table,
            gradients=is_table,
            steps=is_table,
            changes=is_table,
        )

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        if not same_rows(point, state.get("targets"), state.get("index")):
            return self._on_fresh_rows(point, lr, decay, state)
        earlier = TargetPoint(
            state["targets"],
            state["losses"],
            state["gradients"],
            index=point.index,
            penalty=float(state["penalty"]),
        )
        remembered = ("eta", "first", "steps", "changes")
        kept: State = {name: state[name] for name in remembered if name in state}
        step = point.targets - earlier.targets
        model = self._model(earlier, kept, float(state["decay"]))
        # q_t without its quadratic term, and what the step has really changed beyond that
        slope = float(inner(earlier.gradients, step))
        bend = -2.0 * (float(earlier.loss) - float(point.loss) + slope)
        expected = float(inner(model.curvature_product(point.targets, step), step))
        lighter = earlier.penalty - point.penalty  # weight decay counts in both
        noise = (
            ROUNDING * torch.finfo(step.dtype).eps * (abs(float(point.loss)) + abs(earlier.penalty))
        )
        predicted = -slope - 0.5 * expected + lighter
        actual = float(earlier.loss) - float(point.loss) + lighter
        told = max(abs(predicted), abs(actual)) > noise  # else both are rounding, and η stays
        predicted, actual = predicted + noise, actual + noise
        ratio = actual / predicted if predicted > 0 else math.copysign(math.inf, actual)
        ratio = ratio if told else 1.0
        fits = (
            expected / bend if bend > 0 else math.inf
        )  # the factor on η that would have been right along this step
        factor = 1.0
        if ratio < self.accept:
            factor = min(max(fits if bend > 0 else 0.5, self.shrink), 0.5)
        elif ratio > self.good and told:
            # a metric that has learned the curvature must not be outgrown: where it is right, fits is 1
            factor = self.grow if "steps" not in kept else min(max(fits, 1.0), self.grow)
        if self.metric is not None:
            before = "steps" in kept
            kept = self.metric.remember(kept, step, point.gradients - earlier.gradients)
            if (
                "steps" in kept and not before
            ):  # from here on the metric has the scale, and η is a factor on it
                kept["eta"], factor = 1.0, 1.0
        kept["eta"] *= factor
        if ratio < self.accept:
            return self._proposed(earlier, decay, kept, ratio, returned=True)
        return self._proposed(point, decay, kept, ratio)

    def _on_fresh_rows(
        self, point: TargetPoint, lr: float | None, decay: float, state: State
    ) -> Proposal:
        """Two losses of different rows say nothing of a step; whether the new rows agree with it does."""
        if "eta" not in state:
            first = lr or first_step(point)
            proposal = self._proposed(point, decay, {"eta": first, "first": first})
            return proposal._replace(provisional=lr is None)
        agrees = evidence(point, float(state["penalty"])).agreement
        first = float(state["first"])
        used = first if "ahead" in state else float(state["used"])
        return self._proposed(point, decay, {"eta": adapted(used, agrees, first), "first": first})

    def reconsider(
        self, point: TargetPoint, proposal: Proposal, landed: Tensor, tries: int
    ) -> Reconsidered:
        """Take a longer first step if the model has moved its targets by less than the linear model was made for."""
        promised = -float(inner(point.gradients, landed - point.targets))
        missing = abs(float(point.loss)) / promised if promised > 0 else 1.0
        if missing < WORTHWHILE:
            return Reconsidered(proposal, again=False)
        eta = float(proposal.state["eta"]) * min(missing, 1.0 / self.shrink)
        longer = {**proposal.state, "eta": eta, "ahead": True}
        return Reconsidered(self._proposed(point, longer["decay"], longer), again=True)

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the first answer gives the first η

    def _model(self, point: TargetPoint, state: State, decay: float) -> Surrogate:
        eta = float(state["eta"]) * decay
        if self.metric is None or "steps" not in state:
            return SquaredEuclidean().surrogate(point, self.representable(eta, point))
        metric = self.metric.metric(state, point.targets).divided(eta)
        return LowRankQuadratic(point.targets, point.gradients, metric, point.loss)

    def _proposed(
        self,
        point: TargetPoint,
        decay: float,
        kept: State,
        ratio: float = math.nan,
        *,
        returned: bool = False,
    ) -> Proposal:
        surrogate = self._model(point, kept, decay)
        about = {
            "targets": point.targets,
            "gradients": point.gradients,
            "losses": point.losses,
            "penalty": point.penalty,
            "decay": decay,
        }
        if point.index is not None:
            about["index"] = point.index
        one = surrogate.curvature_product(point.targets, point.gradients)
        squared = float(inner(one, point.gradients))  # the mean curvature along the gradient is 1/η
        eta = point.gradient_norm_squared / squared if squared > 0 else float(kept["eta"]) * decay
        kept = {
            **kept,
            "used": eta / decay,
        }  # where a metric has the scale, "eta" is a factor on it
        return Proposal(surrogate, {**kept, **about}, eta, ratio=ratio, returned=returned)
