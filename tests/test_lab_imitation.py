"""Imitation in the experiment engine: rounds as steps, what is recorded, what is counted, resuming."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch

import targetopt as to
from imitation_parts import teacher
from targetopt import imitation as im
from targetopt.imitation.simulation.shared import stream
from targetopt.lab import Experiment, RunConfig, SpecError, expand, problems
from targetopt.lab.problems.imitation import ImitationProblem, best_reachable
from targetopt.lab.report.lines import readings
from targetopt.lab.run.imitation import ImitationSession
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.store.directory import Run, digest, to_table

ROUNDS, STATES, COPIES = 4, 40, 3


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of an expert for Hopper that is made up."""
    path = tmp_path_factory.mktemp("experts") / "hopper.safetensors"
    return str(teacher(im.Environment("Hopper-v5")).save(path))


def config(file: str, method: dict[str, Any], **options: Any) -> RunConfig:
    small = {"copies": COPIES, "held_out": 60, "episodes": 2, "evaluate_every": 3}
    problem = {"name": "imitation", "expert": file, **small, **options}
    [run] = expand(
        Experiment(problems=[problem], methods=[method], epochs=ROUNDS, batch_size=STATES)
    )
    return run


def session(run: RunConfig) -> ImitationSession:
    opened = load_problem(run.problem).session(run)
    assert isinstance(opened, ImitationSession)
    return opened


def records(run: RunConfig) -> list[dict[str, float]]:
    """What is recorded before the first round and after each."""
    opened = session(run)
    found = [opened.metrics()]
    for t in range(ROUNDS):
        assert opened.advance(t, ROUNDS) == t + 1
        found.append(opened.metrics())
    return found


METHODS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "sso", "m": 5}, {"rule": to.GradientStep(), "inner": to.Armijo(max_steps=5)}),
    ({"name": "sso", "m": 5, "inner": "lbfgs"}, {"rule": to.GradientStep(), "inner": to.LBFGS(max_steps=5)}),
    ({"name": "adam"}, {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-3)}),
    ({"name": "sgd-m", "m": 5, "lr": 0.01}, {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01), "steps": 5}),
]  # fmt: skip


WAYS = [
    pytest.param(
        *METHODS[method],
        behaviour,
        policy,
        id=f"{METHODS[method][0]['name']}-{method}-{behaviour}-{policy}",
        marks=[] if (method + place) % 2 == 0 else pytest.mark.slow,
    )
    for method in range(len(METHODS))
    for place, (behaviour, policy) in enumerate(
        [("cloning", "linear"), ("cloning", "mlp"), ("online", "mlp"), ("online", "linear")]
    )
]
"""Every method with either behaviour; the other policy of each is in the long lane."""


@pytest.mark.parametrize(("method", "options", "behaviour", "policy"), WAYS)
def test_a_run_is_what_train_does(
    expert: str, method: dict[str, Any], options: dict[str, Any], behaviour: Any, policy: Any
) -> None:
    alone = (
        {"copies": 1, "burn_in": 0} if behaviour == "cloning" else {}
    )  # train shows whole episodes
    found = records(config(expert, method, behaviour=behaviour, policy=policy, **alone))
    trained = im.train(
        "Hopper-v5",
        expert,
        learner=policy,
        behaviour=behaviour,
        data="round",
        rounds=ROUNDS,
        states_per_round=STATES,
        copies=COPIES,
        evaluate_every=3,
        evaluation_episodes=2,
        held_out=60,
        progress=False,
        **options,
    )
    losses = [each.loss for each in trained.history]
    # the loss of round t, before its update, is recorded after round t − 1
    assert [row["loss"] for row in found[:-1]] == losses  # bit for bit: it is the same code
    measured = [each.held_out_loss for each in trained.history]
    assert [row["held_out_loss"] for row in found[1:]] == measured
    returns = [row["mean_return"] for row in found if "mean_return" in row]
    assert returns[1:] == [r.mean_return for r in trained.history if r.mean_return == r.mean_return]


def test_on_the_loss_itself_sso_is_plain_steps(expert: str) -> None:
    """At η = 1/L = 1 the surrogate is the loss of the round: the control is SSO with that step."""
    for policy in ("linear", "mlp"):
        plain = records(config(expert, {"name": "adam-m", "m": 6}, policy=policy))
        ours = {"name": "sso", "m": 6, "inner": "adam", "lr": 1.0}
        surrogate = records(config(expert, ours, policy=policy))
        exact = 1e-9 if policy == "linear" else 1e-4  # networks are float32
        for a, b in zip(plain, surrogate, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=exact)


def test_metrics_and_when_they_are_measured(expert: str) -> None:
    found = records(config(expert, {"name": "sso", "m": 3}, policy="linear"))
    returns = ["mean_return" in row for row in found]
    assert returns == [True, False, False, True, True]  # every third round, and the last
    assert all(row["best_in_class"] <= row["loss"] for row in found)
    assert all(math.isfinite(row["held_out_loss"]) for row in found)
    assert math.isnan(found[0]["updating_time"])  # nothing has been updated yet
    assert all(row["updating_time"] > 0 and row["gathering_time"] > 0 for row in found[1:])
    problem = problems.get("imitation", expert=expert, episodes=2)
    assert isinstance(problem, ImitationProblem)
    told = problem.returns(problem.model(0))
    assert told["mean_return"] / problem.measurement.expert.mean == told["return_share"]
    assert told == problem.returns(problem.model(0))  # the same episodes every time


@pytest.mark.parametrize("gatherer", ["auto", "gymnasium", "torch"])
@pytest.mark.parametrize(
    "method", [{"name": "sso", "m": 3, "inner": "adam"}, {"name": "adam-m", "m": 3}], ids=str
)
def test_a_checkpoint_goes_on_bitwise(expert: str, gatherer: str, method: dict[str, Any]) -> None:
    run = config(expert, method, gatherer=gatherer)
    whole = session(run)
    buffer = io.BytesIO()
    for t in range(ROUNDS):
        if t == 2:
            torch.save(whole.state_dict(), buffer)
            saved = whole.metrics()
        whole.advance(t, ROUNDS)
    buffer.seek(0)
    resumed = session(run)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert resumed.metrics() == saved  # its clocks, too: a round may be recorded after it was saved
    for t in range(2, ROUNDS):
        resumed.advance(t, ROUNDS)
    before, after = whole.metrics(), resumed.metrics()
    clocks = ("gathering_time", "updating_time")
    assert {k: v for k, v in before.items() if k not in clocks} == {
        k: v for k, v in after.items() if k not in clocks
    }
    assert resumed.counts == whole.counts


def test_seeds_share_what_does_not_depend_on_the_method(expert: str) -> None:
    """With one seed, methods begin at the same policy, and cloning sees the same states."""
    for behaviour, until in (("cloning", ROUNDS), ("online", 0)):
        runs = [
            session(config(expert, method, behaviour=behaviour))
            for method in ({"name": "adam"}, {"name": "sso", "m": 4})
        ]
        for t in range(until + 1):
            batches = [each.training.gather() for each in runs]
            assert np.array_equal(batches[0].states, batches[1].states)
            for each in runs:
                each.advance(t, t + 1)


def test_rounds_that_runs_share_are_those_that_each_would_gather(expert: str) -> None:
    """In state, counts and clocks, from any round on, however the rounds come to be there."""
    run = config(expert, {"name": "sso", "m": 3}, behaviour="cloning")

    def advanced(opened: ImitationSession, rounds: range) -> list[str]:
        found = []
        for t in rounds:
            opened.advance(t, ROUNDS)
            training = opened.training
            state = training.state_dict()
            clocks = [
                state.pop("gathering_time"),
                [r.pop("gathering_time") for r in state["history"]],
            ]
            for each in state["history"]:
                del each["updating_time"]
            found.append(repr((opened.metrics()["loss"], training.gatherer.burn_in_steps, state)))
            assert np.isfinite(clocks[0])
        return found

    stream.cache_clear()
    gathered = advanced(session(run), range(ROUNDS))
    [rounds] = [session(run).training.gatherer.rounds]
    assert len(rounds) == ROUNDS + 1
    taking = session(run)
    assert advanced(taking, range(ROUNDS)) == gathered
    simulators = taking.training.gatherer.copies
    assert not simulators.observations.any()  # they have not been moved
    for place in list(rounds)[2:]:  # from here on, they must catch up with what was taken
        del rounds[place]
    assert advanced(session(run), range(ROUNDS)) == gathered
    assert len(rounds) == ROUNDS + 1
    kept = session(run)
    advanced(kept, range(2))
    buffer = io.BytesIO()
    torch.save(kept.state_dict(), buffer)
    buffer.seek(0)
    stream.cache_clear()
    resumed = session(run)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert advanced(resumed, range(2, ROUNDS)) == gathered[2:]
    other = session(config(expert, {"name": "sso", "m": 3}, behaviour="cloning", copies=4))
    assert not other.training.gatherer.rounds.keys() & {(STATES, STATES)}


def test_plain_steps_buy_their_labels_once(expert: str) -> None:
    opened = session(config(expert, {"name": "sgd-m", "m": 7, "lr": 0.01}))
    opened.advance(0, 1)
    opened.advance(1, 2)
    counts = opened.counts
    assert (counts.oracle_calls, counts.inner_steps) == (2, 14)
    assert counts.forward_calls == counts.backward_calls == 14


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ({"name": "sso", "inner": "exact"}, {"policy": "mlp"}, "needs a linear problem"),
        ({"name": "sgd"}, {"policy": "mlp"}, "no L_θ is known"),
        ({"name": "adam"}, {"gatherer": "torch", "behaviour": "cloning"}, "must be 'online'"),
        ({"name": "adam"}, {"evaluate_every": -1}, "at least 0"),
        ({"name": "adam"}, {"environment": "Hoper-v5"}, "Hoper-v5"),
        ({"name": "adam"}, {"environment": "Walker2d-v5"}, "11"),
        ({"name": "adam"}, {"expert": "td3"}, "no expert for environment 'Hopper-v5'"),
    ],
)
def test_what_cannot_be_is_refused(
    expert: str, method: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        config(expert, method, **options)


def test_plain_steps_need_labels_that_are_known() -> None:
    experiment = Experiment(problems=[{"name": "breast_cancer"}], methods=[{"name": "adam-m"}])
    with pytest.raises(SpecError, match="asks the oracle again"):
        expand(experiment)


def test_rounds_need_a_number_of_states(expert: str) -> None:
    problem = {"name": "imitation", "expert": expert}
    with pytest.raises(SpecError, match="say how many a step takes"):
        expand(Experiment(problems=[problem], methods=[{"name": "adam"}], batch_size="full"))


def test_the_best_of_a_class(expert: str) -> None:
    """No linear policy can do better on the states than least squares; a network nearly fits them."""
    for policy, driver in (("linear", "online"), ("mlp", "cloning")):
        problem = problems.get("imitation", expert=expert, policy=policy, copies=2, burn_in=0)
        assert isinstance(problem, ImitationProblem)
        best = best_reachable(problem, driver, 200, passes=200)
        gatherer = problem.gatherer(2**63)
        noise = 1.0 if driver == "online" else 0.0
        batch = gatherer.gather(200, im.noisy(problem.expert, noise), problem.expert)
        at_first = im.mean_loss(problem.model(0), batch.states, batch.labels)
        assert 0 < best.value < 0.5 * at_first


def test_a_metric_keeps_its_last_measurement() -> None:
    columns = {"return": np.array([1.0, np.nan, np.nan, 4.0, np.inf, np.nan])}
    assert readings(Run({}, columns), "return") == pytest.approx(
        [1.0, 1.0, 1.0, 4.0, np.nan, np.nan], nan_ok=True
    )


def test_times_are_no_part_of_a_fingerprint() -> None:
    row = {"step": 0, "oracle_calls": 0, "value_calls": 0, "inner_steps": 0, "forward_calls": 0}
    row |= {"backward_calls": 0, "epoch": 0.0, "wall_time": 1.0, "loss": 2.0}
    first = to_table("a", [{**row, "gathering_time": 0.5}])
    assert digest(first) == digest(to_table("a", [{**row, "gathering_time": 0.7}]))
    assert digest(first) != digest(to_table("a", [{**row, "loss": 3.0, "gathering_time": 0.5}]))
    assert Run({}, {name: np.zeros(1) for name in first.column_names}).metrics == ["loss"]


def test_runs_of_before_keep_their_ids(expert: str) -> None:
    """The yardstick and the data came later: with what was done before they are no part of an id."""
    before = config(expert, {"name": "adam"})
    assert config(expert, {"name": "adam"}, data="round", held_out_by="expert").id == before.id
    assert config(expert, {"name": "adam"}, data="all").id != before.id
    assert config(expert, {"name": "adam"}, held_out_by="noisy expert").id != before.id


def test_all_states_means_as_many_out_of_all_that_were_labelled(expert: str) -> None:
    opened = session(config(expert, {"name": "adam"}, data="all"))
    assert opened.training.data == im.Replay("all", batch=STATES)
    assert load_problem(config(expert, {"name": "adam"}, data="all").problem).label.endswith(
        "all states"
    )
    opened.advance(0, ROUNDS)
    opened.advance(1, ROUNDS)
    assert opened.training.history[-1].states == 2 * STATES


def test_the_noisy_expert_drives_where_a_perfect_learner_would_go(expert: str) -> None:
    """Labels are what the expert says without noise, states what it visits with it; its return is the same."""
    plain, noisy = (
        load_problem(config(expert, {"name": "adam"}, held_out_by=by).problem)
        for by in ("expert", "noisy expert")
    )
    assert isinstance(plain, ImitationProblem)
    assert isinstance(noisy, ImitationProblem)
    assert noisy.measurement.held_out_noise == noisy.noise == 1.0
    assert noisy.measurement.expert_return == plain.measurement.expert_return
    assert noisy.measurement.states.shape == (60, 11)  # of as many episodes as it takes
    assert len(plain.measurement.states) < 60  # all of its own two
    for problem in (plain, noisy):
        said = np.clip(problem.expert(problem.measurement.states), -1, 1)
        np.testing.assert_allclose(problem.measurement.labels, said, atol=1e-6)
    with pytest.raises(to.BadArgument, match="choices"):
        im.Measurement(im.Environment("CartPole-v1"), plain.expert, held_out_noise=0.1)
    with pytest.raises(to.BadArgument, match="held_out_noise=-1"):
        im.Measurement(im.Environment("Hopper-v5"), plain.expert, held_out_noise=-1)
