"""The command line: help with examples, lists, errors for people, status, and a whole demo."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from targetopt.lab import METHODS, Experiment, Store, expand, problems, run
from targetopt.lab.cli.main import COMMANDS, make
from targetopt.lab.cli.results import Axis, Middle
from targetopt.lab.report import lines
from targetopt.lab.run.progress import ShownRuns
from targetopt.lab.run.runner import Tally
from targetopt.lab.studies import demo

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WITHIN = {
    "data": ["list", "fetch", "verify", "where"],
    "expert": ["list", "train", "evaluate"],
    "ledger": ["show", "verify", "export"],
    "oracles": ["run", "report", "list"],
}
"""The commands of those commands that are groups."""
HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "numba",
    "sklearn",
    "matplotlib",
    "pyarrow",
    "PIL",
    "jinja2",
}
"""What takes long to import; nothing of it is needed to print help."""


def invoke(*words: str | Path, code: int = 0) -> str:
    """Output of a command, standard error included, which ends with ``code``."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(make(), [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_help_names_every_command_and_each_has_examples() -> None:
    overview = invoke("--help")
    for command, entry in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(entry.help)}$", overview, re.MULTILINE)
        for words in [[command, name] for name in WITHIN.get(command, ())] or [[command]]:
            text = invoke(*words, "--help")
            assert re.search(rf"Examples:\s+targetopt {' '.join(words)}", text), text


@pytest.mark.parametrize(
    "words", [["--help"], *([command, "--help"] for command in COMMANDS if command != "data")]
)
def test_help_imports_nothing_that_takes_long(words: list[str]) -> None:
    """Each command imports what it needs when it runs; its module and its help need none of that."""
    code = (
        "import sys\nfrom targetopt.lab.cli.main import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"typer", "targetopt"} <= loaded
    assert not loaded & HEAVY


def test_lists() -> None:
    everything = invoke("list")
    for name in (*problems.names(), *METHODS):
        assert name in everything
    assert "m=20" in invoke("list", "methods")
    assert "weight_decay=0.0" in invoke("list", "problems")
    assert invoke("list", "figures").startswith("figures: ")
    assert "problems" in invoke("list", "pictures", code=2)


def test_a_faulty_specification_is_shown_and_nothing_is_made(tmp_path: Path) -> None:
    spec = tmp_path / "grid.toml"
    spec.write_text('[[problems]]\nname = "breast_cancer"\n[[methods]]\nname = "sso"\nm = 0\n')
    output = invoke("run", spec, "--out", tmp_path / "out", code=2)
    assert f"{spec}:5:5: methods[0].m: 0 should be greater than or equal to 1" in output
    assert "    m = 0\n        ^" in output
    assert not (tmp_path / "out").exists()
    assert "No such file" in invoke("run", tmp_path / "none.toml", code=1)
    assert "no runs/" in invoke("status", tmp_path, code=1)


def test_run_and_status(tmp_path: Path) -> None:
    spec, out = tmp_path / "grid.toml", tmp_path / "out"
    spec.write_text(
        f'plugins = ["{PLUGIN}"]\nepochs = 1\n[[problems]]\nname = "tiny"\nat = 1\n'
        'trouble = ["none", "raise"]\n[[methods]]\nname = "adam"\nlr = [0.1, 1e300]\n'
    )
    output = invoke("run", spec, "--out", out, "--jobs", "1", code=1)
    assert "4 runs: 1 diverged, 1 done, 2 failed" in output
    assert "RuntimeError: the simulator is out of paper" in output
    assert f"Next: targetopt report {out}" in output
    shown = invoke("status", out)
    assert shown.startswith("1 done · 1 diverged · 2 failed\n")
    assert shown.count("the simulator is out of paper") == 2
    ended = Store(out).ended()
    Store(out).manifest_path(ended[0]).unlink()
    Store(out).locks.take(ended[1])
    assert "1 running · 1 waiting" in invoke("status", out)
    assert "only='xyz' is no run" in invoke("run", spec, "--out", out, "--only", "xyz", code=1)
    assert "no tracker is named 'pen'" in invoke(
        "run", spec, "--out", out, "--track", "pen", code=1
    )


def test_report_takes_the_axis_and_tau(tmp_path: Path) -> None:
    experiment = Experiment(
        problems=[{"name": "tiny"}], methods=[{"name": "adam"}], epochs=1, plugins=[PLUGIN]
    )
    run(experiment, tmp_path, jobs=1)
    words = ("--x", "cost", "--tau", "7", "--no-figures")
    assert "report.html" in invoke("report", tmp_path, *words)
    assert not (tmp_path / "figures").exists()
    rows = (tmp_path / "tables" / "curves.csv").read_text().splitlines()
    costs = {float(row.split(",")[5]) for row in rows[1:]}
    assert {row.split(",")[4] for row in rows[1:]} == {"cost"}
    assert all(cost % 8 == 0 for cost in costs)  # τ + 1 for each step
    assert (tuple(Axis), tuple(Middle)) == (lines.X_AXES, lines.MIDDLES)
    assert "--tau" in invoke("report", tmp_path, "--tau", "0.5", code=2)


def test_tracking_writes_event_files(tmp_path: Path) -> None:
    experiment = Experiment(
        problems=[{"name": "tiny"}], methods=[{"name": "adam"}], epochs=1, plugins=[PLUGIN]
    )
    run(experiment, tmp_path, jobs=1, trackers=["tensorboard"])
    assert len(list((tmp_path / "tensorboard").rglob("events.*"))) == 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    assert expand(Experiment.read(path))


def test_the_demo_ends_with_a_table_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = demo.experiment(seeds=1)
    assert {entry["name"] for entry in whole.problems} == {"mbb-beam", "breast_cancer"}
    expand(whole)  # nothing in it is impossible
    small = whole.model_copy(
        update={"problems": [{"name": "breast_cancer", "batch_size": 16, "epochs": 1}]}
    )
    monkeypatch.setattr(demo, "experiment", lambda seeds: small)
    output = invoke("demo", "--out", tmp_path / "demo", "--seeds", "1", "--jobs", "1")
    assert output.startswith("Starting the worker processes")  # something is said at once
    assert all(sentence.split(".")[0] in " ".join(output.split()) for sentence in demo.OPENING)
    assert re.search(r"Adam tuned +[▁-█]{30}", output), output  # drawn as runs end
    [words] = re.findall(
        r"On breast cancer .*?, Adam tuned needed \d+ oracle calls to reach a loss of .*?\.\n",
        output,
    )
    assert words.strip() in (tmp_path / "demo" / "report.html").read_text("utf-8")
    assert "TARGETOPT_KERNELS" not in os.environ
    assert str((tmp_path / "demo" / "report.html").resolve()) in output
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000


def test_without_the_extra_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module', name='typer')")
    result = subprocess.run(
        [sys.executable, "-m", "targetopt", "--help"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "pip install 'targetopt[lab]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_installed_command_is_the_module() -> None:
    program = shutil.which("targetopt", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the package is not installed, only on the path")
    texts = [
        subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
        for words in ([program], [sys.executable, "-m", "targetopt"])
    ]
    assert texts[0].replace("\r", "") == texts[1].replace("python -m targetopt", "targetopt")


def test_a_bar_that_is_never_shown_leaves_the_terminal_alone() -> None:
    written = io.StringIO()
    display = ShownRuns(Console(file=written, force_terminal=True))
    display.close()
    assert "\x1b[?25l" not in written.getvalue()  # the cursor is hidden
    display = ShownRuns(Console(file=written, force_terminal=True))
    display.update(Tally(total=2))
    display.close()
    assert written.getvalue().rindex("\x1b[?25h") > written.getvalue().rindex("\x1b[?25l")


def test_a_dry_run_tells_and_does_nothing(tmp_path: Path) -> None:
    spec, out = tmp_path / "grid.toml", tmp_path / "out"
    spec.write_text(
        f'plugins = ["{PLUGIN}"]\nname = "Mine"\n[[problems]]\nname = "tiny"\n'
        '[[methods]]\nname = "sso"\nm = [1, 2]\n'
    )
    output = invoke("run", spec, "--out", out, "--dry-run")
    assert re.search(r"Mine +2 +0 +\d+ s", output), output
    assert not out.exists()
