"""A real HTTP server for downloads, which misbehaves on request."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves one content at every path; its attributes are the ways to misbehave."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.etag: str | None = '"v1"'
        self.ranges = True
        self.lengths = True
        self.break_after: list[int] = []  # bytes sent before hanging up, one entry per request
        self.statuses: list[int] = []  # error codes to answer with first
        self.redirects: list[str] = []  # where to send the first requests instead
        self.announced: list[str] | None = None  # content lengths to announce, true or not
        self.pause = 0.0  # seconds between chunks of 64 KiB
        self.requests: list[str | None] = []  # the Range header of each request
        self.connections = 0  # requests or not

    def get_request(self):
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what is tested."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/binary"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.requests.append(asked)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        if server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects.pop(0))
            self.end_headers()
            return
        start = 0
        condition = self.headers.get("If-Range")
        if asked and server.ranges and condition in (None, server.etag):
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            end = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(server.content)}")
        if server.lengths:
            for length in [str(len(body))] if server.announced is None else server.announced:
                self.send_header("Content-Length", length)
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        if server.break_after:
            body = body[: server.break_after.pop(0)]
        for at in range(0, len(body), 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            time.sleep(server.pause)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    """A server of ``content`` for as long as the context lasts."""
    with Server(content) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
