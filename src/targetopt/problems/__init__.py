"""Problems by name: data + model + loss + metrics. See ``docs/problems.md``.

>>> from targetopt import problems
>>> problem = problems.get("breast_cancer")
>>> model = problem.model(seed=0)
>>> z = problem.forward(model, index=[0, 1, 2])()
>>> problem.oracle(index=[0, 1, 2]).query(z.detach()).losses.shape
torch.Size([3])
"""

from targetopt.problems import networks, quadratics, supervised, twins
from targetopt.problems.base import LinearData, Problem, Reference
from targetopt.problems.imitation import study
from targetopt.problems.linear import LinearProblem
from targetopt.problems.registry import Declaration, declaration, get, names, register, unregister

__all__ = [
    "Declaration",
    "LinearData",
    "LinearProblem",
    "Problem",
    "Reference",
    "declaration",
    "get",
    "names",
    "networks",
    "quadratics",
    "register",
    "study",
    "supervised",
    "twins",
    "unregister",
]
