"""Services behind a URL that speak the protocol of `targetopt.oracle.remote.protocol`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal

import httpx2

from targetopt.oracle.columns import Columns
from targetopt.oracle.forms import Form
from targetopt.oracle.ledger import Request
from targetopt.oracle.question import Question
from targetopt.oracle.remote import protocol
from targetopt.oracle.remote.outcome import Failed, Reply
from targetopt.types import BadAnswer, BadArgument

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
        self._client: httpx2.AsyncClient | None = None

    async def send(self, request: Request, question: Question, columns: Columns) -> Reply:
        wire = self.service.wire
        if self._client is None:
            limits = httpx2.Limits(max_connections=self._connections)
            self._client = httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False)
        headers = {
            **self.service.headers,
            "Content-Type": wire.content_type,
            "Accept": wire.content_type,
            "Idempotency-Key": request.key,
        }
        body = wire.encode(question.digest, request.positions, columns)
        try:
            response = await self._client.post(self.service.url, content=body, headers=headers)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Failed(f"{self.service.url} cannot be reached: {error}", lost=False) from error
        except httpx2.HTTPError as error:
            raise Failed(
                f"the connection broke before the answer was complete ({type(error).__name__}: {error})",
                lost=True,
            ) from error
        self._check(response)
        try:
            return wire.decode(response.content, question.digest, self.form.columns)
        except BadAnswer as error:
            raise Failed(f"the answer cannot be used: {error}", lost=True) from None

    def _check(self, response: httpx2.Response) -> None:
        """Refusals and faults of the service, as failures that say whether to try again."""
        status = response.status_code
        if status == 200:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if kind != self.service.wire.content_type:
                raise Failed(
                    f"the answer is {kind or 'of no content type'}, not {self.service.wire.content_type}; it "
                    f"begins {response.content[:40]!r}. Is {self.service.url} the service?",
                    lost=True,
                )
            return
        said = response.text[:200].strip()
        reason = f"the service answered {status} {response.reason_phrase}" + (
            f": {said}" if said else ""
        )
        if status in NOT_NOW:
            raise Failed(reason, lost=False, retry_after=_retry_after(response))
        if status >= 500:
            raise Failed(reason, lost=True, retry_after=_retry_after(response))
        raise Failed(reason, lost=False, again=False)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _retry_after(response: httpx2.Response) -> float | None:
    """The header Retry-After: seconds, or a date."""
    stated = response.headers.get("Retry-After")
    if stated is None:
        return None
    try:
        return max(0.0, float(stated))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(stated).timestamp() - time.time())
    except ValueError:
        return None
