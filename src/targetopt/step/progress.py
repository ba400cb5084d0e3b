"""How far a run has come: all that a step leaves behind beside the parameters, in one object.

It never changes. A step is adopted by putting a new one in the old one's place, which either happens or
does not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from targetopt.inner import Inner
from targetopt.inner.economy import MEASURED, MOST, UNKNOWN_PRICE
from targetopt.rules import Rule
from targetopt.types import BadArgument, Counts, State, check_entries, checked_whole, is_positive


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        steps: outer steps done.
        totals: what they cost.
        rule_state: what the rule remembers.
        inner_state: what the inner solver remembers, and
        trained: of which parameters, by their places in the group.
        watch: what `targetopt.step.watch` has seen of the run.
        accepted: the parameters at the last point that the rule accepted, for rules that may go back to
            it (`Rule.looks_back`); empty for others.
        costs: what an oracle call costs in inner steps, as far as it was measured (`targetopt.inner.economy`).
    """

    steps: int = 0
    totals: Counts = field(default_factory=Counts)
    rule_state: State = field(default_factory=dict)
    inner_state: State = field(default_factory=dict)
    trained: tuple[int, ...] = ()
    watch: State = field(default_factory=dict)
    accepted: tuple[Tensor, ...] = ()
    costs: State = field(default_factory=dict)

    def saved(self) -> dict[str, Any]:
        """Tensors, numbers and strings only, for a ``state_dict``."""
        return {
            "steps": self.steps,
            "totals": asdict(self.totals),
            "rule_state": self.rule_state,
            "inner_state": self.inner_state,
            "trained": list(self.trained),
            "watch": self.watch,
            "accepted": list(self.accepted),
            "costs": self.costs,
        }

    @classmethod
    def loaded(cls, saved: dict[str, Any], rule: Rule, inner: Inner) -> Progress:
        """The inverse of `saved`; every part that this rule or solver cannot have written is refused."""
        try:
            progress = cls(
                steps=checked_whole("SSO", "steps", saved["steps"], least=0),
                totals=_checked_counts(saved["totals"]),
                rule_state=saved["rule_state"],
                inner_state=saved["inner_state"],
                trained=tuple(checked_whole("SSO", "trained", i, 0) for i in saved["trained"]),
                watch=saved["watch"],
                accepted=tuple(saved["accepted"]),
                costs=saved["costs"],
            )
            rule.check_state(progress.rule_state)
            inner.check_state(progress.inner_state)
            check_entries("SSO", progress.watch)
            check_entries("SSO", progress.costs, price=is_positive)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadArgument(
                f"this state_dict's 'sso' entry is damaged or of another version: {error!r}. Use one that "
                "opt.state_dict() of this version made."
            ) from error
        return progress


def _checked_counts(saved: dict[str, Any]) -> Counts:
    names = {item.name for item in fields(Counts)}
    if set(saved) != names:
        raise BadArgument(f"totals has the entries {sorted(saved)}; it must have {sorted(names)}")
    return Counts(**{name: checked_whole("totals", name, saved[name], least=0) for name in names})


def explained(rule: Rule, inner: Inner, progress: Progress) -> str:
    """Three paragraphs: the rule, the inner steps, and what they have cost so far."""
    return "\n".join(
        [f"Rule: {rule.explain(progress.rule_state)}", _inner(inner, progress), _so_far(progress)]
    )


def _inner(inner: Inner, progress: Progress) -> str:
    name = type(inner).__name__
    steps = getattr(inner, "max_steps", None)
    if steps is None:
        return f"Inner solver: {name}, which minimises each surrogate exactly."
    if steps != "auto":
        return f"Inner solver: {name} with at most {steps} steps per oracle call, as given."
    given = getattr(inner.stopping, "price", None)  # type: ignore[attr-defined]
    if given is not None:
        price = f"an oracle call is taken to cost {given:g} inner steps, as given"
    elif "price" in progress.costs:
        settled = progress.costs["looks"] >= MEASURED
        price = (
            f"an oracle call is taken to cost {progress.costs['price']:g} inner steps, by the times of the first "
            f"{MEASURED} steps{'' if settled else ' (not all of them are done yet)'}, in powers of ten and at least 100"
        )
    else:
        price = (
            f"what an oracle call costs is not known, and {UNKNOWN_PRICE:g} inner steps are assumed"
        )
    return (
        f"Inner solver: {name}, which goes on while a further step lowers the surrogate by more than asking the oracle "
        f"again would, for its price, and for {MOST} steps at most; {price}. "
        "Stopping(price=) sets the price by hand, max_steps= a fixed number."
    )


def _so_far(progress: Progress) -> str:
    totals = progress.totals
    if not progress.steps:
        return "So far: no step has been taken; the first answer of the oracle decides."
    return (
        f"So far: {totals.oracle_calls} oracle calls, {totals.value_calls} calls for a loss alone, "
        f"{totals.inner_steps} inner steps ({totals.inner_steps / progress.steps:.1f} per oracle call)."
    )
