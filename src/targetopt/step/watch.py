"""Looks on while a run goes: warns, once each, when it goes wrong in a way that no single step shows.

Losses that grow for many steps, and searches whose η has come to its limits, are no errors: every step
was done as it was asked for. But whoever pays for oracle calls wants to know early.
"""

from __future__ import annotations

import math
import warnings

from targetopt.types import State, StepReport

GROWTHS = 10
"""So many losses in a row, each larger than the last: by chance less than once in three million times."""

SMOOTH_GROWTHS = 30
"""The same for losses averaged over some ten steps, so that the noise of mini-batches does not hide it."""

FORGET = 0.9
LIMITED = 5
"""So many steps in a row for which a search found no η, or one beyond all bounds."""

LARGEST = 1e30


class RunWarning(UserWarning):
    """The run goes on, but hardly where it was meant to go. `SSO(..., warn=False)` turns it off."""


def looked(seen: State, report: StepReport, searches: bool) -> State:
    """What to remember after this step.

    Args:
        seen: what was remembered before it, ``{}`` at first.
        report: of the step.
        searches: whether the rule searches for its η.
    """
    last, smooth = seen.get("last", math.inf), seen.get("smooth", report.loss)
    # an infinite η is no search's: the surrogate has no proximal term then
    at_limit = report.eta == 0.0 or LARGEST <= report.eta < math.inf or math.isnan(report.eta)
    smoothed = FORGET * smooth + (1.0 - FORGET) * report.loss
    return {
        "last": report.loss,
        "smooth": smoothed,
        "growths": seen.get("growths", 0) + 1 if report.loss > last else 0,
        "smooth_growths": seen.get("smooth_growths", 0) + 1 if smoothed > smooth else 0,
        "limited": seen.get("limited", 0) + 1 if searches and at_limit else 0,
        "warned_growth": seen.get("warned_growth", False) or _grows(seen),
        "warned_limit": seen.get("warned_limit", False) or _limited(seen),
    }


def _grows(seen: State) -> bool:
    return bool(
        seen.get("growths", 0) >= GROWTHS or seen.get("smooth_growths", 0) >= SMOOTH_GROWTHS
    )


def _limited(seen: State) -> bool:
    return bool(seen.get("limited", 0) >= LIMITED)


def warn(seen: State, eta: float) -> None:
    """Warn if this is the step after which there is something to warn of."""
    if _grows(seen) and not seen["warned_growth"]:
        warnings.warn(
            f"the loss has grown for many steps and is now {seen['last']:.4g}, at η = {eta:.3g}. Lower lr, take "
            "lr=None if the oracle knows its smoothness, or use rule=to.LineSearch(). If it grows by nature (data "
            "that become harder), SSO(..., warn=False) silences this.",
            RunWarning,
            stacklevel=4,
        )
    if _limited(seen) and not seen["warned_limit"]:
        what = (
            "has found no step, and the model stands still: along the gradients that the oracle gives, its own "
            "value() does not decrease. Check that gradients and values belong to the same loss (sign, scale, noise)"
            if eta == 0.0
            else f"accepts steps of η = {eta:.3g}: the loss seems to be flat or to fall without end. Give lr= as a "
            "bound, and check the loss"
        )
        warnings.warn(
            f"for {LIMITED} steps in a row the search {what}. SSO(..., warn=False) silences this.",
            RunWarning,
            stacklevel=4,
        )
