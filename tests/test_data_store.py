"""Look-up, verification, the binary cache, and what happens to wrong files."""

import bz2
import gzip
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from targetopt.lab.data import (
    CATALOGUE,
    DataError,
    Dataset,
    MismatchError,
    MissingError,
    ParseError,
    fetch,
    find,
    load,
    locate,
)
from targetopt.lab.data.cache import read_parsed
from targetopt.lab.data.catalogue import LIBSVM
from targetopt.lab.data.parse import parse_text

TEXT = b"1 1:1 2:0.5\n2 3:2\n1 1:3\n"
DATA = parse_text(TEXT, columns=3)
TINY = Dataset(
    name="tiny",
    label="Tiny",
    stem="tiny.tr",
    url=f"{LIBSVM}/tiny.tr",
    rows=3,
    columns=3,
    nonzeros=4,
    label_counts={1.0: 2, 2.0: 1},
    fingerprint=DATA.fingerprint,
    stand_in="synthetic-tiny",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TARGETOPT_DATA", raising=False)
    # a closed port: whoever downloads by accident fails at once
    monkeypatch.setenv("TARGETOPT_DATA_URL", "http://127.0.0.1:9")


def put(directory: Path, content: bytes, name: str = "tiny.tr") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)
    return directory / name


def test_look_up_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = put(tmp_path / "cache" / "data", TEXT)
    assert load(TINY).path == cached
    by_environment = put(tmp_path / "env", TEXT)
    monkeypatch.setenv("TARGETOPT_DATA", str(tmp_path / "env"))
    assert load(TINY).path == by_environment
    by_argument = put(tmp_path / "arg", bz2.compress(TEXT), "tiny.tr.bz2")
    assert load(TINY, data_dir=tmp_path / "arg").path == by_argument
    assert load(TINY, data_dir=tmp_path / "nothing-here").path == cached


def test_the_larger_label_is_plus_one(tmp_path: Path) -> None:
    put(tmp_path, TEXT)
    loaded = load(TINY, data_dir=tmp_path)
    assert TINY.signs(loaded.data.labels).tolist() == [-1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"1 1:1 2:0.5\n2 3:2\n", MismatchError, "rows 2, expected 3"),
        (b"1 1:1 2:0.5\n2 3:2\n1 1:0\n", MismatchError, "non-zeros 3, expected 4"),
        (b"2 1:1 2:0.5\n2 3:2\n1 1:3\n", MismatchError, "label counts"),
        (b"1 1:1 2:0.5\n-1 3:2\n1 1:3\n", MismatchError, "label counts"),
        (b"1 1:1 2:0.25\n2 3:2\n1 1:3\n", MismatchError, "content fingerprint"),
        (b"1 1:3\n2 3:2\n1 1:1 2:0.5\n", MismatchError, "content fingerprint"),
        (b"1 1:1 2:0.5\n2 3:2\n1 4:3\n", ParseError, "line 3: index 4 is outside 1..3"),
        (b"1 2:1 1:0.5\n2 3:2\n1 1:3\n", ParseError, "line 1: index 1 follows 2"),
        (b"<html>404</html>", ParseError, "line 1: label '<html>404</html>' is not a number"),
        (bz2.compress(TEXT)[:-6], ParseError, "truncated"),
        (gzip.compress(bytes(10_000_000)), ParseError, "unfolds to more than 280 bytes"),
    ],
)
def test_a_file_that_is_something_else_is_set_aside(
    content: bytes, error: type[DataError], message: str, tmp_path: Path
) -> None:
    path = put(tmp_path, content)
    with pytest.raises(error) as caught:
        load(TINY, data_dir=tmp_path)
    assert message in str(caught.value)
    assert "tiny.tr.rejected" in str(caught.value)
    assert not path.exists()
    assert (tmp_path / "tiny.tr.rejected").read_bytes() == content
    assert locate(TINY, tmp_path) is None  # set aside means never found again


def test_missing_data_says_how_to_get_it_and_what_runs_now(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        load(TINY, data_dir=tmp_path / "mine")
    message = str(caught.value)
    for part in (
        "targetopt data fetch tiny",
        TINY.url,
        "TARGETOPT_DATA",
        str(tmp_path / "mine"),
        str(tmp_path / "cache" / "data"),
        "'synthetic-tiny' runs now",
    ):
        assert part in message
    with pytest.raises(MissingError, match="cannot be downloaded"):
        fetch(replace(TINY, url=None))


def test_parsing_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, TEXT)
    first = load(TINY, data_dir=tmp_path)
    monkeypatch.setattr("targetopt.lab.data.cache.parse_text", None)  # may not be called
    second = load(TINY, data_dir=tmp_path)
    assert second.data.fingerprint == first.data.fingerprint
    np.testing.assert_array_equal(second.data.X.toarray(), first.data.X.toarray())


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    path = put(tmp_path, TEXT)
    read_parsed(path, columns=3, limit=1000)
    path.write_bytes(TEXT.replace(b"0.5", b"0.7"))
    assert read_parsed(path, columns=3, limit=1000).X[0, 1] == 0.7


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_cache_entry_is_replaced(damage: str, tmp_path: Path) -> None:
    path = put(tmp_path, TEXT)
    read_parsed(path, columns=3, limit=1000)
    (entry,) = (tmp_path / "cache" / "parsed").iterdir()
    good = entry.read_bytes()
    at = good.index(np.float64(0.5).tobytes())  # the stored matrix itself
    bad = {"cut": good[:-50], "flip": good[:at] + b"\x01" + good[at + 1 :], "empty": b""}[damage]
    entry.write_bytes(bad)
    assert read_parsed(path, columns=3, limit=1000).fingerprint == DATA.fingerprint
    assert entry.read_bytes() == good


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "data", TEXT)
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("TARGETOPT_CACHE", str(tmp_path / "a-file" / "below"))
    loaded = load(TINY, data_dir=tmp_path / "data")
    assert loaded.data.fingerprint == TINY.fingerprint
    with pytest.raises(DataError, match=r"can be written: .*Name one with --data-dir"):
        fetch(replace(TINY, stem="other", url=f"{LIBSVM}/other"), data_dir=tmp_path / "a-file")


def _load_repeatedly(directory: Path, times: int) -> list[str]:
    return [load(TINY, data_dir=directory).data.fingerprint for _ in range(times)]


def test_concurrent_readers_and_writers_of_one_cache(tmp_path: Path) -> None:
    put(tmp_path, TEXT)
    parsed = tmp_path / "cache" / "parsed"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pending = [pool.apply_async(_load_repeatedly, (tmp_path, 60)) for _ in range(4)]
        for _ in range(30):  # keep them writing: take the entry away again and again
            shutil.rmtree(parsed, ignore_errors=True)
        found = {fingerprint for result in pending for fingerprint in result.get(60)}
    assert found == {TINY.fingerprint}
    assert not list(parsed.glob(".*.tmp"))


def test_the_catalogue_is_honest() -> None:
    assert find("rcv1").fingerprint is None
    assert find("rcv1-v2-subset").label == "RCV1-v2 subset"
    assert find("rcv1-v2-subset").url is None
    assert set(find("rcv1").file_names).isdisjoint(find("rcv1-v2-subset").file_names)
    for dataset in CATALOGUE.values():
        assert sum(dataset.label_counts.values()) == dataset.rows
    with pytest.raises(ValueError, match=r"no data set 'mnist'; choose one of: mushrooms, "):
        find("mnist")


@pytest.mark.parametrize(
    "name", ["mushrooms", "ijcnn1", pytest.param("rcv1-v2-subset", marks=pytest.mark.slow)]
)
def test_a_directory_of_real_files_is_a_data_directory(name: str, real_data) -> None:
    path = real_data(name)
    loaded = load(find(name), data_dir=path.parent)
    assert loaded.path == path
    assert loaded.data.X.shape == (loaded.dataset.rows, loaded.dataset.columns)


def test_the_subset_never_answers_for_rcv1(real_data, tmp_path: Path) -> None:
    source = real_data("rcv1-v2-subset")
    assert locate(find("rcv1"), source.parent) is None
    shutil.copy(source, tmp_path / "rcv1_train.binary.bz2")
    with pytest.raises(MismatchError, match="non-zeros 1520304, expected 1498952"):
        load(find("rcv1"), data_dir=tmp_path)
