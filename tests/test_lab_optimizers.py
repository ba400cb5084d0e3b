"""Any torch optimiser in specifications: by its name, in worker processes, with the problem's own penalty."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from targetopt.lab import METHODS, Experiment, Store, register_optimizer, run
from targetopt.lab.spec.grid import expand
from targetopt.types import BadArgument

PLUGIN = """
import torch
from targetopt.lab import register_optimizer

register_optimizer("plain", torch.optim.SGD, lr=0.1, title="Plain")
register_optimizer("nadam", torch.optim.NAdam, lr=0.01, title="NAdam", colour="oklch(0.5 0.12 200)")
"""
PROBLEM = {"name": "mlp-digits", "hidden": 4, "weight_decay": 0.1, "batch_size": 256, "epochs": 1}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


def test_it_runs_in_workers_and_is_torch_s_optimiser_on_the_same_objective(tmp_path: Path) -> None:
    """SGD under another name, with the penalty in the objective, is SGD with torch's weight decay."""
    (tmp_path / "plugin.py").write_text(PLUGIN)
    methods = [{"name": "plain"}, {"name": "sgd", "lr": 0.1}, {"name": "nadam", "lr": [0.01, 0.1]}]
    plugins = [str(tmp_path / "plugin.py")]
    experiment = Experiment(problems=[PROBLEM], methods=methods, plugins=plugins)
    assert len(expand(experiment)) == 4  # a list of learning rates is a sweep
    summary = run(experiment, tmp_path / "out", jobs=1)
    assert summary.statuses == {"done": 4}, summary.troubles
    losses = {
        r.manifest["method"]["label"]: r.columns["loss"] for r in Store(tmp_path / "out").load()
    }
    assert losses.keys() == {"Plain", "SGD lr=0.1", "NAdam", "NAdam lr=0.1"}
    np.testing.assert_allclose(losses["Plain"], losses["SGD lr=0.1"], rtol=1e-10)
    assert losses["NAdam"][-1] < losses["NAdam"][0]


def test_a_method_travels_by_its_name() -> None:
    register_optimizer("nadam", torch.optim.NAdam, lr=0.01)
    method = METHODS["nadam"](lr=0.5)
    again = pickle.loads(pickle.dumps(method))
    assert again == method
    assert again.model_fields_set == {"lr"}


def test_what_cannot_be_registered_is_refused() -> None:
    register_optimizer("nadam", torch.optim.NAdam)
    register_optimizer("nadam", torch.optim.NAdam)  # a plugin that is read twice
    with pytest.raises(BadArgument, match="name='nadam' is the name of another"):
        register_optimizer("nadam", torch.optim.RAdam)
    with pytest.raises(BadArgument, match="name='adam' is the name of another"):
        register_optimizer("adam", torch.optim.Adam)
    with pytest.raises(BadArgument, match="without parentheses"):
        register_optimizer("mine", torch.optim.SGD([torch.zeros(1)], lr=1.0))  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="needs a closure"):
        register_optimizer("mine", torch.optim.LBFGS)
    with pytest.raises(BadArgument, match="lr=0"):
        register_optimizer("mine", torch.optim.RAdam, lr=0)
