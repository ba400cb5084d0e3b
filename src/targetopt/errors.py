"""Every error that this package raises on purpose. Nothing is imported here, so all may use it."""


class TargetoptError(Exception):
    """Base of every error this package raises on purpose."""


class BadArgument(TargetoptError, ValueError):
    """An argument has a value it cannot have."""


class BadAnswer(TargetoptError, ValueError):
    """The oracle answered with the wrong shape, type, or with values that are not finite."""


class BadForward(TargetoptError, RuntimeError):
    """The forward is not a function of the parameters alone, or gives unusable targets."""


class MissingCapability(TargetoptError, TypeError):
    """A method needs something its partner does not offer: "X needs Y. Z has none. Use W."."""


class Diverged(TargetoptError, ArithmeticError):
    """The inner solver left the finite numbers; the parameters were put back."""


class RankFailed(TargetoptError, RuntimeError):
    """Another rank could not do the step, so no rank did it; or the ranks do not agree."""
