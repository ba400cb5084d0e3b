"""What the tests of remote oracles share: services in processes of their own, and a student to train."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import torch

import targetopt as to

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS.parent / "examples"))
import oracle_server  # noqa: E402

PRICE = 0.001
ALL_FAULTS = [
    "429", "500", "503", "drop", "drop-after", "truncate", "shape", "other", "nan", "not-json", "html", "partial",
]  # fmt: skip


class FaultyService:
    """A running `faulty_service`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def bill(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url) as response:
            bill = json.load(response)
        return {**bill, "money": Decimal(bill["money"])}


@cache
def _running() -> str:
    """The URL of one process that plays all services, one after the other; it ends with the tests."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "faulty_service.py")], stdout=subprocess.PIPE, text=True
    )
    owner = os.getpid()
    atexit.register(lambda: process.kill() if os.getpid() == owner else None)
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def service(**options: Any) -> Iterator[FaultyService]:
    """A service with these options and a bill of its own."""
    url = _running()
    body = json.dumps(options).encode()
    urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT")).close()
    yield FaultyService(url)


def local_oracle() -> to.GradientOracle:
    """The service's own function, called here."""

    def function(z: torch.Tensor) -> tuple[object, object]:
        question = {"question": "", "ids": [0] * len(z), "targets": z.numpy()}
        found = oracle_server.answer(question)
        return found["losses"], found["gradients"]

    return to.GradientOracle(function)


def student() -> tuple[torch.nn.Module, to.SSO, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(32, 5, dtype=torch.float64)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).double()
    return model, to.SSO(model.parameters(), lr=0.7, inner=to.LBFGS(max_steps=5)), x


def trained(oracle: to.Oracle, steps: int = 6) -> list[torch.Tensor]:
    """A student's parameters after so many steps, from the beginning."""
    model, opt, x = student()
    for _ in range(steps):
        opt.step(lambda: model(x), oracle)
    return [p.detach().clone() for p in model.parameters()]


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
