"""The gallery's examples run, and the notebooks are the first five of them with their plots."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[1]
notebooks: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "notebooks.py"))
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))
SOURCES: dict[str, Path] = notebooks["sources"]()
NEEDS = {"plot_5_imitation": "mujoco", "plot_7_decisions": "pyepo"}


def test_there_are_five_numbered_ones() -> None:
    assert [name[0] for name in SOURCES] == ["1", "2", "3", "4", "5"]
    assert sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb")) == sorted(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_notebook_is_its_example_with_plots(name: str) -> None:
    made = json.loads((ROOT / "notebooks" / name).read_text("utf-8"))["cells"]
    said = [(cell["cell_type"], "".join(cell["source"])) for cell in made]
    assert said == notebooks["cells"](SOURCES[name].read_text("utf-8")), "run `make notebooks`"
    outputs = [output for cell in made for output in cell.get("outputs", [])]
    assert "error" not in {output["output_type"] for output in outputs}
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_an_example_runs_and_draws(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported everything; what a notebook executes is the same code."""
    pytest.importorskip(NEEDS.get(path.stem, "targetopt"))
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    source = path.read_text("utf-8")
    assert re.search(r"After this\s+example\s+you\s+will", source)
    modules = set(sys.modules)
    exec(compile(source, str(path), "exec"), {"__name__": f"gallery_{path.stem}"})
    assert plt.get_fignums()
    assert all(plt.figure(number).axes for number in plt.get_fignums())
    plt.close("all")
    assert capsys.readouterr().out
    assert not [name for name in set(sys.modules) - modules if name.startswith("gallery_")]
