"""What lies in ``results/``: verdicts that anybody can recompute, digests, and pages that can be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from targetopt.lab.statistics import verdicts
from targetopt.lab.studies.paper import claims, curves, figures
from targetopt.lab.studies.paper.publish import WHERE_RUN, judge_anew
from targetopt.lab.studies.theory.figures import FIGURES as THEORY

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = sorted(path.parent.name for path in RESULTS.glob("*/curves.parquet"))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the published folder, judged anew."""
    copy = tmp_path_factory.mktemp("published") / "results"
    shutil.copytree(RESULTS, copy, ignore=shutil.ignore_patterns("README.md"))
    judge_anew(copy)
    return copy


@pytest.mark.parametrize("figure", FIGURES)
def test_published_verdicts_are_those_of_the_published_curves(figure: str, again: Path) -> None:
    assert verdicts.read(again / figure) == verdicts.read(RESULTS / figure)
    assert {v.claim for v in verdicts.read(again / figure)} == {
        claim.says for claim in claims.EVERY[figure]
    }


def test_published_pages_are_what_the_command_writes(again: Path) -> None:
    for page in (RESULTS / "README.md", *(RESULTS / name / "README.md" for name in FIGURES)):
        assert (again / page.relative_to(RESULTS)).read_text() == page.read_text(), page


def test_a_script_that_shares_no_code_comes_to_the_same_verdicts() -> None:
    script = (RESULTS / "recompute.py").read_text()
    assert "targetopt" not in script
    found = subprocess.run(
        [sys.executable, RESULTS / "recompute.py"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
    files = sorted(RESULTS.glob("*/verdicts.json"))
    judged = [each for file in files for each in json.loads(file.read_text()) if each.get("asked")]
    assert len(judged) > 300
    assert f"{len(judged)} verdicts recomputed, 0 differ" in found.stdout
    of_figures = [verdict for figure in FIGURES for verdict in verdicts.read(RESULTS / figure)]
    assert not any(WHERE_RUN in verdict.test for verdict in of_figures)
    assert all(verdict.asked for verdict in of_figures if verdict.verdict != "not judged")
    for name in THEORY:
        assert all(verdict.asked for verdict in verdicts.read(RESULTS / name)), name


@pytest.mark.parametrize(("figure", "said"), [("figA-svrg", "mixed"), ("theory-bounds", "holds")])
def test_the_script_notices_a_verdict_that_is_not_true(
    figure: str, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / figure
    shutil.copytree(RESULTS / figure, folder)
    entries = json.loads((folder / "verdicts.json").read_text())
    judged = next(entry for entry in entries if entry["verdict"] == said)
    judged["verdict"] = "does not hold"
    (folder / "verdicts.json").write_text(json.dumps(entries))
    command = [sys.executable, RESULTS / "recompute.py", tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "1 differ" in found.stdout


@pytest.mark.parametrize("figure", FIGURES)
def test_every_published_run_has_its_digest(figure: str) -> None:
    digests = json.loads((RESULTS / figure / "facts.json").read_text())["digests"]
    runs = curves.read(RESULTS, figure)
    assert digests.keys() == {run.manifest["id"] for run in runs}
    assert all(curves.digest(run.columns) == digests[run.manifest["id"]] for run in runs)


def test_the_first_screen_says_six_findings_four_caveats_a_picture_and_a_command() -> None:
    first = (RESULTS / "README.md").read_text().partition("## Figures")[0]
    lines = first.splitlines()
    assert sum(line[:2] in {f"{k}." for k in range(1, 7)} for line in lines) == 6
    assert sum(line.startswith("* **") for line in lines) == 4
    assert first.count("![") == 1
    assert "    targetopt run results/" in first
    assert len((RESULTS / "README.md").read_bytes()) < 20_000
    assert all(f"({name}/README.md)" in (RESULTS / "README.md").read_text() for name in FIGURES)
    assert set(FIGURES) <= set(figures.names())
