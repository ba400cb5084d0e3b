"""Downloads from a real HTTP server that misbehaves on purpose."""

import bz2
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from targetopt import problems
from targetopt.problems.data import DownloadError, MismatchError, fetch, find
from targetopt.problems.data import transfer as transfer_module

MUSHROOMS = find("mushrooms")
COMMAND = (sys.executable, "-c", "from targetopt.problems.data_cli import app; app()")


class Server(ThreadingHTTPServer):
    """Serves one content at every path; its attributes are the ways to misbehave."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.etag: str | None = '"v1"'
        self.ranges = True
        self.lengths = True
        self.break_after: list[int] = []  # bytes sent before hanging up, one entry per request
        self.statuses: list[int] = []  # error codes to answer with first
        self.pause = 0.0  # seconds between chunks of 64 KiB
        self.requests: list[str | None] = []  # the Range header of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/binary"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.requests.append(asked)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        condition = self.headers.get("If-Range")
        if asked and server.ranges and condition in (None, server.etag):
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            end = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(server.content)}")
        if server.lengths:
            self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        if server.break_after:
            body = body[: server.break_after.pop(0)]
        for at in range(0, len(body), 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            time.sleep(server.pause)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def text(shared_data: Path) -> bytes:
    return bz2.decompress((shared_data / "mushrooms.bz2").read_bytes())


@pytest.fixture
def server(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(text) as server:
        monkeypatch.setenv("TARGETOPT_DATA_URL", server.url)
        monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("TARGETOPT_DATA", raising=False)
        monkeypatch.setattr(transfer_module, "_TIMEOUT", 5.0)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "data"


def files(directory: Path) -> set[str]:
    """What a user sees there (locks are hidden files)."""
    return {path.name for path in directory.iterdir() if not path.name.startswith(".")}


def test_a_download_is_verified_and_named(server: Server, directory: Path, text: bytes) -> None:
    seen: list[tuple[int, int | None]] = []
    loaded = fetch(MUSHROOMS, progress=lambda done, total: seen.append((done, total)))
    assert loaded.path == directory / "mushrooms"
    assert loaded.path.read_bytes() == text
    assert loaded.data.fingerprint == MUSHROOMS.fingerprint
    assert files(directory) == {"mushrooms"}
    assert seen[0] == (0, len(text))
    assert seen[-1] == (len(text), len(text))
    assert server.requests == [None]
    fetch(MUSHROOMS)
    assert server.requests == [None]  # it is here: no second download


def test_the_given_directory_receives_it(server: Server, tmp_path: Path) -> None:
    assert fetch(MUSHROOMS, data_dir=tmp_path / "mine").path == tmp_path / "mine" / "mushrooms"


def test_a_broken_connection_is_continued(server: Server, directory: Path, text: bytes) -> None:
    server.break_after = [100_000, 200_000]
    assert fetch(MUSHROOMS).path.read_bytes() == text
    assert server.requests == [None, "bytes=100000-", "bytes=300000-"]
    assert files(directory) == {"mushrooms"}


def test_a_server_that_stays_broken_keeps_what_arrived(server: Server, directory: Path) -> None:
    server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"100,000 bytes are kept; the next fetch continues"):
        fetch(MUSHROOMS)
    assert files(directory) == {"mushrooms.part", "mushrooms.part.json"}
    assert fetch(MUSHROOMS).data.fingerprint == MUSHROOMS.fingerprint
    assert server.requests[-1] == "bytes=100000-"
    assert files(directory) == {"mushrooms"}


def test_a_server_without_ranges_starts_over(server: Server, text: bytes) -> None:
    server.ranges = False
    server.break_after = [100_000]
    assert fetch(MUSHROOMS).path.read_bytes() == text
    assert server.requests == [None, "bytes=100000-"]


def test_a_new_version_is_never_joined_to_an_old_one(server: Server, text: bytes) -> None:
    right, server.content = server.content, b"x" * len(text)
    server.break_after = [100_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(MUSHROOMS)
    server.content, server.etag = right, '"v2"'
    assert fetch(MUSHROOMS).path.read_bytes() == text


def test_a_server_without_etag_or_length(server: Server, text: bytes) -> None:
    server.etag, server.lengths = None, False
    assert fetch(MUSHROOMS).path.read_bytes() == text


def test_a_complete_part_needs_no_more_bytes(server: Server, directory: Path, text: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / "mushrooms.part").write_bytes(text)
    assert fetch(MUSHROOMS).path.read_bytes() == text
    assert server.requests == [f"bytes={len(text)}-"]
    (directory / "mushrooms").unlink()
    (directory / "mushrooms.part").write_bytes(text + b"more")
    assert fetch(MUSHROOMS).path.read_bytes() == text


def test_wrong_content_is_set_aside_and_not_continued(
    server: Server, directory: Path, text: bytes
) -> None:
    right, server.content = text, text.replace(b"6:1 8:1", b"7:1 8:1", 1)
    with pytest.raises(MismatchError, match="content fingerprint"):
        fetch(MUSHROOMS)
    assert files(directory) == {"mushrooms.rejected"}
    server.content = right
    assert fetch(MUSHROOMS).path.read_bytes() == text
    assert server.requests == [None, None]


def test_an_endless_file_is_cut_off(server: Server, directory: Path) -> None:
    server.content = bytes(MUSHROOMS.text_limit + 1)
    for server.lengths in (True, False):
        with pytest.raises(DownloadError, match="longer than"):
            fetch(MUSHROOMS)
        assert files(directory) == set()


def test_errors_of_the_server(server: Server, text: bytes) -> None:
    server.statuses = [404]
    with pytest.raises(DownloadError, match="404"):
        fetch(MUSHROOMS)
    server.statuses = [503, 500]
    assert fetch(MUSHROOMS).path.read_bytes() == text
    assert len(server.requests) == 4


def test_a_problem_shows_the_download_of_its_data(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pause = 0.001
    problems.get("mushrooms")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"mushrooms: 0 % of {len(server.content):,} bytes"
    assert lines[-1] == f"mushrooms: 100 % of {len(server.content):,} bytes"
    problems.get("mushrooms")
    assert capsys.readouterr().err == ""  # it is here now


def start_fetch() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "fetch", "mushrooms"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def wait_for(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def test_kill_9_in_mid_fetch_leaves_nothing_wrong_and_resumes(
    server: Server, directory: Path, text: bytes
) -> None:
    part = directory / "mushrooms.part"
    server.pause = 0.2
    kept = 0
    for _ in range(2):
        process = start_fetch()
        wait_for(lambda least=kept: part.exists() and part.stat().st_size > least)
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        process.communicate()
        kept = part.stat().st_size
        assert 0 < kept < len(text)
        assert part.read_bytes() == text[:kept]
        assert "mushrooms" not in files(directory)
    server.pause = 0.0
    process = start_fetch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert server.requests[-1] == f"bytes={kept}-"
    assert (directory / "mushrooms").read_bytes() == text
    assert files(directory) == {"mushrooms"}
    assert "verified: shape, non-zeros, label counts, content fingerprint" in out


def test_two_processes_fetching_at_once_both_end_well(
    server: Server, directory: Path, text: bytes
) -> None:
    server.pause = 0.05
    processes = [start_fetch(), start_fetch()]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert server.requests == [None]  # the second waited and found the file
    assert (directory / "mushrooms").read_bytes() == text
    assert files(directory) == {"mushrooms"}


def test_the_survivor_takes_over_from_a_killed_process(
    server: Server, directory: Path, text: bytes
) -> None:
    server.pause = 0.2
    victim = start_fetch()
    part = directory / "mushrooms.part"
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    survivor = start_fetch()
    time.sleep(0.5)
    victim.kill()
    victim.communicate()
    server.pause = 0.0
    _, err = survivor.communicate(timeout=60)
    assert survivor.returncode == 0, err
    assert (directory / "mushrooms").read_bytes() == text
