"""Distil a small causal language model from a teacher behind HTTP, with a ledger and a budget, on the CPU.

The teacher says its 64 most probable next tokens and their log-probabilities, and every position costs money. Each
position is asked about once; what the ledger holds is not paid for again. The student's targets are its logits of the
teacher's tokens and one bucket for all others, computed a few positions at a time: nothing of the size
positions × vocabulary ever exists. What a first run has paid for, a second one with the same ledger takes from there:

    python examples/distil_language_model.py --ledger distil.ledger
"""

from __future__ import annotations

import argparse
import json
import resource
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import torch
from torch import Tensor, nn

import targetopt as to

PRICE = 0.0001  # of a position
BEST = 64


class CausalModel(nn.Module):
    """Tokens to hidden states, and a head from those to the vocabulary."""

    def __init__(self, vocabulary: int, width: int, seed: int, length: int = 32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(tokens) + self.places(torch.arange(length))
        states: Tensor = self.layer(hidden, src_mask=mask, is_causal=True)
        return states


def serve(teacher: CausalModel) -> ThreadingHTTPServer:
    """The teacher as a service that is asked about prefixes of texts."""

    @torch.no_grad()
    def answer(question: dict) -> dict:
        classes, logs = [], []
        for prefix in question["inputs"]:
            hidden = teacher(torch.tensor([prefix]))[:, -1]
            best, log = to.vocabulary.best_classes(hidden, 3.0 * teacher.head.weight, BEST)
            classes.append(best[0].tolist())
            logs.append(log[0].tolist())
        return {
            "question": question["question"],
            "ids": question["ids"],
            "classes": classes,
            "log_probabilities": logs,
            "price": round(PRICE * len(classes), 9),
        }

    class Service(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(question)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--money", type=float, default=1.0)
    parser.add_argument("--ledger", default="distil.ledger")
    chosen = parser.parse_args()

    teacher = CausalModel(chosen.vocabulary, 32, seed=1)
    student = CausalModel(chosen.vocabulary, 16, seed=2)
    generator = torch.Generator().manual_seed(3)
    texts = torch.randint(chosen.vocabulary, (chosen.texts, chosen.length), generator=generator)
    opt = to.SSO(student.parameters(), lr=2.0, inner=to.LBFGS(max_steps=10))
    server = serve(teacher)
    with to.Ledger(chosen.ledger) as ledger:
        oracle = to.RemoteOracle(
            f"http://127.0.0.1:{server.server_port}",
            answers=to.teachers.from_top_k(chosen.vocabulary, merged=True),
            batch=16,
            price=PRICE,
            budget=to.Budget(money=chosen.money),
            ledger=ledger,
            name="teacher",  # the port changes from run to run
        )
        for epoch in range(1, chosen.epochs + 1):
            losses = []
            for text in texts.split(4):
                prefixes = [row[: t + 1].tolist() for row in text for t in range(chosen.length)]
                nothing = torch.zeros(len(prefixes), BEST + 1)
                loss = oracle.about(prefixes).query(nothing).revealed
                forward = lambda text=text, loss=loss: to.vocabulary.on_support(  # noqa: E731
                    student(text).flatten(0, 1), student.head.weight, loss.support, rows=16
                )
                losses.append(opt.step(forward, loss).loss)
            spent = oracle.progress().money
            print(f"epoch {epoch}: cross-entropy {sum(losses) / len(losses):.4f}, paid {spent}")
        oracle.close()
    server.shutdown()
    server.server_close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory: {peak:.0f} MB")


if __name__ == "__main__":
    main()
