"""`targetopt data`: what the commands print and how they exit."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from targetopt.problems.data import CATALOGUE
from targetopt.problems.data_cli import app

run = CliRunner().invoke


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TARGETOPT_DATA_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("TARGETOPT_DATA", raising=False)


@pytest.mark.parametrize("command", ["list", "fetch", "verify", "where"])
def test_every_command_has_examples_in_its_help(command: str) -> None:
    result = run(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"targetopt data {command}" in result.output


def test_list_shows_what_is_here_and_what_is_not(shared_data: Path) -> None:
    result = run(app, ["list", "--data-dir", str(shared_data)])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()[1:]}
    assert set(lines) == set(CATALOGUE)
    assert str(shared_data / "mushrooms.bz2") in lines["mushrooms"]
    assert "RCV1-v2 subset" in lines["rcv1-v2-subset"]
    assert "not here; fetch it" in lines["rcv1"]
    assert "rcv1_like" not in lines["rcv1"]


def test_where_prints_the_order_of_directories_and_single_paths(
    shared_data: Path, tmp_path: Path
) -> None:
    result = run(app, ["where"], env={"TARGETOPT_DATA": str(shared_data)})
    assert result.output.split() == [str(shared_data), str(tmp_path / "cache" / "data")]
    result = run(app, ["where", "ijcnn1", "--data-dir", str(shared_data)])
    assert result.output.strip() == str(shared_data / "ijcnn1.tr.bz2")
    result = run(app, ["where", "rcv1", "--data-dir", str(shared_data)])
    assert result.exit_code == 1
    assert "synthetic-rcv1" in result.output


def test_verify_reports_each_file_and_fails_for_a_wrong_one(
    shared_data: Path, tmp_path: Path
) -> None:
    shutil.copy(shared_data / "mushrooms.bz2", tmp_path / "mushrooms.bz2")
    (tmp_path / "ijcnn1.tr").write_text("1 1:1\n")
    result = run(app, ["verify", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"mushrooms: {tmp_path / 'mushrooms.bz2'} (verified: " in result.output
    assert "ijcnn1.tr is not ijcnn1: rows 1, expected 35000" in result.output
    assert (tmp_path / "ijcnn1.tr.rejected").exists()
    assert run(app, ["verify", "rcv1", "--data-dir", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "mnist"], "there is no data set 'mnist'; choose one of: mushrooms"),
        (["fetch", "rcv1-v2-subset"], "cannot be downloaded"),
        (["fetch", "mushrooms"], "Connection refused"),
    ],
)
def test_fetch_fails_with_one_clear_line(arguments: list[str], message: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
