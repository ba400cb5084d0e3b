"""Recipes: which surrogate, divergence, step size and inner solver make a policy step, and the presets by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from targetopt.distributions import Family, KLProximity
from targetopt.divergence import Divergence, SquaredEuclidean
from targetopt.inner import LBFGS, Armijo, GaussNewton, Inner
from targetopt.rl.adam import full_adam, minibatch_adam
from targetopt.rl.decision_aware import DecisionAware
from targetopt.rl.rule import PolicyStep
from targetopt.rl.steps import ArmijoStep, ConstantStep, HeldKL, StepSize, TrustRatio
from targetopt.rl.surrogates import Clipped, Linear, LogRatio, Ratio, Term
from targetopt.types import BadArgument

SURROGATES: Mapping[str, Term] = {
    "linear": Linear(),
    "ratio": Ratio(),
    "log-ratio": LogRatio(),
    "clipped": Clipped(),
}
DIVERGENCES = ("none", "euclidean", "forward-kl", "reverse-kl")
STEPS: Mapping[str, StepSize] = {
    "constant": ConstantStep(),
    "held-kl": HeldKL(),
    "trust-ratio": TrustRatio(),
    "armijo": ArmijoStep(),
}
INNERS: Mapping[str, Inner] = {
    "minibatch-adam": minibatch_adam(),
    "adam": full_adam(),
    "lbfgs": LBFGS(max_steps=10),
    "armijo": Armijo(max_steps=20),
    "gauss-newton": GaussNewton(max_steps=1),
}
CRITICS: Mapping[str, Inner | DecisionAware] = {
    "squared": minibatch_adam(),
    "decision-aware": DecisionAware(),
}


@dataclass(frozen=True)
class Recipe:
    """All that a training run is made of, beside its environment, its length and its seed.

    Args:
        surrogate: what a step promises: a name (``"linear"``, ``"ratio"``, ``"log-ratio"``, ``"clipped"``) or a `Term`.
        divergence: what holds it: ``"none"``, ``"euclidean"`` (in logits, or in means and log σ), ``"forward-kl"``
            (KL(π_t ‖ π)), ``"reverse-kl"`` (KL(π ‖ π_t)), or a `Divergence` between targets.
        step: who chooses η: ``"constant"``, ``"held-kl"``, ``"trust-ratio"``, ``"armijo"``, or a `StepSize`.
        inner: who minimises: ``"minibatch-adam"``, ``"adam"``, ``"lbfgs"``, ``"armijo"``, ``"gauss-newton"``, or an
            inner solver of the core.
        entropy: β, what the policy's entropy is worth.
        critic: ``"squared"`` learns values in squared loss, and the policy step has advantages that are estimated with
            them; an inner solver says how they are learned. ``"decision-aware"``, or a `DecisionAware`, learns the
            advantages too, by what their errors cost the step; it belongs to ``surrogate="linear"`` or ``"log-ratio"``
            with ``divergence="forward-kl"``, and to one choice of several as the action.
        scale_advantages: ``"batch"`` brings advantages to mean 0 and deviation 1 once for the whole batch,
            ``"mini-batch"`` once more in every mini-batch of the inner solver, as Stable-Baselines3 does.
        copies: of the environment, stepped together.
        batch: steps of all copies together between two updates.
        discount: γ.
        trace: λ of generalised advantage estimation.
        normalise_observations: scale observations by their running mean and deviation.
        normalise_rewards: scale rewards by the running deviation of the discounted return.
        hidden: widths of the hidden layers of actor and critic.
        activation: ``"tanh"`` or ``"relu"``.
        std: first deviation of a Gaussian policy.
        dtype: ``"float32"`` or ``"float64"``, of the networks.
    """

    surrogate: str | Term = "clipped"
    divergence: str | Divergence | None = "none"
    step: str | StepSize = "constant"
    inner: str | Inner = "minibatch-adam"
    entropy: float = 0.0
    critic: str | Inner | DecisionAware = field(default_factory=minibatch_adam)
    scale_advantages: str = "batch"
    copies: int = 8
    batch: int = 2048
    discount: float = 0.99
    trace: float = 0.95
    normalise_observations: bool = True
    normalise_rewards: bool = True
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    std: float = 1.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, table, kind in (
            ("surrogate", SURROGATES, Term),
            ("step", STEPS, StepSize),
            ("inner", INNERS, Inner),
        ):
            value = getattr(self, name)
            if isinstance(value, str):
                if value not in table:
                    raise BadArgument(
                        f"{name}={value!r} must be one of {', '.join(map(repr, table))}, or an object of your own"
                    )
                object.__setattr__(self, name, table[value])
            elif not isinstance(value, kind):
                raise BadArgument(
                    f"{name}={value!r} must be one of {', '.join(map(repr, table))}, or a {kind.__name__}"
                )
        if isinstance(self.critic, str) and self.critic in CRITICS:
            object.__setattr__(self, "critic", CRITICS[self.critic])
        if not isinstance(self.critic, Inner | DecisionAware):
            raise BadArgument(
                f"critic={self.critic!r} must be one of {', '.join(map(repr, CRITICS))}, an inner solver such as "
                "to.rl.minibatch_adam(), or a to.rl.DecisionAware"
            )
        self._check_decision_aware()
        held = self.divergence
        if held is not None and not isinstance(held, Divergence) and held not in DIVERGENCES:
            raise BadArgument(
                f"divergence={held!r} must be one of {', '.join(map(repr, DIVERGENCES))}, or a Divergence"
            )
        if self.scale_advantages not in ("batch", "mini-batch"):
            raise BadArgument(
                f"scale_advantages={self.scale_advantages!r} must be 'batch' or 'mini-batch'"
            )
        if self.dtype not in ("float32", "float64"):
            raise BadArgument(f"dtype={self.dtype!r} must be 'float32' or 'float64'")
        if not all(isinstance(n, int) and n > 0 for n in (self.copies, self.batch)):
            raise BadArgument(
                f"copies={self.copies!r} and batch={self.batch!r} must be whole numbers ≥ 1"
            )
        if self.batch % self.copies:
            raise BadArgument(
                f"batch={self.batch} steps cannot be dealt out to copies={self.copies} evenly; choose a multiple"
            )
        object.__setattr__(self, "hidden", tuple(self.hidden))

    def _check_decision_aware(self) -> None:
        """Its bound is that of a step in logits that KL(π_t ‖ π) holds, and of no other."""
        held, term = self.divergence, self.surrogate
        forward = held == "forward-kl" or (isinstance(held, KLProximity) and not held.reverse)
        if self.advantage_critic is None or (forward and getattr(term, "in_logits", False)):
            return
        raise BadArgument(
            f"critic='decision-aware' belongs to surrogate='linear' or 'log-ratio' with divergence='forward-kl' (the "
            f"presets 'fma-pg' and 'spma'); got surrogate={term!r} with divergence={held!r}, whose steps another "
            "critic bounds. Use critic='squared'."
        )

    @property
    def advantage_critic(self) -> DecisionAware | None:
        """What learns advantages, if anything does."""
        return self.critic if isinstance(self.critic, DecisionAware) else None

    @property
    def value_solver(self) -> Inner:
        """How values are learned."""
        solver = self.critic.values if isinstance(self.critic, DecisionAware) else self.critic
        assert isinstance(solver, Inner)
        return solver

    def rule(self, family: Family) -> PolicyStep:
        """The rule of the core that this cell of the grid is, for policies of a family."""
        assert isinstance(self.surrogate, Term)
        assert isinstance(self.step, StepSize)
        return PolicyStep(
            family,
            self.surrogate,
            self._between(family),
            self.step,
            entropy=self.entropy,
            rescale=self.scale_advantages == "mini-batch",
        )

    def _between(self, family: Family) -> Divergence | None:
        if self.divergence in (None, "none"):
            return None
        if self.divergence == "euclidean":
            return SquaredEuclidean()
        if isinstance(self.divergence, Divergence):
            return self.divergence
        return KLProximity(family, reverse=self.divergence == "reverse-kl")

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32

    def described(self) -> dict[str, Any]:
        """Every setting in plain words and numbers, by which a checkpoint knows its run."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    def changed(self, changes: Mapping[str, Any]) -> Recipe:
        """The same recipe with some settings of one's own; None leaves a setting as it is."""
        known = {item.name for item in fields(self)}
        unknown = set(changes) - known
        if unknown:
            raise BadArgument(
                f"there is no setting {', '.join(sorted(unknown))}; a recipe has {', '.join(sorted(known))}"
            )
        return replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__  # a function's repr has its address
    if hasattr(value, "__dataclass_fields__"):
        parts = {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
        return {"kind": type(value).__name__, **parts}
    return type(value).__qualname__


PRESETS: Mapping[str, Recipe] = {
    "ppo": Recipe(scale_advantages="mini-batch"),
    "trpo": Recipe(
        surrogate="ratio",
        divergence="forward-kl",
        step=HeldKL(0.01, least=0.5),
        inner=GaussNewton(max_steps=1, cg_steps=10, initial_damping=1e-2),
    ),
    "mdpo": Recipe(
        surrogate="ratio", divergence="reverse-kl", step=ConstantStep(0.5), inner=minibatch_adam()
    ),
    "fma-pg": Recipe(
        surrogate="linear", divergence="forward-kl", step=ConstantStep(0.1), inner=full_adam()
    ),
    "spma": Recipe(
        surrogate="log-ratio", divergence="forward-kl", step=ArmijoStep(eta=1.0), inner=full_adam()
    ),
    "sso": Recipe(
        surrogate="linear", divergence="reverse-kl", step=HeldKL(0.01), inner=full_adam()
    ),
}
"""Known algorithms as cells of the grid surrogate × divergence × step size × inner solver."""


def preset(name: str | Recipe) -> Recipe:
    """A recipe by its name, or as it is.

    >>> preset("mdpo").divergence
    'reverse-kl'
    """
    if isinstance(name, Recipe):
        return name
    if name not in PRESETS:
        raise BadArgument(
            f"preset={name!r} must be one of {', '.join(map(repr, PRESETS))}, or a to.rl.Recipe"
        )
    return PRESETS[name]
