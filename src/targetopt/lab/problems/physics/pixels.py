"""Topology optimisation on the pixels themselves: the field's own methods, for reference values.

Both work on designs x in [0, 1], one number per square, whose physical densities are the filtered x̃ = Cx with
mean(x̃) = volume, start from a uniform design, and cost one solve for each iterate. The published values for
the half MBB beam that they are checked against are those of the 88-line code.

References: Bendsøe, Sigmund, *Topology Optimization*, 2004, §1.2; Svanberg, *The method of moving asymptotes*,
1987; Andreassen, Clausen, Schevenels, Lazarov, Sigmund, *Efficient topology optimization in MATLAB using 88
lines of code*, Structural and Multidisciplinary Optimization 43, 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from targetopt.lab.problems.physics.sparse import Array
from targetopt.lab.problems.physics.structures import Structure
from targetopt.types import BadArgument

MOVE = 0.2
"""No design variable changes by more than this in one iteration."""

Filter = Literal["density", "sensitivity"]


class Iterate(NamedTuple):
    """A design, its physical densities and their compliance."""

    design: Array
    densities: Array
    compliance: float


def _checked(volume: float) -> float:
    if not 0 < volume < 1:
        raise BadArgument(f"volume={volume!r} must lie between 0 and 1: it is the mean density")
    return volume


def _bisected(too_large: Callable[[float], bool], low: float, high: float) -> float:
    """Where a monotone condition, true at ``low`` and false at ``high``, changes; both are positive."""
    while high > low * (1.0 + 1e-12):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if too_large(middle) else (low, middle)
    return high


def optimality_criteria(
    structure: Structure, volume: float, kind: Filter = "density"
) -> Iterator[Iterate]:
    """The iterates of the optimality criteria method from a uniform design.

    x_e ← x_e √(−∂c/∂x_e / (μ ∂V/∂x_e)), kept within ±`MOVE` and [0, 1], with μ found by bisection so that the
    mean physical density is ``volume``.

    Args:
        structure: what is designed, with the radius of its filter.
        volume: the mean density.
        kind: ``"density"`` filters the design; ``"sensitivity"`` filters x·∂c/∂x instead, as the 99-line
            code does, which is no gradient of anything but reaches blacker designs.

    Example:
        >>> from itertools import islice
        >>> beam = Structure(30, 10)
        >>> values = [each.compliance for each in islice(optimality_criteria(beam, 0.5), 20)]
        >>> values[-1] < 0.4 * values[0]
        True
    """
    _checked(volume)
    if kind not in ("density", "sensitivity"):
        raise BadArgument(f"kind={kind!r} must be 'density' or 'sensitivity'")
    cone, filtered = structure.cone, kind == "density"
    x = np.full(structure.size, volume)
    weight = cone.T @ np.ones(structure.size) if filtered else np.ones(structure.size)
    goal = volume * structure.size
    while True:
        densities = cone @ x if filtered else x
        solution = structure.solve(densities)
        yield Iterate(x, densities, solution.compliance)
        slope = solution.gradient
        slope = cone.T @ slope if filtered else (cone @ (x * slope)) / np.maximum(1e-3, x)
        pull = np.sqrt(np.maximum(-slope / weight, 0.0))

        def moved(multiplier: float, x: Array = x, pull: Array = pull) -> Array:
            wanted = np.clip(x * pull / np.sqrt(multiplier), x - MOVE, x + MOVE)
            return np.asarray(np.clip(wanted, 0.0, 1.0))

        def too_much(multiplier: float, moved: Callable[[float], Array] = moved) -> bool:
            return bool(weight @ moved(multiplier) > goal)

        x = moved(_bisected(too_much, 1e-12, 1e12))


def moving_asymptotes(structure: Structure, volume: float) -> Iterator[Iterate]:
    """The iterates of the method of moving asymptotes (MMA) from a uniform design, with the density filter.

    In every iteration the compliance is replaced by the convex separable function
    Σ p_e/(U_e − x_e) + q_e/(x_e − L_e) with the same gradient, whose asymptotes L and U come nearer where a
    variable oscillates and move away where it does not. The volume is approximated in the same way, from
    above, so that it is met at the end. The dual problem has one variable, found by bisection.

    Example:
        >>> from itertools import islice
        >>> beam = Structure(30, 10)
        >>> values = [each.compliance for each in islice(moving_asymptotes(beam, 0.5), 20)]
        >>> values[-1] < 0.4 * values[0]
        True
    """
    _checked(volume)
    cone, n = structure.cone, structure.size
    x = np.full(n, volume)
    weight = cone.T @ np.ones(n)
    earlier: list[Array] = []
    low, high = x - 0.5, x + 0.5
    while True:
        solution = structure.solve(cone @ x)
        yield Iterate(x, cone @ x, solution.compliance)
        slope = cone.T @ solution.gradient
        if len(earlier) == 2:
            turn = (x - earlier[1]) * (earlier[1] - earlier[0])
            stretch = np.where(turn > 0, 1.2, np.where(turn < 0, 0.7, 1.0))
            low = x - np.clip(stretch * (earlier[1] - low), 0.01, 10.0)
            high = x + np.clip(stretch * (high - earlier[1]), 0.01, 10.0)
        else:
            low, high = x - 0.5, x + 0.5
        earlier = [*earlier[-1:], x]
        least = np.maximum.reduce([np.zeros(n), low + 0.1 * (x - low), x - MOVE])
        most = np.minimum.reduce([np.ones(n), high - 0.1 * (high - x), x + MOVE])
        up, down = np.maximum(slope, 0.0), np.maximum(-slope, 0.0)
        extra = 1e-5 * solution.compliance / n
        p = (high - x) ** 2 * (1.001 * up + 0.001 * down + extra)
        q = (x - low) ** 2 * (0.001 * up + 1.001 * down + extra)
        r = (high - x) ** 2 * weight  # the volume, approximated in the same way
        room = volume * n - weight @ x + (r / (high - x)).sum()

        def minimiser(
            multiplier: float,
            parts: tuple[Array, ...] = (p, q, r, low, high, least, most),
        ) -> Array:
            """argmin of the approximated compliance plus multiplier · volume, in closed form."""
            p, q, r, low, high, least, most = parts
            above, below = np.sqrt(p + multiplier * r), np.sqrt(q)
            wanted = (low * above + high * below) / (above + below)
            return np.asarray(np.clip(wanted, least, most))

        def too_much(
            multiplier: float,
            minimiser: Callable[[float], Array] = minimiser,
            r: Array = r,
            high: Array = high,
            room: float = room,
        ) -> bool:
            return bool((r / (high - minimiser(multiplier))).sum() > room)

        x = minimiser(_bisected(too_much, 1e-12, 1e12))


def converged(iterates: Iterator[Iterate], change: float = 0.01, most: int = 2000) -> list[Iterate]:
    """The iterates up to the first whose design differs from the one before by at most ``change``.

    This is the stopping rule of the 99- and the 88-line code.
    """
    found: list[Iterate] = []
    for each in iterates:
        found.append(each)
        settled = len(found) > 1 and np.abs(each.design - found[-2].design).max() <= change
        if settled or len(found) >= most:
            break
    return found
