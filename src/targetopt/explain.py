"""What an optimiser does and why, in words: the text of ``opt.explain()``."""

from __future__ import annotations

from targetopt.inner import Inner
from targetopt.inner.economy import MEASURED, MOST, UNKNOWN_PRICE
from targetopt.progress import Progress
from targetopt.rules import Rule


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
