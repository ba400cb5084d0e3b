"""Servers, files and names that mean harm, or are merely odd: nothing of ours is misled by them."""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from file_server import Server, serving
from small_data import SMALL, TEXT
from targetopt.arrays import DamagedFile, read_arrays
from targetopt.errors import BadArgument
from targetopt.lab.cli.data import app
from targetopt.lab.data import DataError, DownloadError, fetch, load, locate
from targetopt.lab.data import transfer as transfer_module
from targetopt.lab.data.cache import read_parsed
from targetopt.lab.data.catalogue import LIBSVM
from targetopt.lab.data.parse import parse_text

LINES = b"1 1:1 2:0.5\n2 3:2\n1 1:3\n"
ENTRY = ("shape", "indptr", "indices", "values", "labels")
PARSED = parse_text(LINES, columns=3)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TARGETOPT_DATA", raising=False)
    monkeypatch.setattr(transfer_module, "_TIMEOUT", 5.0)
    (tmp_path / "cache" / "data").mkdir(parents=True)
    return tmp_path / "cache" / "data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(TEXT) as server:
        monkeypatch.setenv("TARGETOPT_DATA_URL", server.url)
        yield server


class TestPlanted:
    """What somebody put where a download will be written."""

    @pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
    @pytest.mark.parametrize("content", [b"", b"precious"])
    def test_links_are_not_followed(
        self, plant, content: bytes, server: Server, directory: Path, tmp_path: Path
    ) -> None:
        victim = tmp_path / "victim"
        victim.write_bytes(content)
        plant(directory / "small.part", victim)
        with pytest.raises(DownloadError, match=r"small\.part is a link .* remove it and fetch"):
            fetch(SMALL)
        assert victim.read_bytes() == content
        assert (directory / "small.part").samefile(victim)  # it was left alone
        assert not (directory / "small").exists()
        (directory / "small.part").unlink()
        assert fetch(SMALL).path.read_bytes() == TEXT

    def test_a_link_to_nowhere_makes_no_file_there(
        self, server: Server, directory: Path, tmp_path: Path
    ) -> None:
        (directory / "small.part").symlink_to(tmp_path / "new")
        with pytest.raises(DownloadError, match="is a link"):
            fetch(SMALL)
        assert not (tmp_path / "new").exists()

    def test_a_link_planted_while_the_server_answers_is_not_followed(
        self, server: Server, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        victim = tmp_path / "victim"
        victim.write_bytes(b"precious")
        looked = transfer_module._require_ordinary

        def plant_after(path: Path, found: os.stat_result | None = None) -> None:
            looked(path, found)
            if server.requests and found is None and not path.is_symlink():
                path.symlink_to(victim)  # between looking and opening

        monkeypatch.setattr(transfer_module, "_require_ordinary", plant_after)
        with pytest.raises(DownloadError):
            fetch(SMALL)
        assert victim.read_bytes() == b"precious"

    def test_a_pipe_is_refused_instead_of_waited_for(self, server: Server, directory: Path) -> None:
        os.mkfifo(directory / "small.part")
        with pytest.raises(DownloadError, match="no ordinary file"):
            fetch(SMALL)

    def test_the_note_beside_it_and_the_finished_file_replace_links(
        self, server: Server, directory: Path, tmp_path: Path
    ) -> None:
        victim = tmp_path / "victim"
        (directory / "small.part.json").symlink_to(victim)
        (directory / "small").symlink_to(victim)
        fetch(SMALL)
        assert not victim.exists()
        assert not (directory / "small").is_symlink()

    def test_a_linked_lock_is_an_error_that_names_it(
        self, server: Server, directory: Path, tmp_path: Path
    ) -> None:
        victim = tmp_path / "victim"
        victim.write_bytes(b"precious")
        (directory / ".small.lock").symlink_to(victim)
        with pytest.raises(DataError, match=r"cannot lock .*\.small\.lock"):
            fetch(SMALL)
        assert victim.read_bytes() == b"precious"

    @pytest.mark.parametrize(
        "note",
        [
            b"",
            b"[]",
            b"\xff",
            b"[" * 9999,
            b'{"url": 1}',
            json.dumps({"validator": "a\nb"}).encode(),
        ],
    )
    def test_a_damaged_note_of_the_version_only_costs_the_condition(
        self, note: bytes, server: Server, directory: Path
    ) -> None:
        url = f"{server.url}/small"
        (directory / "small.part").write_bytes(TEXT[:100_000])
        note = note.replace(b'{"validator"', b'{"url": "%s", "validator"' % url.encode())
        (directory / "small.part.json").write_bytes(note)
        assert fetch(SMALL).path.read_bytes() == TEXT
        assert server.requests == ["bytes=100000-"]


class TestServers:
    @pytest.mark.parametrize("target", ["ftp://127.0.0.1/small", "file:///etc/passwd", "data:,1"])
    def test_redirects_stay_with_http(self, target: str, server: Server) -> None:
        server.redirects = [target]
        with pytest.raises(DownloadError, match=r"[Rr]edirect.*not (followed|allowed)") as caught:
            fetch(SMALL)
        assert target in str(caught.value)
        assert server.requests == [None]  # refused once, not tried again

    def test_no_connection_is_made_to_an_ftp_server(self, server: Server) -> None:
        with serving(b"") as other:
            server.redirects = [other.url.replace("http:", "ftp:") + "/small"]
            with pytest.raises(DownloadError, match="it is no http: or https: address"):
                fetch(SMALL)
            assert other.connections == 0

    def test_a_redirect_within_http_is_followed(self, server: Server) -> None:
        server.redirects = ["/elsewhere/small", f"{server.url}/moved"]
        assert fetch(SMALL).path.read_bytes() == TEXT

    def test_an_encrypted_transfer_is_not_sent_into_the_open(self) -> None:
        with pytest.raises(DownloadError, match="it leaves the encrypted connection"):
            transfer_module._require_http("http://a/b", redirected_from="https://a/b")
        transfer_module._require_http("https://a/b", redirected_from="https://a/b")
        transfer_module._require_http("https://a/b", redirected_from="http://a/b")

    @pytest.mark.parametrize("mirror", ["ftp://a", "file:///tmp", "mirror", "http:", "http://ä/b"])
    def test_a_mirror_is_an_http_address(
        self, mirror: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TARGETOPT_DATA_URL", mirror)
        with pytest.raises(DownloadError, match="TARGETOPT_DATA_URL names a mirror by"):
            fetch(SMALL)

    @pytest.mark.parametrize(
        "announced",
        [
            ["-1"],
            ["many"],
            ["1_000"],
            ["1e3"],
            ["+9"],
            ["0x10"],
            ["9" * 5000],
            ["9" * 19],
            ["5", "7"],
        ],
    )
    def test_an_odd_content_length_is_named(self, announced: list[str], server: Server) -> None:
        server.announced = announced
        with pytest.raises(DownloadError, match=r"announces a content length of '.*TARGETOPT_DATA"):
            fetch(SMALL)

    def test_the_same_content_length_twice_is_one(self, server: Server) -> None:
        server.announced = [str(len(TEXT))] * 2
        assert fetch(SMALL).path.read_bytes() == TEXT

    def test_an_announced_length_that_never_arrives(self, server: Server) -> None:
        server.announced, server.ranges = [str(len(TEXT) + 1)], False
        with pytest.raises(DownloadError, match="the connection broke after"):
            fetch(SMALL)


class TestNames:
    @pytest.mark.parametrize(
        "stem", ["../small", "/etc/small", "..", ".hidden", "", "a/b", "a\\b", "a\nb", "a\0b", "ä"]
    )
    def test_a_stem_is_a_file_name(self, stem: str) -> None:
        with pytest.raises(BadArgument, match="must be the name of a file"):
            replace(SMALL, stem=stem)

    @pytest.mark.parametrize("end", ["..", "", "other", "small/..", "small.exe"])
    def test_an_address_ends_in_that_name(self, end: str) -> None:
        with pytest.raises(BadArgument, match="must end in one of the file names small, "):
            replace(SMALL, url=f"{LIBSVM}/{end}")

    @pytest.mark.parametrize("name", ["../mushrooms", "/etc/passwd", "mushrooms/../x", "\x1b[2J"])
    def test_names_on_the_command_line_are_of_the_catalogue(self, name: str) -> None:
        for command in ("fetch", "verify", "where"):
            result = CliRunner().invoke(app, [command, name])
            assert result.exit_code == 1
            assert f"Error: there is no data set {name!r}; choose one of" in result.output

    def test_brackets_in_a_path_are_no_markup(self, tmp_path: Path) -> None:
        path = tmp_path / "[bold]a[/nope]" / "mushrooms"
        path.parent.mkdir(parents=True)
        path.touch()
        result = CliRunner().invoke(app, ["list", "--data-dir", str(path.parent)])
        assert result.exit_code == 0, result.output
        assert str(path) in result.output


class TestPlaces:
    def test_a_tilde_is_the_home_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A quoted ``~`` reaches us as it is: in a service file, a notebook or a .env file."""
        (tmp_path / "libsvm").mkdir()
        (tmp_path / "libsvm" / "small").write_bytes(TEXT)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert locate(SMALL, Path("~/libsvm")) == tmp_path / "libsvm" / "small"
        monkeypatch.setenv("TARGETOPT_DATA", "~/libsvm")
        monkeypatch.setenv("TARGETOPT_CACHE", "~/kept")
        assert load(SMALL).path == tmp_path / "libsvm" / "small"
        assert list((tmp_path / "kept" / "parsed").iterdir())
        assert not (tmp_path / "~").exists()
        result = CliRunner().invoke(app, ["where"])
        assert result.output.split() == [str(tmp_path / "libsvm"), str(tmp_path / "kept" / "data")]

    @pytest.mark.parametrize("variable", ["TARGETOPT_DATA", "TARGETOPT_CACHE"])
    def test_the_home_of_nobody(self, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variable, "~nobody-of-this-name/data")
        for command in ("list", "where", "verify", "fetch"):
            result = CliRunner().invoke(app, [command])
            assert result.exit_code == 1
            assert f"{variable} names '~nobody-of-this-name/data'" in result.output
            assert isinstance(result.exception, SystemExit)

    def test_a_file_that_cannot_be_read_is_kept(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (directory / "small").write_bytes(TEXT)

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("targetopt.lab.data.store.read_parsed", refuse)
        with pytest.raises(DataError, match=r"small cannot be read \(Permission denied\)"):
            load(SMALL)
        assert (directory / "small").exists()

    def test_a_locale_without_our_letters(self, directory: Path) -> None:
        """The table has × and the path has ö; neither may end in a traceback."""
        (directory / "ö").mkdir()
        (directory / "ö" / "mushrooms").touch()
        locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
        ran = subprocess.run(
            [sys.executable, "-m", "targetopt", "data", "list", "--data-dir", directory / "ö"],
            capture_output=True,
            env={**os.environ, **locale, "PYTHONIOENCODING": "ascii"},
        )
        assert ran.returncode == 0, ran.stderr
        assert b"8124 ? 112" in ran.stdout
        assert b"/mushrooms" in ran.stdout


def entry_of(path: Path) -> Path:
    """The cache entry of a file that was read."""
    read_parsed(path, columns=3, limit=1000)
    (entry,) = (Path(os.environ["TARGETOPT_CACHE"]) / "parsed").iterdir()
    return entry


def digest(arrays: dict[str, np.ndarray]) -> str:
    """The fingerprint that belongs to these arrays, as whoever plants them would write it."""
    hashed = hashlib.sha256()
    types = {"shape": "<i8", "indptr": "<i8", "indices": "<i4", "values": "<f8", "labels": "<f8"}
    with contextlib.suppress(ValueError), np.errstate(invalid="ignore"):
        for name, kind in types.items():
            hashed.update(arrays[name].astype(kind).tobytes())
    return hashed.hexdigest()


class TestEntries:
    """Parsed files in the cache, which anybody with access to it may have changed."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "tiny"
        path.write_bytes(LINES)
        return path

    def test_whatever_is_damaged_is_parsed_anew(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A bit of every byte, and cuts all along."""
        entry = entry_of(path)
        assert digest(read_arrays(entry, ENTRY)) == PARSED.fingerprint
        monkeypatch.setattr("os.fsync", lambda _: None)  # each time it is written again
        good = entry.read_bytes()
        rng = np.random.default_rng(0)
        bad = [good[:at] for at in range(0, len(good), 7)]
        for at in range(len(good)):
            bit = 1 << rng.integers(8)
            bad.append(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
        for content in bad:
            entry.write_bytes(content)
            found = read_parsed(path, columns=3, limit=1000)
            assert found.fingerprint == PARSED.fingerprint
            assert found.is_canonical()

    @pytest.mark.parametrize(
        "change",
        [
            {"indices": np.array([0, 1, 99, 0], np.int32)},  # a kernel would write there
            {"indices": np.array([0, 1, -9, 0], np.int32)},
            {"indices": np.array([1, 0, 2, 0], np.int32)},
            {"indices": np.array([0, 1, 2, 0], np.int64)},
            {"indptr": np.array([0, 2, 9, 4], np.int32)},
            {"indptr": np.array([0, 2, 3, 400], np.int32)},
            {"indptr": np.array([0, 2, 3, 3], np.int32)},
            {"indptr": np.array([0.0, 2.0, 3.0, 4.0])},
            {"values": np.array([1.0, np.nan, 2.0, 3.0])},
            {"values": np.array([1.0, 0.0, 2.0, 3.0])},
            {"values": np.array([1.0, 0.5, 2.0, 3.0], np.float32)},
            {"values": np.array(["a", "b", "c", "d"])},
            {"labels": np.array([1.0, 2.0])},
            {"labels": np.array([1.0, np.inf, 1.0])},
            {"shape": np.array([3, 4])},
            {"shape": np.array([3])},
            {"shape": np.array([-3, 3])},
            {"shape": np.array([3.5, 3.0]) * np.inf},
        ],
        ids=lambda change: f"{next(iter(change))}-{next(iter(change.values())).tolist()}",
    )
    def test_an_entry_made_to_do_harm_is_not_used(self, change: dict, path: Path) -> None:
        entry = entry_of(path)
        arrays = {
            **read_arrays(entry, ENTRY),
            **change,
        }
        with entry.open("wb") as file:
            np.savez(file, **arrays, fingerprint=np.array(digest(arrays)))
        found = read_parsed(path, columns=3, limit=1000)
        assert found.fingerprint == PARSED.fingerprint
        assert found.is_canonical()


class TestArrays:
    """The reader of array files itself."""

    def stored(self, path: Path, content: bytes, **how: int) -> Path:
        with zipfile.ZipFile(path, "w", **how) as archive:
            archive.writestr("a.npy", content)
        return path

    def test_it_reads_what_numpy_wrote(self, tmp_path: Path) -> None:
        arrays = {
            "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "scalar": np.array(3),
            "text": np.array("θ"),
            "none": np.zeros((0, 4)),
            "flags": np.array([True, False]),
        }
        np.savez(tmp_path / "a.npz", **arrays)
        for name, found in read_arrays(tmp_path / "a.npz", arrays).items():
            np.testing.assert_array_equal(found, arrays[name])
            assert (found.dtype, found.flags.writeable) == (arrays[name].dtype, True)

    def test_a_pickle_is_never_opened(self, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple:
                return (Path.touch, (tmp_path / "sprung",))

        buffer = io.BytesIO()
        np.save(buffer, np.array([Trap()], dtype=object), allow_pickle=True)
        with pytest.raises(DamagedFile):
            read_arrays(self.stored(tmp_path / "a.npz", buffer.getvalue()), ["a"])
        assert not (tmp_path / "sprung").exists()

    def test_a_bomb_is_not_unfolded(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(10**7))
        path = tmp_path / "a.npz"
        self.stored(path, buffer.getvalue(), compression=zipfile.ZIP_DEFLATED)
        assert path.stat().st_size < 100_000
        with pytest.raises(DamagedFile, match="compressed"):
            read_arrays(path, ["a"])

    def test_a_header_that_promises_more_than_there_is(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)}
        )
        with pytest.raises(DamagedFile, match="holds 16 bytes, not float64 of the shape"):
            read_arrays(self.stored(tmp_path / "a.npz", buffer.getvalue() + bytes(16)), ["a"])

    def test_a_missing_file_or_array(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_arrays(tmp_path / "none", ["a"])
        np.savez(tmp_path / "a.npz", a=1)
        with pytest.raises(DamagedFile, match=r"b\.npy"):
            read_arrays(tmp_path / "a.npz", ["b"])
