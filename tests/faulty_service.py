"""The example's service made unpleasant: slow, refusing, dropping, lying, and billing. A process of its own.

It prints its URL. A PUT of options such as ``{"latency": 0.02, "faults": ["429", "drop"], "rate": 0.5}`` makes
a new service of it, and a GET says what was billed since. With ``"keyed": false`` every request is computed and
billed anew.
"""

import json
import random
import sys
import time
from collections import Counter
from decimal import Decimal
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Lock

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import oracle_server

DEFAULTS = {"latency": 0.0, "faults": [], "rate": 0.0, "seed": 0, "keyed": True, "slow_every": 0}
OPTIONS = dict(DEFAULTS)


class _Bill:
    def __init__(self):
        self.lock = Lock()
        self.dice = random.Random(0)
        self.calls = 0
        self.answered = Counter()  # (question, id): times it was billed
        self.money = Decimal(0)
        self.faults = Counter()


Bill = _Bill()


def billed(question, partial):
    result = oracle_server.answer(question)
    if partial and len(result["ids"]) > 1:
        keep = list(range(0, len(result["ids"]), 2))[::-1]  # half of them, backwards
        for name in ("ids", "losses", "gradients"):
            result[name] = [result[name][i] for i in keep]
        result["price"] = round(oracle_server.PRICE * len(keep), 9)
    with Bill.lock:
        Bill.money += Decimal(str(result["price"]))
        Bill.answered.update((question["question"], i) for i in result["ids"])
    return result


class Faulty(oracle_server.Oracle):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        with Bill.lock:
            bill = {
                "calls": Bill.calls,
                "rows": sum(Bill.answered.values()),
                "most": max(Bill.answered.values(), default=0),
                "money": str(Bill.money),
                "faults": Bill.faults,
            }
        self.reply(200, json.dumps(bill).encode())

    def do_PUT(self):
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        OPTIONS.update({**DEFAULTS, **wanted})
        oracle_server.ANSWERS.clear()
        Bill.__init__()
        Bill.dice = random.Random(OPTIONS["seed"])
        self.reply(200, b"{}")

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Bill.lock:
            Bill.calls += 1
            slow = OPTIONS["slow_every"] and Bill.calls % OPTIONS["slow_every"] == 0
            fault = ""
            if OPTIONS["faults"] and Bill.dice.random() < OPTIONS["rate"]:
                fault = Bill.dice.choice(OPTIONS["faults"])
                Bill.faults[fault] += 1
        time.sleep(OPTIONS["latency"] * (30 if slow else 1))
        if fault in ("429", "500", "503", "404"):
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            if fault == "429":
                self.send_header("Retry-After", "0.05")
            self.end_headers()
            return
        if fault == "drop":
            self.close_connection = True
            return
        key = self.headers["Idempotency-Key"]
        with oracle_server.LOCKS[key]:
            if key not in oracle_server.ANSWERS or not OPTIONS["keyed"]:
                oracle_server.ANSWERS[key] = billed(question, fault == "partial")
        self.damaged(fault, oracle_server.ANSWERS[key])

    def damaged(self, fault, answer):
        """The answer was computed and billed; what arrives is another matter."""
        body = json.dumps(answer).encode()
        if fault == "drop-after":
            self.close_connection = True
        elif fault == "truncate":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif fault == "shape":
            self.reply(200, json.dumps({**answer, "gradients": [[1.0, 2.0, 3.0, 4.0]]}).encode())
        elif fault == "other":
            self.reply(200, json.dumps({**answer, "question": "f" * 32}).encode())
        elif fault == "nan":
            self.reply(
                200, json.dumps({**answer, "losses": [float("nan")] * len(answer["ids"])}).encode()
            )
        elif fault == "not-json":
            self.reply(200, b"{'losses': ")
        elif fault == "html":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")
        else:
            self.reply(200, body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients are killed in the middle of things


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Faulty) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
