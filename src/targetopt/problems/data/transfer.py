"""One HTTP download that survives broken connections, dead processes and changed files."""

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from targetopt.problems.data.errors import DownloadError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived and the total, None where the server does not tell."""

_CHUNK = 1 << 16
_TIMEOUT = 20.0
_FRUITLESS_ATTEMPTS = 3


def download(url: str, part: Path, *, limit: int, progress: Progress) -> None:
    """Bring `part` to the complete content of `url`, continuing from whatever it holds.

    Bytes go straight into `part`, so a process that dies loses nothing. A continued transfer
    asks for the rest only of the *same* version (``If-Range`` with the ETag or date kept beside
    it); a server that has another version, or no ranges, sends the whole and we start over. A
    connection that breaks is tried again until three attempts in a row bring no new byte.

    Args:
        url: what to download.
        part: the file to fill; the caller renames it once it is verified.
        limit: the most bytes that are accepted.
        progress: told of every chunk.
    """
    fruitless = 0
    while True:
        before = _size(part)
        try:
            _continue(url, part, limit=limit, progress=progress)
            _validator_path(part).unlink(missing_ok=True)
            return
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                if error.headers.get("Content-Range") == f"bytes */{before}":
                    return  # nothing was missing: an earlier process died after the last byte
                discard(part)  # longer than what the server has: of another version
                continue
            if error.code < 500:
                raise DownloadError(f"{url}: the server says {error}.") from None
            reason = f"the server says {error}"
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and not _is_of_network(error):
                raise DownloadError(f"{url}: cannot write {part} ({error.strerror}).") from error
            reason = str(error) or type(error).__name__
        fruitless = fruitless + 1 if _size(part) <= before else 0
        if fruitless == _FRUITLESS_ATTEMPTS:
            raise DownloadError(
                f"{url}: {reason}. {_size(part):,} bytes are kept; the next fetch continues there."
            )
        time.sleep(0.2 * 2**fruitless)


def discard(part: Path) -> None:
    """Forget an unfinished transfer."""
    part.unlink(missing_ok=True)
    _validator_path(part).unlink(missing_ok=True)


def _continue(url: str, part: Path, *, limit: int, progress: Progress) -> None:
    """One request: append the missing rest, or start over where the server sends everything."""
    offset = _size(part)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        if validator := _read_validator(part, url):
            request.add_header("If-Range", validator)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            discard(part)
            raise http.client.HTTPException("the server sent another range than it was asked for")
        offset = offset if resumed else 0
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length else None
        if (total or 0) > limit:
            raise _too_long(url, limit)
        with part.open("r+b" if resumed else "wb") as file:
            if not resumed:
                _write_validator(part, url, response.headers)
            file.seek(offset)
            progress(offset, total)
            while chunk := response.read(_CHUNK):
                offset += len(chunk)
                if offset > limit:
                    discard(part)
                    raise _too_long(url, limit)
                file.write(chunk)
                file.flush()
                progress(offset, total)
            os.fsync(file.fileno())
    if total is not None and offset < total:
        raise ConnectionError(f"the connection broke after {offset:,} of {total:,} bytes")


def _is_of_network(error: OSError) -> bool:
    network = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError)
    return isinstance(error, network)


def _too_long(url: str, limit: int) -> DownloadError:
    return DownloadError(f"{url}: longer than {limit:,} bytes, so not the file that is meant.")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _validator_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _write_validator(part: Path, url: str, headers: http.client.HTTPMessage) -> None:
    etag = headers.get("ETag", "")
    strong = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    _validator_path(part).write_text(json.dumps({"url": url, "validator": strong}))


def _read_validator(part: Path, url: str) -> str | None:
    try:
        kept = json.loads(_validator_path(part).read_text())
    except (OSError, ValueError):
        return None
    return kept["validator"] if kept.get("url") == url else None
