"""``targetopt new`` writes files that work as they are, and overwrites nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from targetopt import registry
from targetopt.lab import Experiment, expand
from targetopt.lab.cli.main import make
from targetopt.lab.problems.registry import _DECLARATIONS

FILES = {
    "oracle": ["my_oracle.py", "test_my_oracle.py"],
    "problem": ["my_problem.py", "my_problem.toml", "test_my_problem.py"],
    "rule": ["my_rule.py", "my_rule.toml", "test_my_rule.py"],
}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test writes can be imported by its name, and is gone after it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("my_", "test_my_", "targetopt_plugin_")):
            del sys.modules[name]
    if "my-rule" in registry.rules:
        registry.rules.unregister("my-rule")
    _DECLARATIONS.pop("my-problem", None)


def invoke(*words: object, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(make(), [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def run_tests_of(module: ModuleType) -> list[str]:
    """Run the tests of a module; their names."""
    found = [name for name in vars(module) if name.startswith("test_")]
    for name in found:
        getattr(module, name)()
    return found


@pytest.mark.parametrize("kind", FILES)
def test_what_is_written_passes_its_tests(kind: str, tmp_path: Path) -> None:
    output = invoke("new", kind, f"my-{kind}", "--out", tmp_path)
    assert all(f"Wrote {tmp_path / name}" in output for name in FILES[kind])
    assert f"python -m pytest test_my_{kind}.py" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES[kind]
    assert run_tests_of(importlib.import_module(f"test_my_{kind}"))


def test_the_oracle_trains_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invoke("new", "oracle", "my-oracle", "--out", tmp_path)
    importlib.import_module("my_oracle").main()
    assert "after 20 oracle calls" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "runs"), [("problem", 4 * 2), ("rule", 2 * 2)])
def test_specifications_are_valid(kind: str, runs: int, tmp_path: Path) -> None:
    invoke("new", kind, f"my-{kind}", "--out", tmp_path)
    assert len(expand(Experiment.read(tmp_path / f"my_{kind}.toml"))) == runs


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "my_rule.toml").write_text("mine")
    assert "exists already" in invoke("new", "rule", "my-rule", "--out", tmp_path, code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["my_rule.toml"]


@pytest.mark.parametrize("name", ["My Rule", "../rule", "2fast", "class", "a--b", ""])
def test_names_that_cannot_be_imported_are_refused(name: str, tmp_path: Path) -> None:
    assert f"NAME={name!r}" in invoke("new", "rule", name, "--out", tmp_path, code=1)
    assert not list(tmp_path.iterdir())
