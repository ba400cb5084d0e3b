"""What an HTTP request looks like on the wire, and what its answer's headers mean."""

from __future__ import annotations

import base64
import socket
import threading
import time
from email.utils import formatdate

import anyio
import httpcore2
import pytest
import torch

import targetopt as to
from targetopt.oracle.remote.http import _retry_after
from targetopt.oracle.remote.network import WholeRequests, _Gathering

REFUSED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def heard(service_of, **options) -> bytes:
    """What a service hears from an oracle that asks it once."""
    listening = socket.create_server(("127.0.0.1", 0))
    said = []

    def serve() -> None:
        connection, _ = listening.accept()
        data = b""
        while b"\r\n\r\n" not in data or len(data.split(b"\r\n\r\n", 1)[1]) < _length(data):
            data += connection.recv(65536)
        said.append(data)
        connection.sendall(REFUSED)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    target = service_of(f"127.0.0.1:{listening.getsockname()[1]}")
    with (
        to.RemoteOracle(target, retries=0, **options) as oracle,
        pytest.raises(to.TargetoptError, match="404 Not Found"),
    ):
        oracle.query(torch.ones(2))
    thread.join()
    listening.close()
    return said[0]


def _length(data: bytes) -> int:
    head = data.split(b"\r\n\r\n", 1)[0].lower()
    (line,) = [part for part in head.split(b"\r\n") if part.startswith(b"content-length:")]
    return int(line.split(b":")[1])


def test_a_request_says_where_it_goes_and_who_asks():
    said = heard(lambda host: f"http://me:pass%20word@{host}/a/b?c=1")
    head = said.split(b"\r\n\r\n", 1)[0].decode().splitlines()
    assert head[0] == "POST /a/b?c=1 HTTP/1.1"
    assert f"Authorization: Basic {base64.b64encode(b'me:pass word').decode()}" in head
    assert "Content-Type: application/json" in head
    assert any(line.startswith("Idempotency-Key: ") for line in head)
    assert any(line.startswith("Host: 127.0.0.1:") for line in head)


def test_headers_of_the_user_go_along_and_before_ours():
    headers = {"authorization": "Bearer x", "X-Project": "7"}
    said = heard(lambda host: to.Service(f"http://me:no@{host}/", headers=headers))
    head = said.split(b"\r\n\r\n", 1)[0].decode().lower().splitlines()
    assert [line for line in head if line.startswith("authorization")] == [
        "authorization: bearer x"
    ]
    assert "x-project: 7" in head


def test_a_request_leaves_in_one_piece():
    sent: list[bytes] = []

    class Noting(httpcore2.AsyncMockStream):
        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            sent.append(buffer)

    class Backend(WholeRequests):
        async def connect_tcp(self, *arguments, **options):
            return _Gathering(Noting([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"{}"]))

    async def main() -> bytes:
        async with httpcore2.AsyncConnectionPool(network_backend=Backend()) as pool:
            headers = [(b"Host", b"x"), (b"Content-Length", b"4")]
            response = await pool.request("POST", "http://x/", headers=headers, content=b"body")
            return response.content

    assert anyio.run(main) == b"{}"
    (whole,) = sent
    assert whole.startswith(b"POST / HTTP/1.1\r\n")
    assert whole.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("stated", "seconds"), [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), (None, None)]
)
def test_retry_after_in_seconds(stated, seconds):
    headers = [] if stated is None else [("retry-after", stated)]
    assert _retry_after(httpcore2.Response(429, headers=headers)) == seconds


def test_retry_after_as_a_date():
    later = formatdate(time.time() + 100, usegmt=True)
    found = _retry_after(httpcore2.Response(503, headers=[("Retry-After", later)]))
    assert found is not None
    assert 0 < found <= 100
    past = formatdate(time.time() - 100, usegmt=True)
    assert _retry_after(httpcore2.Response(503, headers=[("Retry-After", past)])) == 0
