"""The target-space rules that a specification can name, ``rule = "newton"``; plugins add their own."""

from typing import Annotated

from pydantic import AfterValidator

from targetopt import rules

RULES: dict[str, tuple[rules.Rule, str]] = {
    "gradient-step": (rules.GradientStep(), "SSO"),
    "line-search": (rules.LineSearch(), "SSO-SLS"),
    "adagrad": (rules.AdaGrad(), "SSO-AdaGrad"),
    "adagrad-norm": (rules.AdaGradNorm(), "SSO-AdaGradNorm"),
    "newton": (rules.Newton(), "SSO-Newton"),
    "ftrl": (rules.FTRL(), "SSO-FTRL"),
}
"""What ``rule`` can be, and what a method with it is called in legends."""


def register_rule(name: str, rule: rules.Rule, title: str | None = None) -> None:
    """Let specifications write ``rule = name`` in methods named ``sso``.

    Args:
        name: what is typed.
        rule: the rule itself; rules are pure, so one serves all runs.
        title: what legends call SSO with it; ``SSO-name`` if left out.

    Example:
        >>> import targetopt as to
        >>> from targetopt.bench.methods import Sso
        >>> register_rule("bold-newton", to.Newton(floor=0.001))
        >>> Sso(rule="bold-newton", m=10).label()
        'SSO-bold-newton m=10'
        >>> del RULES["bold-newton"]
    """
    if not isinstance(rule, rules.Rule):
        why = f"rule={rule!r} must be a targetopt.Rule that has been made"
        raise TypeError(f"{why}, like targetopt.Newton(), with its brackets.")
    taken, _ = RULES.setdefault(name, (rule, title or f"SSO-{name}"))
    if taken != rule:
        raise ValueError(f"a rule named {name!r} is registered already: choose another name")


def _known_rule(value: str) -> str:
    if value in RULES:
        return value
    *others, last = (repr(name) for name in RULES)
    raise ValueError(f"must be {', '.join(others)} or {last}")


RuleName = Annotated[str, AfterValidator(_known_rule)]
