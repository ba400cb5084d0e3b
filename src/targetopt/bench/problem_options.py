"""Problems as specifications name them: their options checked by type, the built ones kept."""

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from targetopt import problems
from targetopt.problems import Problem


def problem_options(name: str) -> type[BaseModel]:
    """A model of the options of the problem ``name``, from the signature that builds it.

    >>> problem_options("breast_cancer")(l2=0.5).model_dump()["l2"]
    0.5
    """
    fields: dict[str, Any] = {}
    for key, parameter in problems.declaration(name).options.items():
        annotation = parameter.annotation
        kind = Any if annotation is inspect.Parameter.empty else annotation
        fields[key] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def load_problem(options: Mapping[str, Any]) -> Problem:
    """The problem with these options (and its ``name``), from memory if it was made before."""
    return _load_problem(json.dumps(options, sort_keys=True))


@lru_cache(maxsize=8)
def _load_problem(options: str) -> Problem:
    return problems.get(**json.loads(options))
