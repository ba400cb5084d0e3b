"""What an SSO step costs beside a plain SGD step, and which inner solver is the best default."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

import targetopt as to
from benchmarks.harness import in_turns, one_thread, save, table, verdict
from targetopt.losses import CrossEntropy, Logistic, Loss, Squared


def policy_mlp() -> nn.Module:
    """The imitation learner of the paper: Hopper's 11 observations to 3 action means."""
    return nn.Sequential(
        nn.Linear(11, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)
    )


def policy_batch(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 11, generator=generator)
    teacher = nn.Sequential(nn.Linear(11, 64), nn.Tanh(), nn.Linear(64, 3))
    with torch.no_grad():
        for p in teacher.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
        return x, teacher(x)


def sgd_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The peer: torch's own loop on the same model and loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        (0.5 * (model(x) - y).square().sum(dim=1)).mean().backward()
        optimiser.step()

    return step


def sso_step(
    model: nn.Module, x: Tensor, y: Tensor, inner: to.Inner
) -> Callable[[], to.StepReport]:
    optimiser = to.SSO(model.parameters(), lr=0.5, inner=inner)
    oracle = to.LossOracle(Squared(y))
    return lambda: optimiser.step(lambda: model(x), oracle)


def step_costs() -> list[dict[str, object]]:
    """Inner step and outer overhead as ratios to one SGD step."""
    rows: list[dict[str, object]] = []
    cases = [
        ("Armijo m=100, per inner step", 1000, to.Armijo(max_steps=100), 100, 1.2),
        ("m=1, outer step", 1000, to.GradientDescent(step_size=1e-3, max_steps=1), 1, 1.5),
        ("m=1, outer step", 10, to.GradientDescent(step_size=1e-3, max_steps=1), 1, 3.0),
    ]
    for name, batch, inner, steps, limit in cases:
        x, y = policy_batch(batch)
        torch.manual_seed(0)
        ours = policy_mlp()
        theirs = copy.deepcopy(ours)
        times = in_turns(
            {"sgd": sgd_step(theirs, x, y), "sso": sso_step(ours, x, y, inner)}, rounds=15
        )
        ratio = times["sso"] / steps / times["sgd"]
        rows.append(
            {
                "case": name,
                "batch": batch,
                "sgd_ms": 1e3 * times["sgd"],
                "sso_ms": 1e3 * times["sso"],
                "ratio": ratio,
                "limit": limit,
            }
        )
    return rows


@dataclass
class Problem:
    name: str
    model: Callable[[], nn.Module]
    x: Tensor
    loss: Loss


def standardised(x: object) -> Tensor:
    t = torch.as_tensor(x, dtype=torch.float32)
    return (t - t.mean(0)) / t.std(0).clamp_min(1e-6)


def problems() -> list[Problem]:
    x, y = policy_batch(1000)
    digits = load_digits()
    pixels, classes = (
        torch.tensor(digits.data / 16, dtype=torch.float32),
        torch.tensor(digits.target),
    )
    cancer, diabetes = load_breast_cancer(), load_diabetes()
    labels = torch.as_tensor(2.0 * cancer.target - 1.0, dtype=torch.float32)
    progress = standardised(diabetes.target.reshape(-1, 1))
    return [
        Problem("policy mlp 11-256-256-3", policy_mlp, x, Squared(y)),
        Problem(
            "digits mlp 64-64-10",
            lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)),
            pixels,
            CrossEntropy(classes),
        ),
        Problem(
            "digits conv",
            lambda: nn.Sequential(
                nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
                nn.Flatten(), nn.Linear(128, 10),
            ),
            pixels,
            CrossEntropy(classes),
        ),
        Problem(
            "cancer linear",
            lambda: nn.Sequential(nn.Linear(30, 1), nn.Flatten(0)),
            standardised(cancer.data),
            Logistic(labels),
        ),
        Problem(
            "diabetes deep mlp",
            lambda: nn.Sequential(
                nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
                nn.Linear(32, 1),
            ),
            standardised(diabetes.data),
            Squared(progress),
        ),
    ]  # fmt: skip


SOLVERS: dict[str, Callable[[int], to.Inner]] = {
    "Armijo": lambda m: to.Armijo(max_steps=m),
    "LBFGS": lambda m: to.LBFGS(max_steps=m),
    "GaussNewton": lambda m: to.GaussNewton(max_steps=m),
    "Adam(1e-3)": lambda m: to.Torch(lambda p: torch.optim.Adam(p, lr=1e-3), max_steps=m),
}


def one_step(problem: Problem, inner: to.Inner, warm: int) -> to.StepReport:
    """The report of one outer step, after ``warm`` others that every solver begins from."""
    torch.manual_seed(0)
    model = problem.model()
    oracle = to.LossOracle(problem.loss)
    before = to.SSO(model.parameters(), inner=to.LBFGS(max_steps=10))
    for _ in range(warm):
        before.step(lambda: model(problem.x), oracle)
    opt = to.SSO(model.parameters(), inner=inner, check_purity=False)
    opt.step(lambda: model(problem.x), oracle)  # finds its step size, history, damping
    return opt.step(lambda: model(problem.x), oracle)


def work(report: to.StepReport) -> int:
    """Forwards and backwards; a Jacobian-vector product counts as one of each."""
    return report.forward_calls + report.backward_calls + 2 * report.jvp_calls


def solver_table() -> list[dict[str, object]]:
    """Work each solver needs to decrease the surrogate as far as Armijo does in 100 steps."""
    rows: list[dict[str, object]] = []
    for problem in problems():
        goal = one_step(problem, to.Armijo(max_steps=100), warm=3)
        row: dict[str, object] = {"problem": problem.name, "Armijo(100)": work(goal)}
        for name, make in SOLVERS.items():
            if name == "Armijo":
                continue
            row[name] = None
            for m in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 100, 200):
                report = one_step(problem, make(m), warm=3)
                if report.surrogate_decrease >= goal.surrogate_decrease:
                    row[name] = work(report)
                    break
        rows.append(row)
    return rows


def main() -> None:
    one_thread()
    costs = step_costs()
    print(f"Time per step as a ratio to torch {torch.__version__} SGD (MLP 11-256-256-3):")
    table(
        ["case", "batch", "SGD ms", "SSO ms", "ratio", "target"],
        [
            [r["case"], r["batch"], f"{r['sgd_ms']:.3f}", f"{r['sso_ms']:.3f}", f"{r['ratio']:.2f}",
             verdict(float(str(r["ratio"])), float(str(r["limit"])))]
            for r in costs
        ],
    )  # fmt: skip
    solvers = solver_table()
    print(
        "Forwards + backwards to reach the surrogate value of Armijo at m = 100 (one outer step):"
    )
    header = ["problem", "Armijo(100)", *[s for s in SOLVERS if s != "Armijo"]]
    table(header, [["not reached" if r[h] is None else r[h] for h in header] for r in solvers])
    print("written to", save("core", {"step_costs": costs, "solvers": solvers}))


if __name__ == "__main__":
    main()
