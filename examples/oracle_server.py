"""A service for `to.RemoteOracle`, in forty lines: ``python examples/oracle_server.py 8000``.

Replace ``answer`` by your simulator or teacher. A key that comes twice is answered as before and billed once.
"""

import json
import sys
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import numpy as np

PRICE = 0.001  # of a row
ANSWERS: dict[str, dict] = {}  # by idempotency key; a real service keeps them in a database
LOCKS: dict[str, Lock] = defaultdict(Lock)


def answer(question: dict) -> dict:
    """One loss and one gradient per row; the answer repeats the question's name and its rows' ids."""
    error = np.asarray(question["targets"]) - 1.0
    losses = np.log(np.cosh(error)).reshape(len(error), -1).sum(axis=1)
    return {
        "question": question["question"],
        "ids": question["ids"],
        "losses": losses.tolist(),
        "gradients": np.tanh(error).tolist(),
        "price": round(PRICE * len(error), 9),
    }


class Oracle(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the client's acknowledgement

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        with LOCKS[key]:  # a copy that comes meanwhile waits for the first
            if key not in ANSWERS:
                ANSWERS[key] = answer(question)
        self.reply(200, json.dumps(ANSWERS[key]).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Oracle) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
