"""Decisions by exact solvers: the cheapest path, knapsack or tour for each row of costs.

Every solver minimises cᵀw over a fixed set of 0/1 decisions w and has one method, ``solve``: costs with one
instance a row in, decisions of the same shape out. Paths come from dynamic programming on the grid, tours from
that of Held and Karp, knapsacks from the integer programming solver HiGHS (through scipy) or, with few items, from
a list of all subsets. No commercial solver is needed.

References: Held, Karp, *A dynamic programming approach to sequencing problems*, 1962; Huangfu, Hall, *Parallelizing
the dual revised simplex method*, 2018 (HiGHS).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
import scipy.optimize as so
from numpy.typing import NDArray

from targetopt.types import BadArgument, TargetoptError, positive_int

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LISTED = 20
"""Knapsacks of so many items at most are solved by listing what fits, 8 to 20 times faster than by HiGHS."""


class Infeasible(TargetoptError, ValueError):
    """An instance has no feasible decision, or its solver gave up; the message says which and why."""


class Solver(Protocol):
    """A set of decisions; asked by every loss that is about them."""

    @property
    def size(self) -> int:
        """The length of a decision."""

    def solve(self, costs: Array) -> Array:
        """For each row of costs the cheapest decision, the same one every time it is asked."""


def checked_costs(costs: Array, size: int) -> Array:
    """Finite costs, one instance a row."""
    costs = np.asarray(costs, dtype=np.float64)
    if costs.ndim != 2 or costs.shape[1] != size:
        raise BadArgument(f"costs must have shape (n, {size}); got {costs.shape}")
    if not np.isfinite(costs).all():
        rows = np.flatnonzero(~np.isfinite(costs).all(axis=1)).tolist()
        raise BadArgument(f"costs must be finite; they are not in the rows {rows[:10]}")
    return costs


@dataclass(frozen=True)
class ShortestPath:
    """Paths on a grid of ``rows × columns`` crossings, from the north-west to the south-east corner.

    Arcs lead east and south, in PyEPO's order: for each row of crossings its arcs to the east, then those to
    the south. Costs may be negative: the grid has no circles.

    Example:
        >>> ShortestPath(2, 2).solve(np.array([[1.0, 5.0, 1.0, 1.0]]))  # east, south, south, east
        array([[1., 0., 1., 0.]])
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        positive_int("rows", self.rows)
        positive_int("columns", self.columns)
        if self.rows * self.columns < 2:
            raise BadArgument("a grid needs at least two crossings")

    @cached_property
    def arcs(self) -> list[tuple[int, int]]:
        """From which crossing to which; crossings are counted along the rows."""
        found = []
        for row in range(self.rows):
            first = row * self.columns
            found += [(first + k, first + k + 1) for k in range(self.columns - 1)]
            if row + 1 < self.rows:
                found += [(first + k, first + k + self.columns) for k in range(self.columns)]
        return found

    @property
    def size(self) -> int:
        return len(self.arcs)

    @cached_property
    def incidence(self) -> Array:
        """A of the linear programme min cᵀw, Aw = b, w ≥ 0: what leaves each crossing minus what comes in."""
        matrix = np.zeros((self.rows * self.columns, self.size))
        for k, (tail, head) in enumerate(self.arcs):
            matrix[tail, k], matrix[head, k] = 1.0, -1.0
        return matrix

    @cached_property
    def _into(self) -> list[list[int]]:
        into: list[list[int]] = [[] for _ in range(self.rows * self.columns)]
        for k, (_, head) in enumerate(self.arcs):
            into[head].append(k)
        return into

    def solve(self, costs: Array) -> Array:
        costs = checked_costs(costs, self.size)
        n, crossings = len(costs), self.rows * self.columns
        least = np.zeros((n, crossings))
        came_by = np.zeros((n, crossings), dtype=np.int64)
        tails = np.array([tail for tail, _ in self.arcs])
        for crossing in range(1, crossings):  # arcs lead from smaller to larger numbers
            choices = np.array(self._into[crossing])
            through = least[:, tails[choices]] + costs[:, choices]
            best = through.argmin(axis=1)
            least[:, crossing] = through[np.arange(n), best]
            came_by[:, crossing] = choices[best]
        decisions, at = np.zeros_like(costs), np.full(n, crossings - 1)
        for _ in range(self.rows + self.columns - 2):
            arc = came_by[np.arange(n), at]
            decisions[np.arange(n), arc] = 1.0
            at = tails[arc]
        return decisions


@dataclass(frozen=True)
class Knapsack:
    """Items that fit into all capacities; the cost of an item is minus its value.

    Args:
        weights: one row for each resource, one column for each item.
        capacity: of each resource.

    Example:
        >>> Knapsack(np.array([[2.0, 3.0, 4.0]]), np.array([5.0])).solve(
        ...     np.array([[-3.0, -4.0, -6.0]])
        ... )
        array([[1., 1., 0.]])
    """

    weights: Array
    capacity: Array

    def __post_init__(self) -> None:
        if self.weights.ndim != 2 or self.capacity.shape != self.weights.shape[:1]:
            raise BadArgument(
                "weights must have a row for each capacity; got shapes "
                f"{self.weights.shape} and {self.capacity.shape}"
            )

    @property
    def size(self) -> int:
        return int(self.weights.shape[1])

    @cached_property
    def _feasible(self) -> Array:
        """Every subset that fits, of few items."""
        subsets = (np.arange(1 << self.size)[:, None] >> np.arange(self.size)) & 1
        fits = (subsets @ self.weights.T <= self.capacity + 1e-9).all(axis=1)
        return subsets[fits].astype(np.float64)

    def solve(self, costs: Array) -> Array:
        costs = checked_costs(costs, self.size)
        if self.size > LISTED:
            return self.by_highs(costs)
        if not len(self._feasible):
            raise Infeasible("no subset of the items fits: instance 0 has no decision")
        return np.asarray(self._feasible[(costs @ self._feasible.T).argmin(axis=1)])

    def by_highs(self, costs: Array) -> Array:
        """The same by integer programming, one instance after the other."""
        fits = so.LinearConstraint(self.weights, ub=self.capacity)
        decisions = np.empty_like(costs)
        for row, cost in enumerate(costs):
            found = so.milp(
                cost,
                constraints=fits,
                integrality=np.ones(self.size, dtype=np.int64),
                bounds=so.Bounds(0, 1),
            )
            if found.x is None:
                raise Infeasible(
                    f"HiGHS found no decision for instance {row}: {found.message} Look at its "
                    "capacities and weights."
                )
            decisions[row] = np.round(found.x)
        return decisions


@dataclass(frozen=True)
class Salesman:
    """Round trips through ``nodes`` cities; costs are of the pairs (0,1), (0,2), …, (1,2), … .

    Example:
        >>> square = np.array([[1.0, 9.0, 1.0, 1.0, 9.0, 1.0]])  # 0-1, 0-2, 0-3, 1-2, 1-3, 2-3
        >>> Salesman(4).solve(square)
        array([[1., 0., 1., 1., 0., 1.]])
    """

    nodes: int

    def __post_init__(self) -> None:
        positive_int("nodes", self.nodes)
        if not 3 <= self.nodes <= 12:
            raise BadArgument(f"nodes={self.nodes!r} must lie between 3 and 12")

    @property
    def size(self) -> int:
        return self.nodes * (self.nodes - 1) // 2

    @cached_property
    def edges(self) -> Index:
        """The number of the edge between two cities."""
        table = np.zeros((self.nodes, self.nodes), dtype=np.int64)
        for k, (i, j) in enumerate(combinations(range(self.nodes), 2)):
            table[i, j] = table[j, i] = k
        return table

    def solve(self, costs: Array) -> Array:
        costs = checked_costs(costs, self.size)
        n, others = len(costs), self.nodes - 1
        length = costs[
            :, self.edges
        ]  # of each pair of cities; what stands on the diagonal is never used
        least = np.full((1 << others, n, others), np.inf)  # visited so far, instance, last city
        before = np.zeros((1 << others, n, others), dtype=np.int64)
        for city in range(others):
            least[1 << city, :, city] = length[:, 0, city + 1]
        between = length[:, 1:, 1:]
        for visited in range(1, 1 << others):
            if visited & (visited - 1) == 0:
                continue
            inside = [city for city in range(others) if visited >> city & 1]
            for city in inside:
                rest = [each for each in inside if each != city]
                through = least[visited ^ (1 << city)][:, rest] + between[:, rest, city]
                best = through.argmin(axis=1)
                least[visited, :, city] = through[np.arange(n), best]
                before[visited, :, city] = np.array(rest)[best]
        everywhere = (1 << others) - 1
        rows = np.arange(n)
        at = (least[everywhere] + length[:, 1:, 0]).argmin(axis=1)
        decisions = np.zeros_like(costs)
        decisions[rows, self.edges[0, at + 1]] += 1.0
        left = np.full(n, everywhere)
        for _ in range(others - 1):
            previous = before[left, rows, at]
            decisions[rows, self.edges[at + 1, previous + 1]] += 1.0
            left, at = left ^ (1 << at), previous
        decisions[rows, self.edges[at + 1, 0]] += 1.0
        return decisions
