"""Several ranks do what one process does on the joined batch, agree bit for bit, and fail together."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import targetopt as to
from core_parts import SOLVERS
from ranks import (
    CUTS,
    MATRIX,
    ONLY_ITERATIVE,
    ROWS,
    RULES,
    X,
    Y,
    flat,
    matrix,
    network,
    rows_of,
    spawned,
    trained,
)
from targetopt.distributed import OnFirstRank, RankFailed, world_of

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and sys.platform == "linux"), reason="needs gloo"
)

SOLVER_OF = dict(zip(RULES, 3 * list(SOLVERS), strict=False))
FAST = [(rule, "lbfgs" if (rule, s) not in MATRIX else s) for rule, s in SOLVER_OF.items()]
"""Every rule once, every solver at least once."""


def logistic(rows: Tensor) -> to.LossOracle:
    return to.LossOracle(to.losses.Logistic(Y[rows]))


class Failing:
    """An oracle that fails at one question on one rank."""

    def __init__(self, rank: int, at: int, inside: to.Oracle) -> None:
        self.rank, self.at, self.inside, self.asked = rank, at, inside, 0

    def query(self, z: Tensor) -> to.TargetPoint:
        self.asked += 1
        if self.asked == self.at and dist.get_rank() == self.rank:
            raise ConnectionError("the simulator is gone")
        return self.inside.query(z)


def refused(step: Any) -> str:
    """The error's type and text."""
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def failing_oracle(rank: int, size: int) -> dict[str, Any]:
    """Step 2 fails on rank 1; nothing has changed anywhere, and the step can be done again."""
    rows, model = rows_of(rank, size), network()
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=2))
    oracle = Failing(1, 2, logistic(rows))
    step = lambda: opt.step(lambda: model(X[rows])[:, 0], oracle)  # noqa: E731
    step()
    before = flat(model)
    said = refused(step)
    unchanged = torch.equal(before, flat(model)) and opt.totals.oracle_calls == 1
    step()
    return {"said": said, "unchanged": unchanged, "after": flat(model)}


def failing_forward(rank: int, size: int) -> dict[str, Any]:
    """A forward that fails in the middle of the inner loop on rank 0, while the other waits for a sum."""
    rows, model = rows_of(rank, size), network()
    calls = 0

    def forward() -> Tensor:
        nonlocal calls
        calls += 1
        if rank == 0 and calls == 5:
            raise MemoryError("no memory left")
        return model(X[rows])[:, 0]

    opt = to.SSO(model.parameters(), lr=1.0, inner=to.LBFGS(max_steps=5))
    before = flat(model)
    said = refused(lambda: opt.step(forward, logistic(rows)))
    return {"said": said, "unchanged": torch.equal(before, flat(model))}


def differing(rank: int, size: int) -> dict[str, str]:
    rows, model = rows_of(rank, size), network()
    step = lambda **o: to.SSO(model.parameters(), **{"lr": 1.0, **o}).step(  # noqa: E731
        lambda: model(X[rows])[:, 0], logistic(rows)
    )
    settings = refused(lambda: step(lr=1.0 + rank))
    with torch.no_grad():
        model[0].bias[0] += 1e-12 * rank
    parameters = refused(step)
    alone = refused(lambda: step(group=None))
    return {"settings": settings, "parameters": parameters, "alone": alone}


def on_first_rank(rank: int, size: int) -> tuple[Tensor, int]:
    """Rank 0 has the oracle; `LineSearch` asks it for values too, `Newton` for curvatures."""
    rows, asked = rows_of(rank, size), 0

    class Counting(to.LossOracle):
        def query(self, z: Tensor) -> to.TargetPoint:
            nonlocal asked
            asked += 1
            return super().query(z)

    oracle = OnFirstRank(Counting(to.losses.Logistic(Y)) if rank == 0 else None)
    found = []
    for rule, lr in ((to.LineSearch(), None), (to.Newton(), 0.5)):
        model = network()
        opt = to.SSO(model.parameters(), lr=lr, rule=rule, inner=to.Armijo(max_steps=2))
        for _ in range(2):
            opt.step(lambda model=model: model(X[rows])[:, 0], oracle)
        found.append(flat(model))
    return torch.cat(found), asked


def ask_and_tell(rank: int, size: int) -> Tensor:
    rows, model = rows_of(rank, size), network()
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=2))
    forward = lambda: model(X[rows])[:, 0]  # noqa: E731
    query = opt.ask(forward)
    point = logistic(rows).query(query.targets)
    opt.tell(query, forward, point.losses, point.gradients)
    again = pickle.loads(pickle.dumps(opt))
    assert again.group == "auto"
    return flat(model)


def wrapped(rank: int, size: int) -> dict[str, Tensor]:
    """DDP and FSDP2, whose shards of five rows are uneven on two ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    rows, found = rows_of(rank, size), {}
    for solver, rule in (("torch-adam", to.GradientStep()), ("lbfgs", to.TrustRegion())):
        sharded, model = network(), network()
        fully_shard(sharded[0])
        fully_shard(sharded)
        for name, outer in (("fsdp", sharded), ("ddp", DistributedDataParallel(model))):
            opt = to.SSO(
                outer.parameters(), lr=2.0, rule=rule, inner=SOLVERS[solver], weight_decay=0.01
            )
            for _ in range(3):
                opt.step(lambda m=outer: m(X[rows])[:, 0], logistic(rows))
            found[f"{name} {solver} {type(rule).__name__}"] = flat(outer)
    exact = to.SSO(sharded.parameters(), lr=1.0, inner=to.GaussNewton())
    assert "GaussNewton needs the Jacobian" in refused(
        lambda: exact.step(lambda: sharded(X[rows])[:, 0], logistic(rows))
    )
    return found


def remembered(rank: int, size: int) -> Tensor:
    """`Memory` with mini-batches: every rank keeps the rows of its own part of the data."""
    own = rows_of(rank, size)
    model = network()
    opt = to.SSO(model.parameters(), lr=0.3, rule=to.Memory(), inner=to.Armijo(max_steps=2))
    for t in range(3):
        batch = {1: [t, 5 + t, 6 + t], 2: [t] if rank == 0 else [5 + t, 6 + t]}[size]
        rows = torch.tensor(batch)
        opt.step(
            lambda rows=rows: model(X[rows])[:, 0],
            logistic(rows),
            index=rows - int(own[0]),
            regularise_on=lambda: model(X[own])[:, 0],
        )
    return flat(model)


def regularised(rank: int, size: int) -> Tensor:
    """The analysis surrogate: gradient on a batch, regulariser on all data, both over all ranks."""
    own = rows_of(rank, size)
    rows, model = own[::2], network()
    if size == 1:
        rows = torch.cat([rows_of(r, 2)[::2] for r in range(2)])
    opt = to.SSO(model.parameters(), lr=0.5, inner=to.LBFGS(max_steps=3))
    for _ in range(2):
        opt.step(
            lambda: model(X[rows])[:, 0],
            logistic(rows),
            regularise_on=lambda: model(X[own])[:, 0],
        )
    return flat(model)


def without_closed_form(rank: int, size: int) -> dict[str, str]:
    """What `Exact` says to rules whose surrogates have no minimiser in closed form."""
    step = lambda rule: matrix(rank, size, [(rule, "exact")], 2)  # noqa: E731
    return {rule: refused(lambda rule=rule: step(rule)) for rule in sorted(ONLY_ITERATIVE)}


def everything(rank: int, size: int) -> dict[str, Any]:
    """All that needs a process group, in one."""
    works = [matrix_fast, failing_oracle, failing_forward, differing, on_first_rank]
    works += [ask_and_tell, wrapped, remembered, regularised, without_closed_form]
    return {work.__name__: work(rank, size) for work in works}


def matrix_fast(rank: int, size: int) -> dict[Any, Any]:
    return matrix(rank, size, FAST, 2)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return spawned(2, tmp_path_factory.mktemp("ranks") / "two", everything)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((a - b).abs().max() <= tolerance * (1 + b.abs().max()))


def reported(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All but the backward passes, of which `Exact` takes one for each row of its rank."""
    return [{**report, "backward_calls": 0} for report in reports]


def check_matrix(ranks: list[dict[Any, Any]], steps: int) -> None:
    """Bitwise equal among the ranks, the reports included, and every pair equal to one process to 1e-12.

    The problem is one that does not carry rounding further, as `ranks` says; there is no other allowance.
    """
    for cell, (ours, reports) in ranks[0].items():
        alone, single = trained(*cell, torch.arange(ROWS), steps)
        assert close(ours, alone), (cell, float((ours - alone).abs().max()))
        assert [r["inner_steps"] for r in reports] == [r["inner_steps"] for r in single], cell
        for theirs, said in (rank[cell] for rank in ranks):
            assert torch.equal(ours, theirs), cell
            assert repr(reported(reports)) == repr(reported(said)), cell


def test_every_rule_on_two_ranks_is_one_process_on_the_joined_batch(
    two: list[dict[str, Any]],
) -> None:
    check_matrix([rank["matrix_fast"] for rank in two], steps=2)


def test_an_oracle_that_fails_on_one_rank_fails_on_all_and_nothing_changes(
    two: list[dict[str, Any]],
) -> None:
    first, second = (rank["failing_oracle"] for rank in two)
    assert second["said"] == "ConnectionError: the simulator is gone"
    assert first["said"].startswith("RankFailed: rank 1 failed in step: ConnectionError: the simul")
    assert first["unchanged"]
    assert second["unchanged"]
    assert torch.equal(first["after"], second["after"])


def test_a_forward_that_fails_in_the_inner_loop_fails_on_all(two: list[dict[str, Any]]) -> None:
    first, second = (rank["failing_forward"] for rank in two)
    assert first["said"] == "MemoryError: no memory left"
    assert "rank 0 failed in step: MemoryError" in second["said"]
    assert first["unchanged"]
    assert second["unchanged"]


def test_ranks_that_differ_are_told_so(two: list[dict[str, Any]]) -> None:
    for rank in two:
        said = rank["differing"]
        assert "the ranks differ in their settings" in said["settings"]
        assert "the ranks differ in their parameters" in said["parameters"]
        assert said["alone"] == ""


def test_rank_0_asks_for_all(two: list[dict[str, Any]]) -> None:
    alone, _ = on_first_rank_alone()
    assert [rank["on_first_rank"][1] for rank in two] == [4, 0]
    for rank in two:
        assert close(rank["on_first_rank"][0], alone)


def on_first_rank_alone() -> tuple[Tensor, int]:
    return on_first_rank(0, 1)


def test_ask_and_tell(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert close(rank["ask_and_tell"], ask_and_tell(0, 1))


def test_memory_shards_its_rows(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert close(rank["remembered"], remembered(0, 1))


def test_exact_refuses_what_has_no_closed_form_on_every_rank(two: list[dict[str, Any]]) -> None:
    for rank in two:
        for rule, said in rank["without_closed_form"].items():
            assert said.startswith("MissingCapability: Exact solves quadratic and entropic"), rule


def test_the_analysis_surrogate(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert close(rank["regularised"], regularised(0, 1))


def test_ddp_and_fsdp_with_uneven_shards(two: list[dict[str, Any]]) -> None:
    for name, found in two[0]["wrapped"].items():
        _, solver, rule = name.split()
        model = network()
        part = to.GradientStep() if rule == "GradientStep" else to.TrustRegion()
        opt = to.SSO(model.parameters(), 2.0, rule=part, inner=SOLVERS[solver], weight_decay=0.01)
        for _ in range(3):
            opt.step(lambda m=model: m(X)[:, 0], logistic(torch.arange(12)))
        assert torch.equal(found, two[1]["wrapped"][name]), name
        assert close(found, flat(model)), name


KILLED = """
import os, sys, time, torch, torch.distributed as dist
from datetime import timedelta
import targetopt as to
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2,
                        timeout=timedelta(seconds=20))
w = torch.zeros(3, requires_grad=True)
opt = to.SSO([w], lr=1.0, inner=to.Armijo(max_steps=5))
calls = 0
def forward():
    global calls
    calls += 1
    if rank == 1 and calls == 12:
        os.kill(os.getpid(), 9)  # in the middle of a step
    return torch.eye(3) @ w
try:
    for _ in range(100):
        before = w.detach().clone()
        opt.step(forward, to.losses.Squared(torch.full((3,), 1000.0)))
except to.TargetoptError as error:
    assert torch.equal(w, before)
    print(type(error).__name__, error)
    os._exit(0)
"""


def test_a_rank_that_is_killed_ends_the_others_with_a_clear_error(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting-point")],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    begin = time.monotonic()
    said, _ = ranks[0].communicate(timeout=120)
    assert ranks[1].wait(timeout=60) == -signal.SIGKILL
    assert said.startswith("RankFailed rank 0 has lost the other ranks"), said
    assert "start all ranks again from the last checkpoint" in said
    assert time.monotonic() - begin < 120


def test_a_process_without_a_group_is_alone() -> None:
    assert world_of("auto").size == 1
    assert world_of(None).size == 1
    with pytest.raises(to.BadArgument, match="init_process_group"):
        world_of(object())
    with pytest.raises(to.BadArgument, match="OnFirstRank: oracle=None"):
        OnFirstRank(None).query(torch.zeros(2))
    assert issubclass(RankFailed, to.TargetoptError)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("size", [size for size in CUTS if size > 1])
def test_every_rule_with_every_solver(size: int, tmp_path: Path) -> None:
    check_matrix(spawned(size, tmp_path / "ranks", matrix, MATRIX, 20), steps=20)


def test_the_bits_of_one_process_do_not_depend_on_the_group_argument() -> None:
    def after(group: object) -> Tensor:
        model: nn.Module = network()
        opt = to.SSO(model.parameters(), lr=1.0, inner=to.LBFGS(max_steps=3), group=group)
        opt.step(lambda: model(X)[:, 0], logistic(torch.arange(12)))
        return flat(model)

    assert torch.equal(after("auto"), after(None))
