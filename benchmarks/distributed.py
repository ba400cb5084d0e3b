"""What several ranks, batches in pieces, merged vocabularies and L-BFGS on large models cost.

Every case runs in a process of its own, on one thread. Times are CPU seconds of that process (of the slowest rank, if
there are several), so that other programs on the machine do not count; waiting for other ranks does not count either.
Ranks are measured in wall time too: where other programs run, ``chrt -r 5 python -m benchmarks distributed`` gives them
the processors first.
Memory is the largest resident size less that before the step. The allocator of Linux keeps some of what is freed,
more of it the more often large blocks come and go, and never the same amount twice: one step on one piece made a
process grow by 31 to 53 MB, forty of them by 60 to 80. So for batches in pieces every kind runs in seven processes,
and 64 pieces in one step are compared with 64 steps on one piece, which take and free as many blocks. Under "in use"
the allocator gives every large block back when it is freed (``MALLOC_MMAP_THRESHOLD_``), so that what lies in the
memory is what is used; there one step is compared with one step.

``python -m benchmarks distributed`` measures everything, ``python -m benchmarks.distributed ranks`` (or ``pieces``)
that alone.
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

ROWS, PIECE, PIECES = 8192, 2048, 64
REPEATS = 7
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


def rank(number: int, meeting_point: str) -> dict[str, list[dict[str, float]]]:
    """Steps on all rows by rank 0 alone and on half of them by each of two ranks, in turns."""
    import torch.distributed as dist

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})  # a core for each
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=number, world_size=2
    )
    data = torch.randn(ROWS, 512, generator=torch.Generator().manual_seed(1))

    def stepper(rows: Tensor, group: str | None) -> Callable[[], object]:
        model, labels = mlp(1024, 2, 512), torch.ones(len(rows))
        opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=4), group=group)
        return lambda: opt.step(lambda: model(rows), to.losses.Logistic(labels))

    alone, shared = stepper(data, None), stepper(data.chunk(2)[number], "auto")
    found: dict[str, list[dict[str, float]]] = {"one": [], "two": []}
    for turn in range(REPEATS + 1):
        dist.barrier()
        if number == 0:
            found["one"].append(measured(alone))
        dist.barrier()  # the other rank has waited here
        found["two"].append(measured(shared))
        if turn == 0:  # a first step loads and allocates
            found = {"one": [], "two": []}
    dist.destroy_process_group()
    return found


def pieces(kind: str) -> dict[str, float]:
    """One step on one piece ("first"), 64 such steps ("one"), or a step on 64 pieces, cut or whole."""
    warm, few = mlp(256, 6), torch.randn(8, 256)  # what a first step loads is no memory of a piece
    to.SSO(warm.parameters(), lr=1.0, inner=to.Armijo(max_steps=1)).step(
        to.Chunked(warm, few, 4), to.losses.Logistic(torch.ones(8))
    )
    model = mlp(256, 6)
    count = PIECE * (1 if kind in ("one", "first") else PIECES)
    x, labels = torch.randn(count, 256), torch.ones(count)
    forward = to.Chunked(model, x, PIECE) if kind == "cut" else lambda: model(x)
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=1), check_purity=False)
    times = PIECES if kind == "one" else 1
    return measured(lambda: opt.step(forward, to.losses.Logistic(labels)), times)


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


def all_pieces() -> dict[str, Any]:
    """Megabytes of every kind, each in seven processes, and how many times one piece's 64 pieces need."""
    found: dict[str, Any] = {"whole": run("pieces", "whole")}
    for name, one, environment in (("resident", "one", {}), ("in use", "first", IN_USE)):
        taken = {
            kind: [run("pieces", kind, **environment)["megabytes"] for _ in range(REPEATS)]
            for kind in (one, "cut")
        }
        ratio = median(taken["cut"]) / median(taken[one])
        found[name] = {
            "ratio": ratio,
            "largest ratio": max(taken["cut"]) / min(taken[one]),
            **taken,
        }
    return found


def all_ranks() -> dict[str, Any]:
    """Seconds of a step by one rank and by two (the slower of them), in turns within one run."""
    with tempfile.TemporaryDirectory() as directory:
        point = str(Path(directory) / "meeting-point")
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.distributed", "rank", str(r), point],
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(2)
        ]
        first, second = (json.loads(each.communicate()[0]) for each in running)
    answer = {}
    for name in ("seconds", "wall"):
        one = [turn[name] for turn in first["one"]]
        turns = zip(first["two"], second["two"], strict=True)
        two = [max(a[name], b[name]) for a, b in turns]
        answer[name] = {"ratio": median(one) / median(two), "one": one, "two": two}
    return answer


ALONE: dict[str, Callable[[], dict[str, Any]]] = {"pieces": all_pieces, "ranks": all_ranks}


def alone(name: str) -> None:
    payload = ALONE[name]()
    print(name, json.dumps(payload), flush=True)
    save(f"distributed_{name}", payload)


def main() -> None:
    payload: dict[str, Any] = {}
    for name, kinds in (
        ("language", ["merged", "dense"]),
        ("large", ["sgd", "adam", "armijo", "lbfgs", "lbfgs, all pairs"]),
    ):
        payload[name] = {kind: run(name, kind) for kind in kinds}
        print(name, json.dumps(payload[name]), flush=True)
        save("distributed", payload)
    for name in ALONE:
        alone(name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        main()
    elif len(sys.argv) == 2:
        alone(sys.argv[1])
    elif sys.argv[1] == "rank":
        print(json.dumps(rank(int(sys.argv[2]), sys.argv[3])))
    else:
        print(json.dumps(CASES[sys.argv[1]](sys.argv[2])))
