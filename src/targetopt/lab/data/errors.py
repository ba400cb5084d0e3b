"""What can go wrong with a data set."""

from targetopt.errors import TargetoptError


class DataError(TargetoptError, RuntimeError):
    """A data set cannot be had, read or trusted; the message says which, why and what to do."""


class ParseError(DataError):
    """A file is not LIBSVM text; the message names the file and, where there is one, the line."""


class MismatchError(DataError):
    """A file can be read, but is not the data set that it is named after."""


class MissingError(DataError):
    """A data set is in no directory and cannot be downloaded."""


class DownloadError(DataError):
    """A transfer failed; what has arrived is kept, and the next attempt continues from there."""
