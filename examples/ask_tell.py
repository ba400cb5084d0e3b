"""An oracle that answers tomorrow: ask today, tell in another process.

``python examples/ask_tell.py ask DIR`` writes the question; somebody labels it; ``python
examples/ask_tell.py tell DIR`` finishes the step. Run without arguments, it does two rounds of both, each
in a process of its own.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import targetopt as to


def parts() -> tuple[torch.nn.Module, to.SSO, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(400, 10, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1]  # known to whoever answers, and to nobody else
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 16), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).double()
    model.append(torch.nn.Flatten(0))
    return model, to.SSO(model.parameters(), lr=0.5), x, y


def ask(folder: Path) -> None:
    model, opt, x, _ = parts()
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
    query = opt.ask(lambda: model(x))
    (folder / "query.pickle").write_bytes(pickle.dumps(query))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, folder / "state.pt")


def tell(folder: Path) -> None:
    model, opt, x, y = parts()
    state = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    query = pickle.loads((folder / "query.pickle").read_bytes())
    error = query.targets - y  # the expensive part, done elsewhere
    report = opt.tell(query, lambda: model(x), 0.5 * error**2, error)
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, folder / "state.pt")
    print(
        f"step {report.step}: loss {report.loss:.4f}, {report.inner_steps} inner steps", flush=True
    )


def main() -> None:
    if len(sys.argv) == 3:
        {"ask": ask, "tell": tell}[sys.argv[1]](Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            for verb in ("ask", "tell"):
                subprocess.run([sys.executable, __file__, verb, folder], check=True)


if __name__ == "__main__":
    main()
