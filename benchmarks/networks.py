"""What SSO costs on networks beside torch's own loops: an inner step, an outer step, and memory.

    python -m benchmarks networks

Time: a perceptron, a convolutional network and a transformer; one SGD step of torch's own loop is the unit. An
inner step of `Armijo` is a hundredth of an outer step with m = 100, and with m = 1 it is the whole outer step. All are
timed in turns in one process, on one thread.

Memory: a perceptron of 20 million parameters. What two steps add to the resident memory at their peak, in copies of
the parameters, each optimiser in a process of its own. One outer step of the default is timed there too, in SGD steps.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import targetopt as to
from benchmarks.harness import one_thread, save, spread, table, times_in_turns, verdict
from targetopt.losses import CrossEntropy, Loss, Squared

ROUNDS = 9
INNER = 100
LIMITS = {"m = 100, an inner step": 1.15, "m = 1, an outer step": 1.2}
COPIES = {"Armijo": 3.5}
LONGEST_DEFAULT = 60.0  # SGD steps


class Attention(nn.Module):
    """Two blocks of a transformer over 32 tokens of 64 numbers, and their mean to ten classes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(x).mean(dim=1))
        return logits


def perceptron() -> nn.Module:
    """The imitation learner of the paper: Hopper's 11 observations to 3 action means."""
    return nn.Sequential(
        nn.Linear(11, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)
    )


def convolutions() -> nn.Module:
    """Three layers of convolutions on pictures of 16 × 16, to ten classes."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10),
    )  # fmt: skip


def problems() -> dict[str, tuple[Callable[[], nn.Module], Tensor, Loss]]:
    random = torch.Generator().manual_seed(0)
    classes = torch.randint(10, (64,), generator=random)
    return {
        "perceptron, 1000 rows": (
            perceptron,
            torch.randn(1000, 11, generator=random),
            Squared(torch.randn(1000, 3, generator=random)),
        ),
        "convolutions, 64 rows": (
            convolutions,
            torch.randn(64, 3, 16, 16, generator=random),
            CrossEntropy(classes),
        ),
        "transformer, 64 rows": (
            Attention,
            torch.randn(64, 32, 64, generator=random),
            CrossEntropy(classes),
        ),
    }


def sgd_step(model: nn.Module, x: Tensor, loss: Loss, lr: float = 1e-3) -> Callable[[], object]:
    """torch's own loop, with the loss that its users would write."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    return _own_step(optimiser, model, x, loss)


def _own_step(
    optimiser: torch.optim.Optimizer, model: nn.Module, x: Tensor, loss: Loss
) -> Callable[[], object]:
    mean: Callable[[Tensor], Tensor]
    if isinstance(loss, CrossEntropy):
        mean = lambda z: nn.functional.cross_entropy(z, loss.labels)  # noqa: E731
    else:
        labels = loss.tables()["y"]
        mean = lambda z: (0.5 * (z - labels).square().sum(dim=1)).mean()  # noqa: E731

    def step() -> None:
        optimiser.zero_grad()
        mean(model(x)).backward()
        optimiser.step()

    return step


def sso_step(
    model: nn.Module, x: Tensor, loss: Loss, **method: Any
) -> Callable[[], to.types.StepReport]:
    opt = to.SSO(model.parameters(), **method)
    oracle = to.LossOracle(loss)
    return lambda: opt.step(lambda: model(x), oracle)


def inner_steps() -> list[dict[str, Any]]:
    """Armijo's steps over an SGD step on the same batch, in each round by itself."""
    rows = []
    for name, (make, x, loss) in problems().items():
        torch.manual_seed(0)
        model = make()
        many = sso_step(copy.deepcopy(model), x, loss, lr=0.5, inner=to.Armijo(max_steps=INNER))
        one = sso_step(copy.deepcopy(model), x, loss, lr=0.5, inner=to.Armijo(max_steps=1))
        for _ in range(3):
            many(), one()  # finds its step size
        report = many()
        evaluations = (report.forward_calls + report.backward_calls) / 2
        times = times_in_turns(
            {"sgd": sgd_step(copy.deepcopy(model), x, loss), "many": many, "one": one},
            rounds=ROUNDS,
        )
        for case, steps in (("many", INNER), ("one", 1)):
            ratios = [a / steps / b for a, b in zip(times[case], times["sgd"], strict=True)]
            what = f"m = {steps}, an {'inner' if steps > 1 else 'outer'} step"
            rows.append(
                {
                    "model": name,
                    "what": what,
                    "sgd_ms": 1e3 * statistics.median(times["sgd"]),
                    "sso_ms": 1e3 * statistics.median(times[case]) / steps,
                    "ratio": statistics.median(ratios),
                    "spread": spread(ratios),
                    "limit": LIMITS[what],
                    "evaluations": evaluations / INNER if steps > 1 else None,
                }
            )
    return rows


def large() -> tuple[nn.Module, Tensor, Loss]:
    """A perceptron with 20 million parameters, and 32 rows."""
    torch.manual_seed(0)
    width = 2560
    model = nn.Sequential(
        nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width - 900), nn.ReLU(), nn.Linear(width - 900, 10),
    )  # fmt: skip
    x = torch.randn(32, 1024)
    return model, x, CrossEntropy(torch.randint(10, (32,)))


def large_step(optimiser: str, model: nn.Module, x: Tensor, loss: Loss) -> Callable[[], object]:
    if optimiser == "SGD":
        return sgd_step(model, x, loss)
    if optimiser == "Adam":
        return _own_step(torch.optim.Adam(model.parameters(), lr=1e-4), model, x, loss)
    methods: dict[str, dict[str, Any]] = {
        "Armijo": {"lr": 0.5, "inner": to.Armijo(max_steps=20)},
        "default": {},
        "default, lr given": {"lr": 0.5},
    }
    return sso_step(model, x, loss, **methods[optimiser])


OPTIMISERS = ("SGD", "Adam", "Armijo", "default", "default, lr given")


def measure_memory(optimiser: str) -> None:
    """Print the copies of the parameters that three steps add at their peak to what was there."""
    one_thread()
    model, x, loss = large()
    with torch.no_grad():
        model(x)  # what the libraries themselves allocate
    small, few = nn.Linear(4, 10), torch.randn(32, 4)
    large_step(optimiser, small, few, loss)()
    step = large_step(optimiser, model, x, loss)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(3):
        step()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"bytes": size, "copies": (_status("VmHWM") - before) / size}))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise LookupError(field)


def memory() -> dict[str, float]:
    """Copies of the parameters beyond them, by optimiser."""
    found = {}
    for optimiser in OPTIMISERS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.networks", "--memory", optimiser],
            capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
        found[optimiser] = float(json.loads(done.stdout)["copies"])
    return found


def default_step(rounds: int = 7) -> dict[str, Any]:
    """One outer step of the default on the large model, in SGD steps of time; medians over the steps."""
    model, x, loss = large()
    sgd = sgd_step(copy.deepcopy(model), x, loss)
    step = sso_step(model, x, loss)
    sgd()
    ratios, counts = [], []
    for _ in range(rounds):
        begin = time.process_time()
        sgd(), sgd()
        unit = (time.process_time() - begin) / 2
        begin = time.process_time()
        report = step()
        ratios.append((time.process_time() - begin) / unit)
        counts.append((report.forward_calls, report.backward_calls))
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "spread": spread(ratios),
        "forwards and backwards": counts,
        "limit": LONGEST_DEFAULT,
    }


def main() -> None:
    one_thread()
    steps = inner_steps()
    table(
        ["model", "Armijo", "SGD, ms", "ms", "over SGD", "±", "evaluations", ""],
        [
            [
                row["model"], row["what"], f"{row['sgd_ms']:.2f}", f"{row['sso_ms']:.2f}", f"{row['ratio']:.2f}",
                f"{row['spread']:.0%}", f"{row['evaluations']:.2f}" if row["evaluations"] else "",
                verdict(row["ratio"], row["limit"]),
            ]
            for row in steps
        ],
    )  # fmt: skip
    copies = memory()
    limits = {**COPIES, "default": copies["Adam"], "default, lr given": copies["Adam"]}
    table(
        ["20 million parameters", "copies beyond them", ""],
        [
            [name, f"{value:.2f}", verdict(value, limits[name]) if name in limits else ""]
            for name, value in copies.items()
        ],
    )
    default = default_step()
    print(
        f"one default outer step: {default['ratio']:.1f} SGD steps ± {default['spread']:.0%}, "
        f"{verdict(default['ratio'], LONGEST_DEFAULT)}; forwards and backwards "
        f"{default['forwards and backwards']}"
    )
    save("networks", {"inner_steps": steps, "copies": copies, "default_step": default})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(sys.argv[2])
    else:
        main()
