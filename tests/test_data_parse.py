"""LIBSVM text: right answers on right text, the right line on wrong text."""

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from small_data import SMALL, TEXT
from targetopt.lab.data import LabelledMatrix, ParseError, find
from targetopt.lab.data.parse import _parse_clean, _parse_lines, parse_text, read_text

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 5e-324])
spellings = st.sampled_from(["{!r}", "{:.17g}", "{:+.17e}"])


@st.composite
def tables(draw: st.DrawFn) -> tuple[bytes, np.ndarray, list[float]]:
    """Text in any legal spelling, and the matrix and labels that it means."""
    columns = draw(st.integers(1, 12))
    rows = draw(st.lists(st.dictionaries(st.integers(1, columns), numbers), min_size=1, max_size=8))
    labels = [draw(numbers) for _ in rows]
    dense = np.zeros((len(rows), columns))
    lines = []
    for i, (label, row) in enumerate(zip(labels, rows, strict=True)):
        fields = [draw(spellings).format(label)]
        for index in sorted(row):
            dense[i, index - 1] = row[index]
            fields.append(f"{index}:{draw(spellings).format(row[index])}")
        gap = draw(st.sampled_from([" ", "  ", "\t"]))
        lines.append(gap.join(fields) + draw(st.sampled_from(["", " "])))
    text = draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))
    return text.encode(), dense, labels


@given(tables())
def test_every_spelling_gives_the_exact_numbers(table: tuple[bytes, np.ndarray, list]) -> None:
    text, dense, labels = table
    data = parse_text(text, columns=dense.shape[1])
    np.testing.assert_array_equal(data.X.toarray(), dense)
    np.testing.assert_array_equal(data.labels, labels)
    assert data.X.nnz == np.count_nonzero(dense)
    assert data.X.has_canonical_format


@given(tables())
def test_the_fast_path_takes_all_legal_text_and_agrees_with_the_slow_one(table: tuple) -> None:
    text, dense, _ = table
    fast = _parse_clean(text, dense.shape[1])
    assert fast is not None
    assert fast.fingerprint == _parse_lines(text, dense.shape[1], "t").fingerprint


@given(st.text(alphabet="01259:.-+en \n\tx", max_size=40))
def test_the_two_paths_accept_the_same_texts(text: str) -> None:
    raw = text.encode()
    fast = _parse_clean(raw, 9)
    try:
        slow = _parse_lines(raw, 9, "t")
    except ParseError:
        assert fast is None
    else:
        assert fast is None or fast.fingerprint == slow.fingerprint


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (b"1 1:1\n1 3:1 2:1\n", 2, "index 2 follows 3; they must increase"),
        (b"1 1:1\n1 2:1 2:1\n", 2, "index 2 follows 2"),
        (b"1 1:1\n-1 1:x\n", 2, "value 'x' of index 1 is not a number"),
        (b"1 1:1\n-1 1:nan\n", 2, "value 'nan' of index 1 is not a number"),
        (b"1 1:1\n-1 1:1e999\n", 2, "value '1e999' of index 1 is not a number"),
        (b"yes 1:1\n", 1, "label 'yes' is not a number"),
        (b"1:1 2:1\n", 1, "label '1:1' is not a number"),
        (b"1 1:1\n\n1 1:1\n", 2, "empty"),
        (b"1 1:1\n1 4:1\n", 2, "index 4 is outside 1..3"),
        (b"1 0:1\n", 1, "index 0 is outside 1..3"),
        (b"1 1:1 5\n", 1, "'5' is not 'index:value'"),
        (b"1 1:1 2:\n", 1, "value '' of index 2 is not a number"),
        (b"1 1.5:1\n", 1, "index '1.5' is not a whole number"),
        (b"1 1:1\n1 \xff\xfe:1\n", 2, "index '\\\\xff\\\\xfe' is not a whole number"),
        (b"1 1:1 :2\n", 1, "index '' is not a whole number"),
        (b"1 1:2:3\n", 1, "value '2:3' of index 1 is not a number"),
    ],
)
def test_a_flaw_is_reported_with_its_line(text: bytes, line: int, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_text(text, columns=3, source="my.file")
    assert str(caught.value).startswith(f"my.file, line {line}: ")
    assert reason in str(caught.value)


def test_no_line_at_all_is_an_error() -> None:
    with pytest.raises(ParseError, match=r"t: empty, there is no line in it"):
        parse_text(b"", columns=3, source="t")


@pytest.mark.parametrize("compress", [bytes, bz2.compress, gzip.compress, lzma.compress])
def test_compression_is_recognised_by_content(compress, tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(compress(b"1 1:1\n" * 1000))
    assert read_text(path, limit=6000) == b"1 1:1\n" * 1000


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_a_cut_file_is_called_truncated(compress, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = b"".join(b"1 1:%r\n" % float(v) for v in rng.standard_normal(60_000))
    whole = compress(text)
    path = tmp_path / "cut"
    path.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(ParseError, match=r"truncated, the compressed stream ends after line \d+"):
        read_text(path, limit=len(text))


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_a_file_with_a_flipped_bit_is_called_damaged(compress, tmp_path: Path) -> None:
    whole = bytearray(compress(b"".join(b"1 1:%d\n" % i for i in range(50_000))))
    whole[len(whole) // 2] ^= 0x10
    path = tmp_path / "flipped"
    path.write_bytes(whole)
    with pytest.raises(ParseError, match=r"damaged|truncated"):
        read_text(path, limit=10**7)


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_a_bomb_stops_at_the_limit(compress, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(compress(bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    with pytest.raises(ParseError, match=r"unfolds to more than 1,000,000 bytes"):
        read_text(path, limit=1_000_000)


def test_the_fingerprint_is_of_the_content_alone() -> None:
    plain = parse_text(b"1 1:1 2:0.5\n2 3:0\n", columns=3)
    other = parse_text(b"+1.0  1:1e0\t2:5e-1\r\n2.0 ", columns=3)
    assert plain.fingerprint == other.fingerprint
    for changed in (b"1 1:1 2:0.5\n1\n", b"1 1:1 3:0.5\n2\n", b"2\n1 1:1 2:0.5\n"):
        assert parse_text(changed, columns=3).fingerprint != plain.fingerprint
    assert parse_text(b"1 1:1 2:0.5\n2\n", columns=4).fingerprint != plain.fingerprint


def test_canonical_form_sorts_merges_and_drops_zeros() -> None:
    messy = sp.csr_array(([1.0, 2.0, 0.0, 3.0], [2, 0, 1, 2], [0, 4]), shape=(1, 3))
    data = LabelledMatrix.canonical(messy, [1])
    assert data.X.indices.tolist() == [0, 2]
    assert data.X.data.tolist() == [2.0, 4.0]


def test_a_file_agrees_with_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "small.bz2"
    path.write_bytes(bz2.compress(TEXT))
    data = parse_text(read_text(path, limit=SMALL.text_limit), columns=SMALL.columns)
    X, y = load_svmlight_file(str(path), n_features=SMALL.columns, dtype=np.float64)
    assert data.fingerprint == LabelledMatrix.canonical(sp.csr_array(X), y).fingerprint


@pytest.mark.parametrize(
    "name", ["mushrooms", "ijcnn1", pytest.param("rcv1-v2-subset", marks=pytest.mark.slow)]
)
def test_real_files_agree_with_scikit_learn(name: str, real_data) -> None:
    dataset, path = find(name), real_data(name)
    data = parse_text(read_text(path, limit=dataset.text_limit), columns=dataset.columns)
    X, y = load_svmlight_file(str(path), n_features=dataset.columns, dtype=np.float64)
    other = LabelledMatrix.canonical(sp.csr_array(X), y)
    assert data.fingerprint == other.fingerprint == dataset.fingerprint
