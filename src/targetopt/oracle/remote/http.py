"""Services behind a URL that speak the protocol of `targetopt.oracle.remote.protocol`."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal

import httpcore2
import httpx2

from targetopt.oracle.columns import Columns
from targetopt.oracle.forms import Form
from targetopt.oracle.ledger import Request
from targetopt.oracle.question import Question
from targetopt.oracle.remote import protocol
from targetopt.oracle.remote.network import WholeRequests
from targetopt.oracle.remote.outcome import Failed, Reply
from targetopt.types import BadAnswer, BadArgument

BROKEN = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
"""Connections that ended before the answer did."""

NOT_NOW = {408, 425, 429, 503}
"""Answers that say: nothing was done, come back later."""


class Service:
    """A URL with what must be said along with it.

    Args:
        url: where requests are posted.
        headers: sent along, an ``Authorization`` say. They are never written to the ledger.
        format: ``"json"``, or ``"arrow"``, which is smaller and faster for wide targets and needs pyarrow.
        keyed: whether the service bills a request that is sent twice with one ``Idempotency-Key`` once, as
            the protocol demands.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        format: Literal["json", "arrow"] = "json",
        keyed: bool = True,
    ) -> None:
        if format not in protocol.FORMATS:
            raise BadArgument(
                f"Service: format={format!r} must be one of {', '.join(protocol.FORMATS)}"
            )
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, TypeError) as error:
            raise BadArgument(f"Service: url={url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise BadArgument(f"Service: url={url!r} must begin with http:// or https://")
        self.url = url
        self.headers = dict(headers or {})
        self.address = parsed
        self.wire: protocol.Wire = protocol.FORMATS[format]()
        self.keyed = keyed

    def __repr__(self) -> str:
        return f"Service({self.url!r})"


class Http:
    """Posts requests to a `Service`."""

    def __init__(self, service: Service, form: Form, concurrency: int) -> None:
        self.service = service
        self.keyed = service.keyed
        self.form = form
        self._connections = 2 * concurrency  # room for copies of slow requests
        self._pool: httpcore2.AsyncConnectionPool | None = None

    def _opened(self) -> httpcore2.AsyncConnectionPool:
        if self._pool is None:
            secure = self.service.address.scheme == "https"
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=httpx2.create_ssl_context(trust_env=False) if secure else None,
                max_connections=self._connections,
                network_backend=WholeRequests(),
            )
        return self._pool

    def _headers(self, request: Request, body: bytes) -> list[tuple[bytes, bytes]]:
        address, kind = self.service.address, self.service.wire.content_type
        stated = {
            "Host": address.netloc.decode("ascii"),
            "User-Agent": "targetopt",
            "Accept-Encoding": "identity",
        }
        if address.userinfo:
            login = base64.b64encode(f"{address.username}:{address.password}".encode())
            stated["Authorization"] = f"Basic {login.decode('ascii')}"
        own = {name.lower() for name in self.service.headers}
        stated = {name: value for name, value in stated.items() if name.lower() not in own}
        stated |= self.service.headers
        stated |= {
            "Content-Type": kind,
            "Accept": kind,
            "Content-Length": str(len(body)),
            "Idempotency-Key": request.key,
        }
        return [(name.encode("ascii"), value.encode()) for name, value in stated.items()]

    async def send(self, request: Request, question: Question, columns: Columns) -> Reply:
        wire, address = self.service.wire, self.service.address
        body = wire.encode(question.digest, request.positions, columns)
        target = httpcore2.URL(
            scheme=address.raw_scheme,
            host=address.raw_host,
            port=address.port,
            target=address.raw_path,
        )
        try:
            response = await self._opened().request(
                "POST", target, headers=self._headers(request, body), content=body
            )
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout) as error:
            raise Failed(f"{self.service.url} cannot be reached: {error}", lost=False) from error
        except BROKEN as error:
            raise Failed(
                f"the connection broke before the answer was complete ({type(error).__name__}: {error})",
                lost=True,
            ) from error
        self._check(response)
        try:
            return wire.decode(response.content, question.digest, self.form.columns)
        except BadAnswer as error:
            raise Failed(f"the answer cannot be used: {error}", lost=True) from None

    def _check(self, response: httpcore2.Response) -> None:
        """Refusals and faults of the service, as failures that say whether to try again."""
        status = response.status
        if status == 200:
            kind = _header(response, "Content-Type").partition(";")[0].strip().lower()
            if kind != self.service.wire.content_type:
                raise Failed(
                    f"the answer is {kind or 'of no content type'}, not {self.service.wire.content_type}; it "
                    f"begins {response.content[:40]!r}. Is {self.service.url} the service?",
                    lost=True,
                )
            return
        phrase = response.extensions.get("reason_phrase", b"").decode("ascii", "replace")
        said = response.content[:200].decode("utf-8", "replace").strip()
        reason = f"the service answered {status} {phrase}" + (f": {said}" if said else "")
        if status in NOT_NOW:
            raise Failed(reason, lost=False, retry_after=_retry_after(response))
        if status >= 500:
            raise Failed(reason, lost=True, retry_after=_retry_after(response))
        raise Failed(reason, lost=False, again=False)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None


def _header(response: httpcore2.Response, name: str) -> str:
    """A header of the answer; empty where there is none."""
    wanted = name.lower().encode("ascii")
    found = [value for key, value in response.headers if key.lower() == wanted]
    return found[0].decode("latin-1") if found else ""


def _retry_after(response: httpcore2.Response) -> float | None:
    """The header Retry-After: seconds, or a date."""
    stated = _header(response, "Retry-After")
    if not stated:
        return None
    try:
        return max(0.0, float(stated))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
    except ValueError:
        return None
