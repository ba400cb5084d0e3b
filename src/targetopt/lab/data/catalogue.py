"""The data sets this project knows, and what a file must contain to be believed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from targetopt.errors import BadArgument
from targetopt.lab.data.errors import MismatchError
from targetopt.lab.data.matrix import LabelledMatrix

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
"""Where LIBSVM publishes its binary classification data sets."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_BYTES_PER_NUMBER = 40  # '12345678:-1.2345678901234567e-100 ' and a little more


@dataclass(frozen=True)
class Dataset:
    """One data set: where it comes from and how to recognise it.

    `fingerprint` is :attr:`LabelledMatrix.fingerprint` of the true content; None where nobody of
    this project has seen the true file, in which case only the counts are verified.
    """

    name: str
    label: str
    stem: str
    url: str | None
    rows: int
    columns: int
    nonzeros: int
    label_counts: Mapping[float, int]
    fingerprint: str | None
    stand_in: str

    def __post_init__(self) -> None:
        """Names become files, so they may not lead out of the directory that is meant."""
        if not _FILE_NAME.fullmatch(self.stem):
            raise BadArgument(
                f"stem={self.stem!r} must be the name of a file: letters, digits, and . _ + - after "
                "the first; no directories"
            )
        if self.url is not None and self.url.rsplit("/", 1)[-1] not in self.file_names:
            raise BadArgument(
                f"url={self.url!r} must end in one of the file names {', '.join(self.file_names)}, "
                "or a download would not be found again"
            )

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names under which a data directory may hold it."""
        return tuple(self.stem + suffix for suffix in ("", ".bz2", ".xz", ".gz"))

    @property
    def text_limit(self) -> int:
        """The most bytes of text that can spell this many numbers."""
        return _BYTES_PER_NUMBER * (self.nonzeros + self.rows)

    def verify(self, data: LabelledMatrix, source: str) -> None:
        """Raise :class:`MismatchError`, naming what differs, unless `data` is this data set."""
        facts: list[tuple[str, object, object]] = [
            ("rows", self.rows, data.X.shape[0]),
            ("columns", self.columns, data.X.shape[1]),
            ("non-zeros", self.nonzeros, data.X.nnz),
            ("label counts", dict(self.label_counts), data.label_counts),
        ]
        if self.fingerprint is not None:
            facts.append(("content fingerprint", self.fingerprint, data.fingerprint))
        wrong = [f"{what} {got}, expected {want}" for what, want, got in facts if want != got]
        if wrong:
            raise MismatchError(f"{source} is not {self.label}: {'; '.join(wrong)}.")

    def signs(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """The labels as ±1: the larger of the data set's two labels is +1, the smaller −1."""
        return np.where(labels == max(self.label_counts), 1.0, -1.0)


_ALL = (
    Dataset(
        name="mushrooms",
        label="mushrooms",
        stem="mushrooms",
        url=f"{LIBSVM}/mushrooms",
        rows=8124,
        columns=112,
        nonzeros=170_604,
        label_counts={1.0: 3916, 2.0: 4208},
        fingerprint="12425948945d4b54180001fe03d70d545777947ea7527ac348102c0441b76de2",
        stand_in="synthetic-mushrooms",
    ),
    Dataset(
        name="ijcnn1",
        label="ijcnn1",
        stem="ijcnn1.tr",
        url=f"{LIBSVM}/ijcnn1.tr.bz2",
        rows=35_000,
        columns=22,
        nonzeros=454_999,
        label_counts={-1.0: 31_585, 1.0: 3415},
        fingerprint="1bff02ba0ef2777b9d665bc70059cfe2b84f81d556e0d629426ae3190fdddd87",
        stand_in="synthetic-ijcnn1",
    ),
    Dataset(
        name="rcv1",
        label="rcv1",
        stem="rcv1_train.binary",
        url=f"{LIBSVM}/rcv1_train.binary.bz2",
        rows=20_242,
        columns=47_236,
        nonzeros=1_498_952,
        label_counts={-1.0: 9751, 1.0: 10_491},
        fingerprint=None,  # the true file was never at hand: shape, non-zeros and labels only
        stand_in="synthetic-rcv1",
    ),
    Dataset(
        name="rcv1-v2-subset",
        label="RCV1-v2 subset",
        stem="rcv1_like_20242.binary",
        url=None,
        rows=20_242,
        columns=47_236,
        nonzeros=1_520_304,
        label_counts={-1.0: 10_151, 1.0: 10_091},
        fingerprint="8720cbccf830924fa51b6d595ebd510dfe431db38a3bc8711281b5816ee99460",
        stand_in="synthetic-rcv1",
    ),
)
CATALOGUE: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def find(name: str) -> Dataset:
    """The data set of that name.

    Example:
        >>> find("mushrooms").rows
        8124
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        known = ", ".join(CATALOGUE)
        raise BadArgument(f"there is no data set {name!r}; choose one of: {known}") from None
