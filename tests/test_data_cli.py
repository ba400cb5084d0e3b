"""`targetopt data`: what the commands print and how they exit."""

import bz2
from pathlib import Path

import pytest
from typer.testing import CliRunner

from small_data import SMALL, TEXT
from targetopt.lab.cli.data import app
from targetopt.lab.data import CATALOGUE

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


def test_list_shows_what_is_here_and_what_is_not(tmp_path: Path) -> None:
    for name in ("mushrooms.bz2", "rcv1_like_20242.binary.bz2"):  # found by name, not read
        (tmp_path / name).touch()
    result = run(app, ["list", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()[1:]}
    assert set(lines) == set(CATALOGUE)
    assert str(tmp_path / "mushrooms.bz2") in lines["mushrooms"]
    assert "RCV1-v2 subset" in lines["rcv1-v2-subset"]
    assert str(tmp_path / "rcv1_like_20242.binary.bz2") in lines["rcv1-v2-subset"]
    assert "not here; fetch it" in lines["rcv1"]
    assert "rcv1_like" not in lines["rcv1"]


def test_where_prints_the_order_of_directories_and_single_paths(tmp_path: Path) -> None:
    (tmp_path / "ijcnn1.tr.bz2").touch()
    result = run(app, ["where"], env={"TARGETOPT_DATA": str(tmp_path)})
    assert result.output.split() == [str(tmp_path), str(tmp_path / "cache" / "data")]
    result = run(app, ["where", "ijcnn1", "--data-dir", str(tmp_path)])
    assert result.output.strip() == str(tmp_path / "ijcnn1.tr.bz2")
    result = run(app, ["where", "rcv1", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "synthetic-rcv1" in result.output


def test_verify_reports_each_file_and_fails_for_a_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOGUE, "small", SMALL)
    (tmp_path / "small.bz2").write_bytes(bz2.compress(TEXT))
    (tmp_path / "ijcnn1.tr").write_text("1 1:1\n")
    result = run(app, ["verify", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"small: {tmp_path / 'small.bz2'} (verified: " in result.output
    assert "ijcnn1.tr is not ijcnn1: rows 1, expected 35000" in result.output
    assert (tmp_path / "ijcnn1.tr.rejected").exists()
    assert run(app, ["verify", "rcv1", "--data-dir", str(tmp_path)]).exit_code == 1


def test_verify_believes_a_real_file(real_data) -> None:
    path = real_data("mushrooms")
    result = run(app, ["verify", "mushrooms", "--data-dir", str(path.parent)])
    assert result.exit_code == 0
    assert result.output.startswith(f"mushrooms: {path} (verified: ")


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
