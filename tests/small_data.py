"""A small data set of the tests' own, so that fetching and reading need no real one."""

import numpy as np

from targetopt.lab.data import CATALOGUE, Dataset
from targetopt.lab.data.catalogue import LIBSVM
from targetopt.lab.data.parse import parse_text

ROWS, COLUMNS, NONZEROS_PER_ROW = 8000, 112, 20


def _text() -> bytes:
    """About 700 kB: large enough for a transfer to break in its midst."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.random((ROWS, COLUMNS)).argsort(axis=1)[:, :NONZEROS_PER_ROW] + 1, axis=1)
    lines = (
        f"{1 + row % 2} " + " ".join(f"{column}:1" for column in chosen)
        for row, chosen in enumerate(columns)
    )
    return "\n".join(lines).encode() + b"\n"


TEXT = _text()
SMALL = Dataset(
    name="small",
    label="Small",
    stem="small",
    url=f"{LIBSVM}/small",
    rows=ROWS,
    columns=COLUMNS,
    nonzeros=ROWS * NONZEROS_PER_ROW,
    label_counts={1.0: ROWS // 2, 2.0: ROWS // 2},
    fingerprint=parse_text(TEXT, columns=COLUMNS).fingerprint,
    stand_in="synthetic-small",
)


def command() -> None:
    """``targetopt data`` in a process that knows the small data set as well."""
    from targetopt.lab.cli.data import app

    CATALOGUE["small"] = SMALL  # type: ignore[index]  # a dictionary; only tests write to it
    app()


if __name__ == "__main__":
    command()
