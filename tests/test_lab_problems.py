"""Problems that say as little as they may: a model, a forward, an oracle that is a black box, metrics."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from targetopt.lab import Experiment, RunConfig, SpecError, Store, expand, problems
from targetopt.lab.problems.base import Problem, seeded
from targetopt.lab.run.job import Job, perform
from targetopt.lab.spec.grid import resolve

EXAMPLES = Path(__file__).parents[1] / "examples"
METHODS = [
    {"name": "sso", "m": 5, "lr": 0.5},
    {"name": "sso", "m": 5, "lr": 0.5, "rule": "adagrad-norm"},
    {"name": "sgd", "lr": 0.05},
    {"name": "adam", "lr": 0.01},
    {"name": "adagrad-norm", "lr": 0.1},
    {"name": "svrg", "lr": 0.05},
]


class Line(Problem):
    """Thirty points near a line, fitted by a small network."""

    def __init__(self) -> None:
        self.x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        self.y = 2 * self.x[:, 0] + 0.1 * torch.cos(40 * self.x[:, 0])

    def model(self, seed: int) -> nn.Module:
        layers = (nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
        return seeded(seed, lambda: nn.Sequential(*layers))

    def forward(self, model, index=None):
        return lambda: model(self.x)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float((0.5 * (model(self.x) - self.y) ** 2).mean())}


class KnownLine(Line):
    """The same with a loss that everybody can see."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = to.losses.Squared(self.y)


class HiddenLine(Line):
    """The same with an oracle that only says losses and gradients."""

    def oracle(self, index=None):
        return to.GradientOracle(lambda z: (0.5 * (z - self.y) ** 2, z - self.y))


class Nothing(Line):
    """Neither a loss nor an oracle."""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    names = {"known-line": KnownLine, "hidden-line": HiddenLine, "no-line": Nothing}
    for name, kind in names.items():
        problems.register(name, "30 points, for tests")(kind)
    yield
    for name in names:
        problems.unregister(name)


def grid(problem: str, *methods: dict, **changes: object) -> list[RunConfig]:
    return expand(Experiment(problems=[{"name": problem}], methods=list(methods), **changes))


def rows(config: RunConfig, directory: Path) -> dict[str, np.ndarray]:
    store = Store(directory)
    store.prepare()
    job = Job(str(directory), config.id, config, attempt=1, command="")
    ended = perform(job, stop=lambda: False, tell=lambda event: None)
    assert ended.status == "done", ended.reason
    return store.load([config.id])[0].columns


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_a_black_box_takes_the_steps_of_the_loss_it_hides(tmp_path: Path, method: dict) -> None:
    [known], [hidden] = (grid(name, method, epochs=6) for name in ("known-line", "hidden-line"))
    shown, told = rows(known, tmp_path), rows(hidden, tmp_path)
    assert shown.keys() == told.keys()
    for name in shown.keys() - {"wall_time"}:
        np.testing.assert_array_equal(shown[name], told[name], err_msg=name)
    snapshots = 6 if method["name"] == "svrg" else 0
    assert told["oracle_calls"][-1] == (3 if snapshots else 1) * 6
    assert told["loss"][-1] < told["loss"][0]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "sso"}, r"methods\[0\]: 'theory' is 1/\(2L\).*no finite L. Give a number$"),
        ({"name": "sso", "lr": 1.0, "rule": "newton"}, "'newton' needs the loss's curvature"),
        ({"name": "sso", "lr": 1.0, "rule": "line-search"}, "'line-search' needs the loss's value"),
        ({"name": "sso", "lr": 1.0, "inner": "exact"}, "needs a linear problem"),
        ({"name": "sls"}, "'sls' tries steps by the loss's value"),
        ({"name": "sgd"}, "no L_θ is known for 'hidden-line'"),
    ],
)
def test_what_needs_more_than_it_reveals_is_refused_before_anything_runs(
    method: dict, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        grid("hidden-line", method)


def test_what_the_oracle_says_of_itself_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def more(self, index=None):
        return to.GradientOracle(
            lambda z: (0.5 * (z - self.y) ** 2, z - self.y),
            value=lambda z: 0.5 * (z - self.y) ** 2,
            curvature=torch.ones_like,
            smoothness=1.0,
        )

    monkeypatch.setattr(HiddenLine, "oracle", more)
    problem = problems.get("hidden-line")
    assert problem.reveals == {"losses", "value", "curvature"}
    assert problem.target_smoothness == 1.0
    methods = [{"name": "sso"}, {"name": "sso", "rule": "newton"}, {"name": "sls"}]
    assert len(grid("hidden-line", *methods)) == 3


def test_without_rows_a_step_takes_everything() -> None:
    with pytest.raises(SpecError, match="'hidden-line' has no rows to choose 8 from; use 'full'"):
        grid("hidden-line", METHODS[0], batch_size=8)
    problem = problems.get("hidden-line")
    assert problem.n is None
    assert problem.label == "hidden-line"
    assert repr(problem) == "<problem 'hidden-line': hidden-line>"


def test_a_problem_without_an_oracle_says_what_is_missing() -> None:
    with pytest.raises(to.MissingCapability, match=r"'no-line' has no loss.*must define oracle"):
        problems.get("no-line").oracle()


def test_the_example_runs_from_its_specification(tmp_path: Path) -> None:
    found = resolve(Experiment.read(EXAMPLES / "own_oracle_problem.toml"))
    [tuned] = found.tuned
    assert (len(found.runs), len(tuned.values)) == (4, 5)
    for run in (*found.runs[::2], tuned.trials[3]):
        columns = rows(run, tmp_path)
        assert columns["loss"].min() < 0.2 * columns["loss"][0], run.method_label
        assert columns["oracle_calls"][-1] + columns["value_calls"][-1] == 40
    assert problems.declaration("throws").expensive


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (EXAMPLES.parent / "docs" / "oracle-suite.md").read_text("utf-8")
    for language, ending in (("python", "py"), ("toml", "toml")):
        text = (EXAMPLES / f"own_oracle_problem.{ending}").read_text("utf-8")
        assert f"```{language}\n{text}```" in page
    code = (EXAMPLES / "own_oracle_problem.py").read_text("utf-8").splitlines()
    assert sum(bool(line) and not line.lstrip().startswith('"""') for line in code) <= 32
