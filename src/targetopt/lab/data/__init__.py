"""LIBSVM data sets: found or downloaded, verified, parsed fast and cached.

See ``docs/data.md`` for the look-up order and what is verified.
"""

from targetopt.lab.data.catalogue import CATALOGUE, Dataset, find
from targetopt.lab.data.errors import (
    DataError,
    DownloadError,
    MismatchError,
    MissingError,
    ParseError,
)
from targetopt.lab.data.matrix import LabelledMatrix
from targetopt.lab.data.store import Loaded, fetch, load, locate, read_verified

__all__ = [
    "CATALOGUE",
    "DataError",
    "Dataset",
    "DownloadError",
    "LabelledMatrix",
    "Loaded",
    "MismatchError",
    "MissingError",
    "ParseError",
    "fetch",
    "find",
    "load",
    "locate",
    "read_verified",
]
