"""Distil a small causal language model from a teacher behind HTTP, with a ledger and a budget, on the CPU.

The teacher says its 64 most probable next tokens and their log-probabilities, and every position costs money. Each
position is asked about once; what the ledger holds is not paid for again. The student's targets are its logits of the
teacher's tokens and one bucket for all others, computed a few positions at a time: nothing of the size
positions × vocabulary ever exists. Teacher and student are models of transformers with random weights. With ``--lora
4`` peft puts adapters into the student, and they alone are trained. What a first run has paid for, a second one with
the same ledger takes from there:

    python examples/distil_language_model.py --ledger distil.ledger
"""

from __future__ import annotations

import argparse
import json
import resource
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import targetopt as to

PRICE = 0.0001  # of a position
BEST = 64


def causal_model(vocabulary: int, width: int, seed: int) -> LlamaForCausalLM:
    """A small Llama with random weights: tokens to hidden states, and a head from those to the vocabulary."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )


def hidden_states(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    states: Tensor = model.model(tokens).last_hidden_state
    return states


def head(model: LlamaForCausalLM) -> Tensor:
    """The head's weights, with the adapter's part if there is one."""
    layer = model.lm_head
    if not hasattr(layer, "get_delta_weight"):
        return layer.weight
    return layer.weight + layer.get_delta_weight("default")


def serve(teacher: LlamaForCausalLM) -> ThreadingHTTPServer:
    """The teacher as a service that is asked about prefixes of texts."""

    @torch.no_grad()
    def answer(question: dict) -> dict:
        classes, logs = [], []
        for prefix in question["inputs"]:
            hidden = hidden_states(teacher, torch.tensor([prefix]))[:, -1]
            best, log = to.vocabulary.best_classes(hidden, 30.0 * teacher.lm_head.weight, BEST)
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
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters by peft")
    parser.add_argument("--ledger", default="distil.ledger")
    chosen = parser.parse_args()

    teacher = causal_model(chosen.vocabulary, 32, seed=1)
    student = causal_model(chosen.vocabulary, 16, seed=2)
    if chosen.lora:  # the student's own weights stay; small adapters beside them are trained
        names = ["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"]
        get_peft_model(student, LoraConfig(r=chosen.lora, target_modules=names))
    trained = [p for p in student.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(3)
    texts = torch.randint(chosen.vocabulary, (chosen.texts, chosen.length), generator=generator)
    opt = to.SSO(trained, lr=2.0, inner=to.LBFGS(max_steps=10))
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
                    hidden_states(student, text).flatten(0, 1), head(student), loss.support, rows=16
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
