"""Problems by name: data + model + loss + metrics. See ``docs/problems.md``.

>>> from targetopt.lab import problems
>>> problem = problems.get("breast_cancer")
>>> model = problem.model(seed=0)
>>> z = problem.forward(model, index=[0, 1, 2])()
>>> problem.oracle(index=[0, 1, 2]).query(z.detach()).losses.shape
torch.Size([3])
"""

from targetopt.lab.problems import (
    circuit,
    imitation,
    inequalities,
    networks,
    probabilities,
    quadratics,
    supervised,
    twins,
)
from targetopt.lab.problems.base import LinearData, Problem
from targetopt.lab.problems.decisions import problem as decisions
from targetopt.lab.problems.digits import attacks, teachers
from targetopt.lab.problems.linear import LinearProblem
from targetopt.lab.problems.physics import beams, inversion
from targetopt.lab.problems.registry import (
    Declaration,
    declaration,
    get,
    names,
    register,
    unregister,
)
from targetopt.reference import Reference

__all__ = [
    "Declaration",
    "LinearData",
    "LinearProblem",
    "Problem",
    "Reference",
    "attacks",
    "beams",
    "circuit",
    "decisions",
    "declaration",
    "get",
    "imitation",
    "inequalities",
    "inversion",
    "names",
    "networks",
    "probabilities",
    "quadratics",
    "register",
    "supervised",
    "teachers",
    "twins",
    "unregister",
]
