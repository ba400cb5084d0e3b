"""Problems as specifications name them: their options checked by type, the built ones kept."""

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from targetopt.lab import problems
from targetopt.lab.problems import Problem


def problem_options(name: str) -> type[BaseModel]:
    """A model of the options of the problem ``name``, from the signature that builds it.

    >>> problem_options("breast_cancer")(weight_decay=0.5).model_dump()["weight_decay"]
    0.5
    """
    fields: dict[str, Any] = {}
    for key, parameter in problems.declaration(name).options.items():
        annotation = parameter.annotation
        kind = Any if annotation is inspect.Parameter.empty else annotation
        fields[key] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


EARLIER_NAMES = {"l2": "weight_decay"}
"""Options of problems as they were called in specifications published before, and as they are called."""


def present_names(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A problem's table with every option under its present name.

    >>> present_names("breast_cancer", {"name": "breast_cancer", "l2": 0.5})
    {'name': 'breast_cancer', 'weight_decay': 0.5}
    """
    options = problems.declaration(name).options
    renamed = {}
    for key, value in table.items():
        present = EARLIER_NAMES.get(key, key)
        # a problem of a plugin may have an option of the earlier name; a table that has both is wrong
        taken = key in options or present not in options or present in table
        renamed[key if taken else present] = value
    return renamed


def load_problem(options: Mapping[str, Any]) -> Problem:
    """The problem with these options (and its ``name``), from memory if it was made before."""
    return _load_problem(json.dumps(present_names(options["name"], options), sort_keys=True))


@lru_cache(maxsize=8)
def _load_problem(options: str) -> Problem:
    return problems.get(**json.loads(options))
