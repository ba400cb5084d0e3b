"""Rules and methods from plugins, compared in specifications like those of the package."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import targetopt as to
from targetopt import registry
from targetopt.lab import Experiment, RunConfig, SpecError, Store, expand, run
from targetopt.lab.run.job import Job, perform
from targetopt.registry import register_rule

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))
EXAMPLE = Path(__file__).parents[1] / "examples" / "own_rule.toml"


@dataclass(frozen=True)
class Half(to.GradientStep):
    """A gradient step with half of η: a subclass, which the kernel of its parent would get wrong."""

    def propose(self, point, lr, decay, state):
        return super().propose(point, lr, decay / 2, state)


@dataclass(frozen=True)
class Natural(to.GradientStep):
    """A rule whose step does not come from L."""

    natural_lr = 1.0


@dataclass(frozen=True)
class OwnMemory(to.Memory):
    """A subclass, which runs step by step."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it (the example's rules stay, as its module does)."""
    yield
    for name in ("half", "natural"):
        if name in registry.rules:
            registry.rules.unregister(name)


def grid(*methods: dict, **changes: object) -> list[RunConfig]:
    fields = {"problems": [{"name": "breast_cancer"}], "epochs": 2, "batch_size": 100, **changes}
    return expand(Experiment(methods=[{"name": "sso", **method} for method in methods], **fields))


def losses(config: RunConfig, directory: Path, plugins: tuple[str, ...] = ()) -> np.ndarray:
    store = Store(directory)
    store.prepare()
    task = Job(str(directory), config.id, config, attempt=1, command="", plugins=plugins)
    assert perform(task, lambda: False, lambda event: None).status == "done"
    return pq.read_table(directory / "runs" / f"{config.id}.parquet")["loss"].to_numpy()


def test_a_registered_rule_takes_the_steps_of_its_own_code(tmp_path: Path) -> None:
    register_rule("half", Half())
    own, compiled = grid({"rule": "half"}, {"rule": "gradient-step", "lr": "theory/2"})
    assert (own.engine, compiled.engine) == ("torch", "compiled")
    assert own.method.label() == "SSO-half m=20"
    np.testing.assert_allclose(losses(own, tmp_path), losses(compiled, tmp_path), rtol=1e-9)


def test_a_rule_of_all_data_gets_its_forward(tmp_path: Path) -> None:
    register_rule("half", OwnMemory())
    own, compiled = grid({"rule": "half", "inner": "exact"}, {"rule": "memory", "inner": "exact"})
    assert (own.engine, compiled.engine) == ("torch", "compiled")
    np.testing.assert_allclose(losses(own, tmp_path), losses(compiled, tmp_path), rtol=1e-9)


def test_the_example_runs_from_its_specification(tmp_path: Path) -> None:
    experiment = Experiment.read(EXAMPLE)
    small = experiment.model_copy(update={"epochs": 1, "seeds": 1})
    configs = {(config.problem["name"], config.method.label()): config for config in expand(small)}
    assert len(configs) == 8
    plain = configs["breast_cancer", "SSO m=20"]
    light = configs["breast_cancer", "SSO-Momentum m=20"]
    heavy = configs["breast_cancer", "SSO-Momentum (β = 0.9) m=20"]
    assert [config.engine for config in (plain, light, heavy)] == ["compiled", "torch", "torch"]
    seen = [losses(config, tmp_path, tuple(small.plugins)) for config in (plain, light, heavy)]
    assert seen[0][0] == pytest.approx(seen[1][0], rel=1e-12)  # they begin at one point
    assert seen[0][-1] < seen[1][-1] < seen[2][-1]  # few steps: the heavier, the slower


def test_a_rule_of_ones_own_is_checked_like_the_others() -> None:
    register_rule("half", Half())
    register_rule("natural", Natural())
    assert grid({"rule": "half", "lr": "theory*4"})
    with pytest.raises(SpecError, match="'natural' has no step 1/\\(2L\\)"):
        grid({"rule": "natural", "lr": "theory*4"})
    with pytest.raises(SpecError, match=r"must be 'gradient-step', .*'half' or 'natural'"):
        grid({"rule": "hlaf"})
    with pytest.raises(SpecError, match="engine"):
        grid({"rule": "half"}, engine="compiled")


def test_a_name_stands_for_one_rule() -> None:
    register_rule("half", Half())
    register_rule("half", Half())  # the same again is no quarrel: plugins may be read twice
    with pytest.raises(ValueError, match="'half' is registered already"):
        register_rule("half", to.GradientStep())
    with pytest.raises(ValueError, match="'newton' is registered already"):
        register_rule("newton", to.Newton(floor=0.5))
    with pytest.raises(to.BadArgument, match="with its parentheses"):
        register_rule("other", Half)


def test_a_method_of_ones_own_reaches_the_workers(tmp_path: Path) -> None:
    methods = [{"name": "careful", "lr": 0.2}, {"name": "sgd", "lr": 0.1}]
    experiment = Experiment(
        problems=[{"name": "tiny"}], methods=methods, epochs=2, batch_size=10, plugins=[PLUGIN]
    )
    assert run(experiment, tmp_path, jobs=1).statuses == {"done": 2}
    careful, sgd = Store(tmp_path).shown()
    assert careful.manifest["method"]["label"] == "Careful SGD lr=0.2"
    assert careful.columns["loss"].tolist() == sgd.columns["loss"].tolist()


def test_a_plugin_that_workers_cannot_read_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    plugin = tmp_path / "moody.py"
    plugin.write_text(
        "import multiprocessing\n"
        "if multiprocessing.parent_process() is not None:\n"
        "    raise RuntimeError('not in here')\n"
    )
    experiment = Experiment(
        problems=[{"name": "breast_cancer"}], methods=[{"name": "sgd"}], plugins=[str(plugin)]
    )
    summary = run(experiment, tmp_path / "out", jobs=1)
    assert summary.statuses == {"failed": 1}
    assert "not in here" in summary.troubles[0][2]
