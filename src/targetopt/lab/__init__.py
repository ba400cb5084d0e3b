"""Experiments: specify a grid, run it anywhere, resume it, report on it.

>>> from targetopt.lab import Experiment, expand
>>> experiment = Experiment(
...     problems=[{"name": "breast_cancer"}], methods=[{"name": "sso", "m": [1, 20]}], seeds=2
... )
>>> len(expand(experiment))
4
"""

from typing import TYPE_CHECKING

from targetopt.lazy import attach

if TYPE_CHECKING:  # what the table below offers, for type checkers
    from targetopt.lab.run.plan import Summary as Summary
    from targetopt.lab.run.runner import run as run
    from targetopt.lab.spec.config import RunConfig as RunConfig
    from targetopt.lab.spec.document import SpecError as SpecError
    from targetopt.lab.spec.experiment import Experiment as Experiment
    from targetopt.lab.spec.grid import expand as expand
    from targetopt.lab.spec.methods import METHODS as METHODS
    from targetopt.lab.spec.methods import MethodSpec as MethodSpec
    from targetopt.lab.spec.methods import register as register
    from targetopt.lab.spec.optimizers import register_optimizer as register_optimizer
    from targetopt.lab.store.directory import Run as Run
    from targetopt.lab.store.directory import Store as Store
    from targetopt.lab.store.directory import modelled_cost as modelled_cost
    from targetopt.lab.store.files import StoreError as StoreError

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "run.plan": ["Summary"],
        "run.runner": ["run"],
        "spec.config": ["RunConfig"],
        "spec.document": ["SpecError"],
        "spec.experiment": ["Experiment"],
        "spec.grid": ["expand"],
        "spec.methods": ["METHODS", "MethodSpec", "register"],
        "spec.optimizers": ["register_optimizer"],
        "store.directory": ["Run", "Store", "modelled_cost"],
        "store.files": ["StoreError"],
    },
)
