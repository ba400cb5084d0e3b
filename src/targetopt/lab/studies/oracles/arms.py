"""Who takes part: SSO as it comes, its rules and ablations, and rivals that are tuned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["default", "rule", "ablation", "rival", "trick"]
"""What an arm is in the comparison; a trick is what its field has, such as a pool of solutions."""


@dataclass(frozen=True)
class Tune:
    """An option and the values it is tried with first; the list grows until its best lies inside.

    Attributes:
        option: its name in specifications.
        values: in rising order, each a constant factor above the one before.
        least, most: it is not extended beyond these.
    """

    option: str
    values: tuple[float, ...]
    least: float = 0.0
    most: float = math.inf

    @property
    def factor(self) -> float:
        return self.values[1] / self.values[0]


def spaced(low: float, factor: float, count: int) -> tuple[float, ...]:
    """Values with a constant ratio, written with few digits.

    >>> spaced(0.001, 10**0.5, 4)
    (0.001, 0.00316, 0.01, 0.0316)
    """
    return tuple(short(low * factor**k) for k in range(count))


def short(value: float) -> float:
    """A value with three digits, so that lists that meet have the same values."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class Arm:
    """One method of the study.

    Attributes:
        label: what tables and legends call it.
        table: the method as a specification has it.
        role: what it is in the comparison.
        tune: what is tuned, if anything is.
        needs: what the problem must reveal; arms that need more than a problem has are left out there.
        slow: whether it is left out where the study has half an hour.
    """

    label: str
    table: Mapping[str, Any]
    role: Role
    tune: Tune | None = None
    needs: frozenset[str] = field(default_factory=frozenset)
    slow: bool = False

    def with_value(self, value: float) -> dict[str, Any]:
        """The table of a specification with a value of the tuned option."""
        assert self.tune is not None
        label = f"{self.label} {self.tune.option}={value:g}"
        return {**self.table, self.tune.option: value, "label": label}

    def plain(self, value: float | None) -> dict[str, Any]:
        """The table of a specification as it is shown, with what was chosen."""
        chosen = {} if self.tune is None else {self.tune.option: value}
        return {**self.table, **chosen, "label": self.label}


HALF_DECADE = 10**0.5
SSO = {"name": "sso", "inner": "lbfgs", "m": 30}
DECADES = Tune("lr", spaced(1e-3, 10.0, 7))

DEFAULT = Arm("SSO default", {"name": "sso-auto"}, "default")

RIVALS = (
    Arm("Adam", {"name": "adam"}, "rival", Tune("lr", spaced(1e-4, HALF_DECADE, 7))),
    Arm("SGD with momentum", {"name": "momentum"}, "rival", Tune("lr", spaced(1e-6, 10.0, 7))),
    Arm("L-BFGS", {"name": "lbfgs"}, "rival", Tune("lr", spaced(0.0316, HALF_DECADE, 7))),
    Arm("SLS", {"name": "sls-questions"}, "rival", Tune("lr", spaced(1e-4, 10.0, 7))),
    Arm("Muon", {"name": "muon"}, "rival", Tune("lr", spaced(1e-4, HALF_DECADE, 7))),
)

RULES = (
    Arm("SSO fixed η, tuned", {**SSO, "rule": "gradient-step"}, "rule", DECADES),
    Arm("SSO-AdaGradNorm, tuned", {**SSO, "rule": "adagrad-norm"}, "rule", DECADES),
)

LABELS = frozenset({"revealed"})
ABLATIONS = (
    Arm("gradients alone", {"name": "sso-auto", "rule": "secant"}, "ablation", needs=LABELS),
    Arm("gradients alone, no metric", {"name": "sso-auto", "rule": "trust-region"}, "ablation"),
    Arm("m = 5", {"name": "sso-auto", "m": 5}, "ablation"),
    Arm("m = 30", {"name": "sso-auto", "m": 30}, "ablation"),
    Arm("ten times the price", {"name": "sso-auto", "price": 1000.0}, "ablation", slow=True),
    Arm("Armijo inside", {"name": "sso-auto", "inner": "armijo"}, "ablation"),
)
"""The default with one part replaced; without the metric the labels are left out, too."""

TRICKS_FOR_LABELS = (
    Arm(
        "SSO-Proximal, tuned", {**SSO, "rule": "proximal"}, "rule",
        Tune("lr", spaced(1e-2, 10.0, 7)), LABELS,
    ),
    Arm(
        "30 Adam steps on each answer", {**SSO, "rule": "proximal", "inner": "adam", "lr": 1e12}, "trick",
        Tune("step_size", spaced(1e-4, HALF_DECADE, 7)), LABELS,
    ),
)  # fmt: skip


def suited(arms: Sequence[Arm], reveals: frozenset[str]) -> list[Arm]:
    """Those that the problem reveals enough for."""
    return [arm for arm in arms if arm.needs <= reveals]
