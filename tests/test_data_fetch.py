"""Downloads from a real HTTP server that misbehaves on purpose."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from file_server import Server, serving
from small_data import SMALL, TEXT
from targetopt.lab import problems
from targetopt.lab.data import CATALOGUE, DownloadError, MismatchError, fetch
from targetopt.lab.data import transfer as transfer_module

COMMAND = (sys.executable, str(Path(__file__).with_name("small_data.py")))


@pytest.fixture
def text() -> bytes:
    return TEXT


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(TEXT) as server:
        monkeypatch.setenv("TARGETOPT_DATA_URL", server.url)
        monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("TARGETOPT_DATA", raising=False)
        monkeypatch.setattr(transfer_module, "_TIMEOUT", 5.0)
        yield server


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "data"


def files(directory: Path) -> set[str]:
    """What a user sees there (locks are hidden files)."""
    return {path.name for path in directory.iterdir() if not path.name.startswith(".")}


def test_a_download_is_verified_and_named(server: Server, directory: Path, text: bytes) -> None:
    seen: list[tuple[int, int | None]] = []
    loaded = fetch(SMALL, progress=lambda done, total: seen.append((done, total)))
    assert loaded.path == directory / "small"
    assert loaded.path.read_bytes() == text
    assert loaded.data.fingerprint == SMALL.fingerprint
    assert files(directory) == {"small"}
    assert seen[0] == (0, len(text))
    assert seen[-1] == (len(text), len(text))
    assert server.requests == [None]
    fetch(SMALL)
    assert server.requests == [None]  # it is here: no second download


def test_the_given_directory_receives_it(server: Server, tmp_path: Path) -> None:
    assert fetch(SMALL, data_dir=tmp_path / "mine").path == tmp_path / "mine" / "small"


def test_a_broken_connection_is_continued(server: Server, directory: Path, text: bytes) -> None:
    server.break_after = [100_000, 200_000]
    assert fetch(SMALL).path.read_bytes() == text
    assert server.requests == [None, "bytes=100000-", "bytes=300000-"]
    assert files(directory) == {"small"}


def test_a_server_that_stays_broken_keeps_what_arrived(server: Server, directory: Path) -> None:
    server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"100,000 bytes are kept; the next fetch continues"):
        fetch(SMALL)
    assert files(directory) == {"small.part", "small.part.json"}
    assert fetch(SMALL).data.fingerprint == SMALL.fingerprint
    assert server.requests[-1] == "bytes=100000-"
    assert files(directory) == {"small"}


def test_a_server_without_ranges_starts_over(server: Server, text: bytes) -> None:
    server.ranges = False
    server.break_after = [100_000]
    assert fetch(SMALL).path.read_bytes() == text
    assert server.requests == [None, "bytes=100000-"]


def test_a_new_version_is_never_joined_to_an_old_one(server: Server, text: bytes) -> None:
    right, server.content = server.content, b"x" * len(text)
    server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(SMALL)
    server.content, server.etag = right, '"v2"'
    assert fetch(SMALL).path.read_bytes() == text


def test_a_server_without_etag_or_length(server: Server, text: bytes) -> None:
    server.etag, server.lengths = None, False
    assert fetch(SMALL).path.read_bytes() == text


def test_a_complete_part_needs_no_more_bytes(server: Server, directory: Path, text: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / "small.part").write_bytes(text)
    assert fetch(SMALL).path.read_bytes() == text
    assert server.requests == [f"bytes={len(text)}-"]
    (directory / "small").unlink()
    (directory / "small.part").write_bytes(text + b"more")
    assert fetch(SMALL).path.read_bytes() == text


def test_wrong_content_is_set_aside_and_not_continued(
    server: Server, directory: Path, text: bytes
) -> None:
    first, second, rest = text.split(b"\n", 2)
    right, server.content = text, b"\n".join([second, first, rest])
    with pytest.raises(MismatchError, match="content fingerprint"):
        fetch(SMALL)
    assert files(directory) == {"small.rejected"}
    server.content = right
    assert fetch(SMALL).path.read_bytes() == text
    assert server.requests == [None, None]


def test_an_endless_file_is_cut_off(server: Server, directory: Path) -> None:
    server.content = bytes(SMALL.text_limit + 1)
    for server.lengths in (True, False):
        with pytest.raises(DownloadError, match="longer than"):
            fetch(SMALL)
        assert files(directory) == set()


def test_errors_of_the_server(server: Server, text: bytes) -> None:
    server.statuses = [404]
    with pytest.raises(DownloadError, match="404"):
        fetch(SMALL)
    server.statuses = [503, 500]
    assert fetch(SMALL).path.read_bytes() == text
    assert len(server.requests) == 4


def test_a_problem_shows_the_download_of_its_data(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CATALOGUE, "mushrooms", replace(SMALL, name="mushrooms"))
    server.pause = 0.001
    problems.get("mushrooms")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"mushrooms: 0 % of {len(server.content):,} bytes"
    assert lines[-1] == f"mushrooms: 100 % of {len(server.content):,} bytes"
    problems.get("mushrooms")
    assert capsys.readouterr().err == ""  # it is here now


def start_fetch() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "fetch", "small"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def wait_for(condition, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def test_kill_9_in_mid_fetch_leaves_nothing_wrong_and_resumes(
    server: Server, directory: Path, text: bytes
) -> None:
    part = directory / "small.part"
    server.pause = 0.2
    kept = 0
    for _ in range(2):
        process = start_fetch()
        wait_for(lambda least=kept: part.exists() and part.stat().st_size > least)
        process.send_signal(signal.SIGKILL)
        assert process.wait(300) == -signal.SIGKILL
        process.communicate()
        kept = part.stat().st_size
        assert 0 < kept < len(text)
        assert part.read_bytes() == text[:kept]
        assert "small" not in files(directory)
    server.pause = 0.0
    process = start_fetch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert server.requests[-1] == f"bytes={kept}-"
    assert (directory / "small").read_bytes() == text
    assert files(directory) == {"small"}
    assert "verified: shape, non-zeros, label counts, content fingerprint" in out


def test_two_processes_fetching_at_once_both_end_well(
    server: Server, directory: Path, text: bytes
) -> None:
    server.pause = 0.05
    processes = [start_fetch(), start_fetch()]
    for process in processes:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    assert server.requests == [None]  # the second waited and found the file
    assert (directory / "small").read_bytes() == text
    assert files(directory) == {"small"}


def test_the_survivor_takes_over_from_a_killed_process(
    server: Server, directory: Path, text: bytes
) -> None:
    server.pause = 0.2
    victim = start_fetch()
    part = directory / "small.part"
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    survivor = start_fetch()
    time.sleep(0.5)
    victim.kill()
    victim.communicate()
    server.pause = 0.0
    _, err = survivor.communicate(timeout=600)
    assert survivor.returncode == 0, err
    assert (directory / "small").read_bytes() == text
