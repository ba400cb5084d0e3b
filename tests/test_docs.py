"""The README's example, and the examples, do what they say, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forked import forked

ROOT = Path(__file__).parents[1]


def python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_example_runs_and_learns():
    """And does not import torch's compiler, which would double the time to the first step."""
    block, _ = readme_blocks()
    said = python("-c", f"{block}\nimport sys; print('torch._dynamo' in sys.modules)")
    (loss,) = re.findall(r"loss (\d\.\d+) after 20 oracle calls", said)
    assert float(loss) < 0.1
    assert said.endswith("False\n")


def test_the_readme_imitates(tmp_path):
    """With two short rounds instead of its fifty."""
    _, block = readme_blocks()
    saved = tmp_path / "walker.safetensors"
    block = block.replace("rounds=50", "rounds=2, states_per_round=100, evaluation_episodes=1")
    block = block.replace("walker.safetensors", str(saved))
    forked(exec, "import targetopt as to\n" + block, {})
    assert saved.exists()


def test_readme_links_lead_somewhere():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    missing = [
        f"{page.name} -> {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", sorted(p.name for p in (ROOT / "docs").glob("*.md")))
def test_pages_speak_python_that_compiles(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    for block in blocks:
        compile(block, page, "exec")


def test_a_new_rule_is_one_file():
    lines = python("examples/own_rule.py").splitlines()  # other tests register a rule of this name
    losses = [float(re.search(r"loss (\d\.\d+)", line).group(1)) for line in lines]
    assert len(losses) == 3
    assert all(loss < 0.2 for loss in losses)


def test_ask_and_tell_in_processes_of_their_own(monkeypatch, tmp_path):
    """As the command without arguments does it, which the long lane runs."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import ask_tell

    said = ""
    for verb in ("ask", "tell", "ask", "tell"):
        monkeypatch.setattr(sys, "argv", ["ask_tell.py", verb, str(tmp_path)])
        said += forked(ask_tell.main)
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", said)]
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_the_example_of_ask_and_tell_runs():
    losses = [float(x) for x in re.findall(r"loss (\d\.\d+)", python("examples/ask_tell.py"))]
    assert len(losses) == 2
    assert losses[1] < losses[0]


def test_the_beam_example_needs_fewer_solves_than_adam(monkeypatch, capsys):
    """On its own seed and size; the example says how many solves each of them took."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import stiff_beam

    monkeypatch.setattr(stiff_beam, "CALLS", 12)
    monkeypatch.setattr(stiff_beam, "SHOWN", (1, 5, 12))
    found = stiff_beam.main()
    assert found["sso"] < found["adam"]
    assert "SSO needed" in capsys.readouterr().out
