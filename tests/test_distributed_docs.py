"""The page on ranks, pieces and recipes: its Python runs from top to bottom. So does the language model's example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("safetensors", "accelerate", "lightning_fabric"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    blocks = python_of_the_page()
    assert len(blocks) >= 11
    run([block for block in blocks if "from peft" not in block])


def python_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run(blocks: list[str]) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "distributed.md", "exec"), namespace)


@pytest.mark.slow  # loading peft takes longer than the rest of the page
def test_adapters_by_peft() -> None:
    pytest.importorskip("peft")
    blocks = python_of_the_page()
    (recipe,) = [block for block in blocks if "from peft" in block]
    run([blocks[0], recipe])


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["0", "4"])
def test_a_language_model_is_distilled_and_nothing_is_paid_twice(tmp_path: Path, lora: str) -> None:
    for library in ("peft", "transformers"):
        pytest.importorskip(library)
    command = [sys.executable, str(ROOT / "examples" / "distil_language_model.py")]
    command += [
        "--vocabulary",
        "500",
        "--texts",
        "4",
        "--length",
        "4",
        "--epochs",
        "3",
        "--lora",
        lora,
    ]
    command += ["--ledger", str(tmp_path / "distil.ledger")]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    losses = [float(each) for each in re.findall(r"cross-entropy (\d+\.\d+)", said[0])]
    assert losses[-1] < losses[0]
    paid = [re.findall(r"paid (\d+\.?\d*)", each) for each in said]
    assert paid[0][0] == paid[0][-1]  # every position once
    assert re.findall(r"cross-entropy (\d+\.\d+)", said[1]) == [f"{loss:.4f}" for loss in losses]
