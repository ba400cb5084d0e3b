"""Experiments: specify a grid, run it anywhere, resume it, report on it.

>>> from targetopt.bench import Experiment, expand
>>> experiment = Experiment(
...     problems=[{"name": "breast_cancer"}], methods=[{"name": "sso", "m": [1, 20]}], seeds=2
... )
>>> len(expand(experiment))
4
"""

from targetopt.bench.campaign import Summary
from targetopt.bench.config import RunConfig
from targetopt.bench.document import SpecError
from targetopt.bench.files import StoreError
from targetopt.bench.grid import expand
from targetopt.bench.methods import METHODS, Method, register
from targetopt.bench.named_rules import register_rule
from targetopt.bench.runner import run
from targetopt.bench.spec import Experiment
from targetopt.bench.store import Run, Store, modelled_cost

__all__ = [
    "METHODS",
    "Experiment",
    "Method",
    "Run",
    "RunConfig",
    "SpecError",
    "Store",
    "StoreError",
    "Summary",
    "expand",
    "modelled_cost",
    "register",
    "register_rule",
    "run",
]
