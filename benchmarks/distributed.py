"""What several ranks, batches in pieces, merged vocabularies and L-BFGS on large models cost.

Every case runs in a process of its own, on one thread. Times are CPU seconds of that process (of the slowest rank, if
there are several), so that other programs on the machine do not count; waiting for other ranks does not count either.
Ranks are measured in wall time too: where other programs run, ``chrt -r 5 python -m benchmarks distributed`` gives them
the processors first.
Memory is the largest resident size less that before the step. For batches in pieces it is given twice: as the system's
allocator has it by default, and, under "in use", with an allocator that gives every large block back when it is freed
(``MALLOC_MMAP_THRESHOLD_``), so that what lies in the memory is what is used.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import targetopt as to
from benchmarks.harness import save

ROWS, PIECE, PIECES = 2048, 2048, 64
VOCABULARY, POSITIONS, WIDTH, BEST = 50_000, 1024, 64, 64


def resident(which: str) -> float:
    """The resident size in MB, now (``VmRSS``) or the largest since it was last reset (``VmHWM``); Linux only."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[which].split()[0]) / 1024


def mlp(width: int, layers: int, inputs: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [inputs, *[width] * layers]
    hidden = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 1), nn.Flatten(0))


def measured(step: Callable[[], object], times: int = 1) -> dict[str, float]:
    Path("/proc/self/clear_refs").write_text("5")  # forget what loading modules once needed
    begin = resident("VmRSS")
    seconds, walls = [], []
    for _ in range(times):
        before, clock = time.process_time(), time.perf_counter()
        step()
        seconds.append(time.process_time() - before)
        walls.append(time.perf_counter() - clock)
    found = {"seconds": median(seconds), "wall": median(walls)}
    return {"megabytes": resident("VmHWM") - begin, **found}


def rank(number: int, size: int, meeting_point: str) -> dict[str, float]:
    """Some steps on this rank's share of the rows."""
    import torch.distributed as dist

    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting_point}", rank=number, world_size=size
        )
    model = mlp(1024, 2, 512)
    rows = torch.randn(ROWS, 512, generator=torch.Generator().manual_seed(1)).chunk(size)[number]
    labels = torch.ones(len(rows))
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=4))
    step = lambda: opt.step(lambda: model(rows), to.losses.Logistic(labels))  # noqa: E731
    step()
    found = measured(step, 3)
    if size > 1:
        dist.destroy_process_group()
    return found


def pieces(kind: str) -> dict[str, float]:
    """One step on one piece, or on 64 of them, cut or whole."""
    warm, few = mlp(256, 6), torch.randn(8, 256)  # what a first step loads is no memory of a piece
    to.SSO(warm.parameters(), lr=1.0, inner=to.Armijo(max_steps=1)).step(
        to.Chunked(warm, few, 4), to.losses.Logistic(torch.ones(8))
    )
    model = mlp(256, 6)
    count = PIECE * (1 if kind == "one" else PIECES)
    x, labels = torch.randn(count, 256), torch.ones(count)
    forward = to.Chunked(model, x, PIECE) if kind == "cut" else lambda: model(x)
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=1), check_purity=False)
    return measured(lambda: opt.step(forward, to.losses.Logistic(labels)))


def language(kind: str) -> dict[str, float]:
    """One step of a head over 50 000 classes, with all logits as targets or the teacher's best 64."""
    from targetopt.oracle.teachers import Merged, TailBucket

    torch.manual_seed(0)
    body, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    x = torch.randn(POSITIONS, WIDTH)
    support = torch.stack([torch.randperm(VOCABULARY)[:BEST].clone() for _ in range(POSITIONS)])
    p = torch.full(support.shape, 0.9 / BEST)
    params = [*body.parameters(), *head.parameters()]
    opt = to.SSO(params, lr=1.0, inner=to.Armijo(max_steps=1), check_purity=False)
    if kind == "dense":
        return measured(lambda: opt.step(lambda: head(body(x)), TailBucket(support, p)))
    forward: Callable[[], Tensor] = lambda: to.vocabulary.on_support(  # noqa: E731
        body(x), head.weight, support, rows=16
    )
    return measured(lambda: opt.step(forward, Merged(support, p)))


def large(kind: str) -> dict[str, float]:
    """One step on a model of 20 million parameters, whose arithmetic on parameters outweighs its forward."""
    model = mlp(2048, 5, 1024)
    x, labels = torch.randn(8, 1024), torch.ones(8)
    loss = to.losses.Logistic(labels)
    optimisers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    }
    copies = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    if kind in optimisers:
        optimiser = optimisers[kind](model.parameters())

        def plain() -> None:
            optimiser.zero_grad()
            loss.value(model(x)).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()

        found = measured(plain, 5)
    else:
        inner: to.Inner = {
            "armijo": to.Armijo(max_steps=20),
            "lbfgs": to.LBFGS(max_steps=20),
            "lbfgs, all pairs": to.LBFGS(max_steps=20, memory=float("inf")),
        }[kind]
        opt = to.SSO(model.parameters(), lr=1.0, inner=inner, check_purity=False)
        found = measured(lambda: opt.step(lambda: model(x), loss))
    return {**found, "copies": found["megabytes"] / copies}


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "pieces": pieces,
    "language": language,
    "large": large,
}


IN_USE = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def run(*arguments: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.distributed", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout)


def ranks(size: int) -> tuple[float, float]:
    """CPU and wall seconds of a step on the slowest rank."""
    with tempfile.TemporaryDirectory() as directory:
        point = str(Path(directory) / "meeting-point")
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.distributed", "rank", str(r), str(size), point],
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(size)
        ]
        found = [json.loads(each.communicate()[0]) for each in running]
        return max(each["seconds"] for each in found), max(each["wall"] for each in found)


def main() -> None:
    payload: dict[str, Any] = {}
    for name, kinds in (
        ("language", ["merged", "dense"]),
        ("pieces", ["one", "cut", "whole"]),
        ("large", ["sgd", "adam", "armijo", "lbfgs", "lbfgs, all pairs"]),
    ):
        payload[name] = {kind: run(name, kind) for kind in kinds}
        print(name, json.dumps(payload[name]), flush=True)
        save("distributed", payload)
    payload["pieces, in use"] = {kind: run("pieces", kind, **IN_USE) for kind in ("one", "cut")}
    print("pieces, in use", json.dumps(payload["pieces, in use"]), flush=True)
    turns = [(ranks(1), ranks(2)) for _ in range(3)]
    payload["ranks"] = {
        name: {
            "one": median(one[i] for one, _ in turns),
            "two": median(two[i] for _, two in turns),
            "ratio": median(one[i] / two[i] for one, two in turns),
        }
        for i, name in enumerate(("cpu", "wall"))
    }
    print("ranks", json.dumps(payload["ranks"]), flush=True)
    save("distributed", payload)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        main()
    elif sys.argv[1] == "rank":
        print(json.dumps(rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
    else:
        print(json.dumps(CASES[sys.argv[1]](sys.argv[2])))
