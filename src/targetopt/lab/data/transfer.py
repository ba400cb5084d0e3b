"""One HTTP download that survives broken connections, dead processes and changed files."""

import http.client
import json
import os
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from targetopt.files import write_atomically
from targetopt.lab.data.errors import DownloadError

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

    Only ``http:`` and ``https:`` are spoken, also where a server redirects to, and a transfer that
    began with ``https:`` stays there. `part` must be an ordinary file of ours: links are not followed.

    Args:
        url: what to download.
        part: the file to fill; the caller renames it once it is verified.
        limit: the most bytes that are accepted.
        progress: told of every chunk.
    """
    _require_http(url)
    fruitless = 0
    while True:
        before = _size(part)
        try:
            _continue(url, part, limit=limit, progress=progress)
            _validator_path(part).unlink(missing_ok=True)
            return
        except urllib.error.HTTPError as error:
            error.close()
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
    with _OPENER.open(request, timeout=_TIMEOUT) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            discard(part)
            raise http.client.HTTPException("the server sent another range than it was asked for")
        offset = offset if resumed else 0
        length = _announced_length(url, response.headers)
        total = None if length is None else offset + length
        if (total or 0) > limit:
            raise _too_long(url, limit)
        with _open_own(part) as file:
            if not resumed:
                file.truncate(0)
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


def _announced_length(url: str, headers: http.client.HTTPMessage) -> int | None:
    """How many bytes the body will have; None where the server does not tell."""
    if "Transfer-Encoding" in headers:  # the body then says itself where it ends
        return None
    lengths = {value.strip() for value in headers.get_all("Content-Length", [])}
    if not lengths:
        return None
    length = lengths.pop()
    # eighteen digits are more than any disk holds, and fewer than Python refuses to read
    if lengths or not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise DownloadError(
            f"{url}: the server announces a content length of {length[:40]!r}, which is no number of bytes, or "
            "several that differ. Name another mirror in TARGETOPT_DATA_URL, or download the file by "
            "other means and put it into a directory named by --data-dir or TARGETOPT_DATA."
        )
    return int(length)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but to no other protocol."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            _require_http(newurl, redirected_from=req.full_url)
        except DownloadError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """What fetches: HTTP and HTTPS through the user's proxies; no ``ftp:``, ``file:`` or ``data:``."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


_OPENER = _opener()


def _require_http(url: str, redirected_from: str | None = None) -> None:
    parts = urlsplit(url)
    why = None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = "it is no http: or https: address"
    elif not url.isascii():
        why = "it has letters beyond ASCII, which an address spells as %XX"
    elif redirected_from is not None and redirected_from.startswith("https:"):
        why = None if parts.scheme == "https" else "it leaves the encrypted connection"
    if why is not None and redirected_from is None:
        raise DownloadError(
            f"cannot download from {url!r}: {why}. TARGETOPT_DATA_URL names a mirror by its http: or "
            "https: address; files on this machine go into a directory named by --data-dir or "
            "TARGETOPT_DATA."
        )
    if why is not None:
        raise DownloadError(
            f"{redirected_from}: the server redirects to {url!r}, which was not followed because {why}. "
            "Name another mirror in TARGETOPT_DATA_URL, or download the file by other means and put "
            "it into a directory named by --data-dir or TARGETOPT_DATA."
        )


def _open_own(part: Path) -> BinaryIO:
    """`part` for reading and writing, made if it is missing; a link or a device in its place is refused."""
    flags = os.O_RDWR | os.O_CREAT
    for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # not every system has every one
        flags |= getattr(os, flag, 0)
    _require_ordinary(part)
    file = os.fdopen(os.open(part, flags, 0o666), "r+b")
    try:
        _require_ordinary(part, os.fstat(file.fileno()))  # whatever happened since it was looked at
    except BaseException:
        file.close()
        raise
    return file


def _require_ordinary(path: Path, found: os.stat_result | None = None) -> None:
    """Raise unless there is nothing at `path`, or a file of a single name."""
    try:
        found = found or path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise DownloadError(
            f"{path} is a link or no ordinary file, so it is not an unfinished download, and writing "
            "to it could change another file. It was left alone; remove it and fetch again."
        )


def _size(part: Path) -> int:
    _require_ordinary(part)
    return part.stat().st_size if part.exists() else 0


def _validator_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _write_validator(part: Path, url: str, headers: http.client.HTTPMessage) -> None:
    etag = headers.get("ETag", "")
    strong = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    kept = json.dumps({"url": url, "validator": strong}).encode()
    write_atomically(_validator_path(part), kept)


def _read_validator(part: Path, url: str) -> str | None:
    """The version that an unfinished transfer of `url` is of; None where that is not known."""
    path = _validator_path(part)
    try:
        _require_ordinary(path)
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    validator = kept.get("validator") if isinstance(kept, dict) and kept.get("url") == url else None
    usable = isinstance(validator, str) and validator.isascii() and validator.isprintable()
    return validator if usable else None
