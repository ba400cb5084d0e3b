"""A run that is killed, wherever, and resumed from its last checkpoint is the same run, bit for bit."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import random
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext

import pytest
import torch
from torch import Tensor

import targetopt as to
from core_parts import MATRIX, fingerprint, identical, optimiser, problem
from resume_runs import (
    SpectralNet,
    answer,
    ask_and_leave,
    run,
    same_files,
    save,
    spectral_run,
    tell_and_go_on,
)
from targetopt.lab.run import origin


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Real processes, forked from the one that has imported torch for the laboratory's workers."""
    origin.started()
    return multiprocessing.get_context("forkserver")


def exit_code(context: ForkServerContext, target: Callable[..., object], *args: object) -> int:
    process = context.Process(target=target, args=args)
    process.start()
    process.join(timeout=600)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_a_killed_run_resumes_bitwise(processes, rule: str, solver: str, tmp_path) -> None:
    events = run(rule, solver, tmp_path / "whole.pt")
    moment = random.Random(f"{rule} {solver}").randint(2, events - 1)
    interrupted = tmp_path / "interrupted.pt"
    assert exit_code(processes, run, rule, solver, interrupted, moment) == -signal.SIGKILL
    assert exit_code(processes, run, rule, solver, interrupted) == 0
    assert same_files(tmp_path / "whole.pt", interrupted)


def test_every_moment_of_a_run_may_be_its_last(processes, tmp_path) -> None:
    """One run, killed again and again: in forwards, oracle and value calls, and between save and rename."""
    rule, solver = "line-search", "gd"
    events = run(rule, solver, tmp_path / "whole.pt")
    for moment in range(1, events + 1, 2):
        path = tmp_path / f"{moment}.pt"
        assert exit_code(processes, run, rule, solver, path, moment) == -signal.SIGKILL
        run(rule, solver, path)
        assert same_files(tmp_path / "whole.pt", path)


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_loading_a_state_repeats_the_reports(rule: str, solver: str) -> None:
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver, schedule=to.schedules.inverse_sqrt())
    for step in range(2):
        p.step(opt, step)
    file = io.BytesIO()
    torch.save((p.model.state_dict(), opt.state_dict(), torch.get_rng_state()), file)
    expected = [p.step(opt, step) for step in range(2, 5)]

    other = problem(rule, solver, seed=9)
    resumed = optimiser(other.model, rule, solver, schedule=to.schedules.inverse_sqrt())
    file.seek(0)
    weights, state, rng = torch.load(file, weights_only=True)
    other.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    torch.set_rng_state(rng)
    assert [other.step(resumed, step) for step in range(2, 5)] == expected
    assert identical(fingerprint(other.model, resumed), fingerprint(p.model, opt))


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_a_state_dict_is_not_changed_by_later_steps(rule: str, solver: str) -> None:
    """In memory too: a kept state_dict must not follow the optimiser (or the one that loaded it)."""
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver)
    p.step(opt, 0)
    kept = opt.state_dict()
    copied = copy.deepcopy(kept)
    twin = optimiser(p.model, rule, solver)
    twin.load_state_dict(kept)
    p.step(opt, 1)
    p.step(twin, 1)
    assert identical(kept, copied)


def test_asked_in_one_process_and_told_in_another(processes, tmp_path) -> None:
    """Dropout, BatchNorm and spectral norm: the question's mask and buffers travel with it."""
    assert exit_code(processes, ask_and_leave, tmp_path) == 0
    assert exit_code(processes, tell_and_go_on, tmp_path) == 0
    model, opt, x = spectral_run(0)
    for _ in range(4):
        opt.step(lambda: model(x), to.GradientOracle(answer))
    save(tmp_path / "whole.pt", model, opt)
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    told = torch.load(tmp_path / "told.pt", weights_only=True)
    # the second process had to evaluate the forward again, twice as buffers move: all else is equal
    spent = whole["opt"]["sso"]["totals"]["forward_calls"]
    assert told["opt"]["sso"]["totals"].pop("forward_calls") == spent + 2
    del whole["opt"]["sso"]["totals"]["forward_calls"]
    assert identical(whole, told)


def test_a_query_can_be_told_again_after_a_bad_answer() -> None:
    outcomes = []
    for clumsy in (False, True):
        model, opt, x = spectral_run(0)
        query = opt.ask(lambda m=model, x=x: m(x))
        losses, gradients = answer(query.targets)
        if clumsy:
            before = fingerprint(model, opt)
            with pytest.raises(to.BadAnswer, match="not finite in 1 of 12 rows: 5"):
                opt.tell(
                    query,
                    lambda m=model, x=x: m(x),
                    losses.index_fill(0, torch.tensor(5), torch.nan),
                    gradients,
                )
            blows_up = to.GradientDescent(step_size=1e200, max_steps=3)
            opt.inner, kept = blows_up, opt.inner
            with pytest.raises(to.Diverged, match="put back"):
                opt.tell(query, lambda m=model, x=x: m(x), losses, gradients)
            opt.inner = kept
            assert identical(fingerprint(model, opt), before)
        opt.tell(query, lambda m=model, x=x: m(x), losses, gradients)
        state = fingerprint(model, opt)
        del state["optimiser"]["sso"]["totals"]["forward_calls"]
        outcomes.append(state)
    assert identical(*outcomes)


def test_ask_and_tell_are_step() -> None:
    """But for one forward a step: tell makes sure that its forward is that of ask."""
    outcomes, spent = [], []
    for split in (False, True):
        model, opt, x = spectral_run(0)
        for _ in range(3):
            if split:
                query = opt.ask(lambda m=model, x=x: m(x))
                opt.tell(query, lambda m=model, x=x: m(x), *answer(query.targets))
            else:
                opt.step(lambda m=model, x=x: m(x), to.GradientOracle(answer))
        state = fingerprint(model, opt)
        spent.append(state["optimiser"]["sso"]["totals"].pop("forward_calls"))
        outcomes.append(state)
    assert identical(*outcomes)
    assert spent[1] == spent[0] + 3


def test_tells_forward_is_the_one_that_is_used() -> None:
    """What ask's closure has come to mean in the meantime does not matter."""
    twin, whole, first = spectral_run(0)
    whole.step(lambda: twin(first), to.GradientOracle(answer))
    model, opt, x = spectral_run(0)
    query = opt.ask(lambda: model(x))
    x = -x.flip(0)  # the loop has gone on to another batch
    opt.tell(query, lambda: model(first), *answer(query.targets))
    assert identical(list(model.parameters()), list(twin.parameters()))
    assert identical(dict(model.named_buffers()), dict(twin.named_buffers()))


def _other_mode(model: SpectralNet) -> None:
    model.eval()


def _other_parameters(model: SpectralNet) -> None:
    with torch.no_grad():
        model.last.weight.add_(1.0)


@pytest.mark.parametrize(
    ("change", "travels"),
    [
        (_other_parameters, False),
        (_other_parameters, True),
        (_other_mode, False),
        (_other_mode, True),
    ],
)
def test_a_query_whose_targets_are_gone_is_refused(change, travels: bool) -> None:
    model, opt, x = spectral_run(0)
    query = opt.ask(lambda: model(x))
    if travels:
        query = pickle.loads(pickle.dumps(query))
    change(model)
    before = fingerprint(model, opt)
    with pytest.raises(to.BadForward, match="between ask and tell"):
        opt.tell(query, lambda: model(x), *answer(query.targets))
    assert identical(fingerprint(model, opt), before)


def other_rows(model: SpectralNet, x: Tensor) -> Callable[[], Tensor]:
    return lambda: model(x.flip(0))


def more_rows(model: SpectralNet, x: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.cat([model(x), model(x)[:2]])


def another_model(model: SpectralNet, x: Tensor) -> Callable[[], Tensor]:
    other = copy.deepcopy(model)
    torch.nn.init.zeros_(other.last.weight)
    return lambda: other(x)


@pytest.mark.parametrize("travels", [False, True])
@pytest.mark.parametrize("wrong", [other_rows, more_rows, another_model])
def test_a_forward_of_other_targets_is_refused_and_the_right_one_then_taken(
    wrong: Callable[..., Callable[[], Tensor]], travels: bool
) -> None:
    outcomes = []
    for clumsy in (False, True):
        model, opt, x = spectral_run(0)
        query = opt.ask(lambda m=model, x=x: m(x))
        if travels:
            query = pickle.loads(pickle.dumps(query))
        if clumsy:
            before = fingerprint(model, opt)
            with pytest.raises(to.BadForward, match=r"between ask and tell.*same forward"):
                opt.tell(query, wrong(model, x), *answer(query.targets))
            assert identical(fingerprint(model, opt), before)
        opt.tell(query, lambda m=model, x=x: m(x), *answer(query.targets))
        outcomes.append(fingerprint(model, opt))
    assert identical(*outcomes)


def test_a_closure_whose_data_have_changed_is_refused() -> None:
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    x = torch.eye(2, dtype=torch.float64)
    opt = to.SSO([w], lr=1.0)

    def forward() -> Tensor:
        return x @ w

    query = opt.ask(forward)
    x = 2 * x
    with pytest.raises(to.BadForward, match="between ask and tell"):
        opt.tell(query, forward, *answer(query.targets))
    assert w.tolist() == [1.0, 1.0]


def test_other_rows_of_a_linear_forward_are_refused() -> None:
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    everything = to.Linear(w, torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 2.0]]))
    opt = to.SSO([w], lr=1.0, inner=to.Exact())
    query = opt.ask(everything.rows([0, 1]))
    with pytest.raises(to.BadForward, match="between ask and tell"):
        opt.tell(query, everything.rows([2, 3]), *answer(query.targets))
    assert w.tolist() == [1.0, 1.0]


def test_a_forward_that_begins_to_draw_or_to_move_buffers_is_refused() -> None:
    """At zero the targets agree whatever the mode; what the other mode does is undone all the same."""
    for layer in (torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2)):
        model = torch.nn.Sequential(layer, torch.nn.Linear(2, 1, bias=False)).double().eval()
        torch.nn.init.zeros_(model[1].weight)
        x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        opt = to.SSO(model.parameters(), lr=1.0)
        query = opt.ask(lambda model=model, x=x: model(x)[:, 0])
        model.train()
        before = fingerprint(model, opt)
        with pytest.raises(to.BadForward, match=r"did not when it was asked.*mode"):
            opt.tell(query, lambda model=model, x=x: model(x)[:, 0], *answer(query.targets))
        assert identical(fingerprint(model, opt), before)


def test_a_query_is_told_once_and_in_order() -> None:
    model, opt, x = spectral_run(0)
    query = opt.ask(lambda: model(x))
    opt.tell(query, lambda: model(x), *answer(query.targets))
    with pytest.raises(
        to.BadArgument, match=r"belongs to step 1; the optimiser is at step 2.*ask again"
    ):
        opt.tell(query, lambda: model(x), *answer(query.targets))


@pytest.mark.parametrize(
    ("rule", "solver", "words"),
    [
        ("newton", "armijo", "rule=GradientStep.*has Newton"),
        ("gradient", "lbfgs", "inner=Armijo.*has LBFGS"),
    ],
)
def test_the_state_of_other_parts_is_refused(rule: str, solver: str, words: str) -> None:
    p = problem("gradient", "armijo")
    saved = optimiser(p.model, "gradient", "armijo")
    p.step(saved, 0)
    opt = optimiser(p.model, rule, solver)
    before = fingerprint(p.model, opt)
    with pytest.raises(to.BadArgument, match=words):
        opt.load_state_dict(saved.state_dict())
    assert identical(fingerprint(p.model, opt), before)


def test_the_state_of_another_optimiser_is_refused() -> None:
    p = problem("gradient", "armijo")
    opt = optimiser(p.model, "gradient", "armijo")
    with pytest.raises(to.BadArgument, match="not one of SSO"):
        opt.load_state_dict(torch.optim.SGD(p.model.parameters(), lr=0.1).state_dict())


@pytest.mark.parametrize(
    "lost", ["steps", "totals", "rule", "rule_state", "inner_state", "trained"]
)
def test_a_damaged_state_changes_nothing(lost: str) -> None:
    p = problem("adagrad", "torch-adam")
    opt = optimiser(p.model, "adagrad", "torch-adam")
    p.step(opt, 0)
    damaged = copy.deepcopy(opt.state_dict())
    damaged["param_groups"][0]["lr"] = 9.0
    del damaged["sso"][lost]
    before = fingerprint(p.model, opt)
    with pytest.raises(to.BadArgument, match=f"'{lost}'|{lost}=None"):
        opt.load_state_dict(damaged)
    assert identical(fingerprint(p.model, opt), before)
