"""Training: what a round does and says, resuming bitwise after a kill, and errors that lose nothing."""

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import imitation_runs
import targetopt as to
from forked import Forked
from imitation_parts import PointMass, spring, teacher
from targetopt import BadArgument, Diverged
from targetopt import imitation as im
from targetopt.imitation import checkpoint as checkpoints
from targetopt.imitation.policies.network import Array


def run(env: Any = PointMass, expert: Any = spring, **options: Any) -> im.Result:
    """A short training on the point mass."""
    defaults: dict[str, Any] = {
        "rounds": 6, "states_per_round": 60, "copies": 3, "evaluate_every": 2, "evaluation_episodes": 3,
        "progress": False, "learner": "linear", "inner": None if "optimizer" in options else to.Exact(),
        "behaviour": "online", "data": "round",
    }  # fmt: skip
    return im.train(env, expert, **(defaults | options))


def timeless(result: im.Result) -> list[im.Round]:
    return [replace(r, gathering_time=0.0, updating_time=0.0) for r in result.history]


def same(ours: im.Result, theirs: im.Result) -> None:
    for a, b in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert repr(timeless(ours)) == repr(timeless(theirs))  # nan is nan


def test_a_linear_learner_with_exact_steps_becomes_its_linear_expert() -> None:
    result = run(lr=1.0, expert=lambda s: 0.2 - 0.3 * s[:, :1], behaviour="cloning")
    layer = result.policy.layers[0]
    np.testing.assert_allclose(layer.weight.detach(), [[-0.3, 0.0]], atol=1e-9)
    np.testing.assert_allclose(layer.bias.detach(), [0.2], atol=1e-9)
    last = result.history[-1]
    assert last.loss < 1e-20
    assert last.held_out_loss < 1e-20
    assert last.mean_return == pytest.approx(result.expert_return, rel=1e-9)


def test_half_a_target_step_halves_the_distance_to_a_linear_expert() -> None:
    """GradientStep alone is 1/(2L) = ½, and with exact inner solves z moves by ½ of the way on the batch."""
    seen: list[im.Round] = []
    result = run(
        behaviour="cloning",
        expert=lambda s: 0.3 * s[:, :1],
        rule=to.GradientStep(),
        callback=seen.append,
        rounds=4,
    )
    weight = result.policy.layers[0].weight.detach().numpy()
    begin = im.GaussianPolicy(2, 1, mean="linear").layers[0].weight.detach().numpy()
    np.testing.assert_allclose(weight - [[0.3, 0.0]], (begin - [[0.3, 0.0]]) / 2**4, atol=1e-12)
    assert seen == result.history or repr(seen) == repr(result.history)


class Reached(Exception):
    """Nine tenths of the expert's return."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("environment", ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"])
def test_nothing_chosen_comes_to_95_percent_of_the_expert(environment: str) -> None:
    """At most 50 rounds of 1000 states, the SAC expert."""

    def stop(latest: im.Round) -> None:
        if latest.return_share >= 0.95:
            raise Reached

    with pytest.raises(Reached):
        im.train(environment, "sac", progress=False, callback=stop)


def test_what_a_round_reports() -> None:
    result = run(learner="mlp", inner=to.Armijo(max_steps=4), behaviour="dagger")
    columns = result.columns()
    np.testing.assert_array_equal(columns["round"], range(1, 7))
    np.testing.assert_array_equal(columns["interactions"], 60 * np.arange(1, 7))
    np.testing.assert_array_equal(columns["beta"], 0.5 ** np.arange(6))
    np.testing.assert_array_equal(np.isfinite(columns["mean_return"]), [False, True] * 3)
    np.testing.assert_array_equal(columns["oracle_calls"], 1)
    np.testing.assert_array_equal(columns["inner_steps"], 4)
    assert (columns["forward_calls"] >= 5).all()
    assert columns["loss"][-1] < columns["loss"][0]
    assert columns["held_out_loss"][-1] < columns["held_out_loss"][0]


def test_the_measures_are_what_they_say(tmp_path: Path) -> None:
    """Loss before the update on fresh states; held-out loss and return after it, on fixed ones."""
    rounds: list[im.Round] = []
    policies: list[im.GaussianPolicy] = []
    learner = im.GaussianPolicy(2, 1, mean="linear", low=-1.0, high=1.0)

    def note(latest: im.Round) -> None:
        rounds.append(latest)
        policies.append(im.load_policy(learner.save(tmp_path / "policy.safetensors")))

    run(learner=learner, callback=note, rounds=2, evaluate_every=1, behaviour="online")
    environment = im.Environment(PointMass)
    yardstick = im.Measurement(environment, spring, episodes=3)
    for latest, policy in zip(rounds, policies, strict=True):
        assert latest.held_out_loss == im.mean_loss(policy, yardstick.states, yardstick.labels)
        returns = im.evaluate(policy, PointMass, episodes=3, seed=2**63).returns
        assert latest.mean_return == pytest.approx(returns.mean(), rel=1e-12)
    gatherer = im.make_gatherer(PointMass, copies=3, seed=0)
    first = im.GaussianPolicy(2, 1, mean="linear", low=-1.0, high=1.0)
    for latest, before in zip(rounds, [first, *policies], strict=False):
        batch = gatherer.gather(60, im.mixture("online").at(1, before, spring), spring)
        assert latest.loss == im.mean_loss(before, batch.states, batch.labels)


@pytest.mark.parametrize(
    ("factory", "steps"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 1),
        (lambda p: torch.optim.Adam(p, lr=1e-2), 25),
        (lambda p: torch.optim.Adagrad(p, lr=1e-1), 1),
        (lambda p: to.baselines.SLS(p), 3),
        (lambda p: torch.optim.LBFGS(p, max_iter=3), 2),
    ],
)
def test_baselines_take_their_steps_on_the_batch_loss(
    factory: Callable[[Any], torch.optim.Optimizer], steps: int
) -> None:
    result = run(learner="mlp", optimizer=factory, steps=steps)
    assert {r.inner_steps for r in result.history} == {steps}
    assert {r.oracle_calls for r in result.history} == {1}
    assert all(r.forward_calls >= steps for r in result.history)
    assert result.history[-1].held_out_loss < result.history[0].held_out_loss


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (PointMass, {"learner": "mlp", "inner": to.LBFGS(max_steps=3), "behaviour": "dagger"}),
        (PointMass, {"rule": to.AdaGradNorm()}),
        (PointMass, {"learner": "mlp", "optimizer": lambda p: torch.optim.Adam(p), "steps": 3}),
        (PointMass(), {"copies": None, "learner": "mlp", "inner": to.Armijo(max_steps=2)}),
    ],
)
def test_a_run_that_stops_and_goes_on_is_the_same_run(
    env: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    whole = run(env, **options)
    file = tmp_path / "run.pt"
    run(env, **options, rounds=2, checkpoint=file)
    parts = run(env, **options, checkpoint=file)
    same(parts, whole)
    again = run(env, **options, checkpoint=file)  # nothing left to do
    same(again, whole)


def test_training_resumes_bitwise_after_kill_9(tmp_path: Path) -> None:
    """A real process, a real kill in mid-run, and the bits of a run that was never killed."""
    rounds, names = "9", ("whole", "killed")
    files = {
        n: (str(tmp_path / f"{n}.pt"), rounds, str(tmp_path / f"{n}.safetensors")) for n in names
    }
    with Forked(imitation_runs.main, *files["killed"]) as process:
        while int(process.said.readline()) < 4:
            pass
        process.kill()  # a round takes tens of milliseconds: in one of them
        assert process.wait() == -signal.SIGKILL
    assert not Path(files["killed"][2]).exists()
    saved = torch.load(files["killed"][0], weights_only=True)["state"]["history"]
    assert 4 <= len(saved) < 9
    for name in names:
        imitation_runs.main(*files[name])
    states = [torch.load(files[name][0], weights_only=True)["state"] for name in names]
    for state in states:
        del state["gathering_time"], state["teacher"]["asked"]["checking"]
        for record in state["history"]:
            del record["gathering_time"], record["updating_time"]
    assert repr(states[0]) == repr(states[1])
    whole, killed = (im.load_policy(files[name][2]) for name in names)
    for a, b in zip(whole.parameters(), killed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("saved", [True, False])
def test_an_environment_that_raises_in_mid_round_loses_no_work(saved: bool, tmp_path: Path) -> None:
    """The round goes on after resuming; without a checkpoint the policy so far is in the error."""
    made = 0

    def make() -> PointMass:  # copy 1 of the gatherer fails at its 50th step: in round 3
        nonlocal made
        made += 1
        return PointMass(fail_at=50 if made == 3 else None)

    file = tmp_path / "run.pt"
    with pytest.raises(im.EnvironmentFailed, match="licence expired") as caught:
        run(make, checkpoint=file if saved else None)
    assert [r.round for r in caught.value.result.history] == [1, 2]
    note = caught.value.__notes__[0]
    if not saved:
        assert "2 rounds were finished: error.result" in note
        return
    assert "run.pt" in note
    assert "train again with this checkpoint" in note
    result = run(make, checkpoint=file)
    kept = timeless(caught.value.result)
    assert repr(timeless(result)[:2]) == repr(kept)
    assert result.history[-1].interactions == 6 * 60  # no state was gathered twice


def test_an_environment_that_raises_in_an_evaluation_loses_no_round(tmp_path: Path) -> None:
    """The round is done and saved, and what goes on is the run without the failure."""
    made = 0

    def make() -> PointMass:  # an evaluation's copy, failing at its 50th step: after the expert's
        nonlocal made
        made += 1
        return PointMass(fail_at=50 if made == 5 else None)

    file = tmp_path / "run.pt"
    with pytest.raises(
        im.EnvironmentFailed, match=r"failed in an evaluation: step.*licence"
    ) as caught:
        run(make, checkpoint=file)
    assert [r.round for r in caught.value.result.history] == [1, 2]
    same(run(make, checkpoint=file), run())


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    run(rounds=1, checkpoint=file)
    content = file.read_bytes()
    for options, message in [
        ({"seed": 3}, "seed: 0 there, 3 here"),
        ({"lr": 0.1}, "update lr: 1.0 there, 0.1 here"),
        ({"behaviour": "cloning"}, "behaviour"),
        ({"behaviour": im.Mixture(im.Geometric(0.3))}, r"behaviour.*Geometric\(decay=0.3\)"),
        ({"schedule": to.schedules.inverse_sqrt()}, "InverseSqrt"),
        ({"expert": lambda s: 0.5 * spring(s)}, "expert: it does not answer as it did"),
        ({"learner": "mlp", "inner": to.LBFGS()}, "learner"),
    ]:
        with pytest.raises(BadArgument, match=f"other settings .*{message}"):
            run(checkpoint=file, **options)
    assert file.read_bytes() == content
    file.write_bytes(content[:1000])
    with pytest.raises(BadArgument, match="is not a run of targetopt"):
        run(checkpoint=file)
    checkpoints.save(file, {}, {})
    data = torch.load(file, weights_only=True)
    torch.save({**data, "targetopt": 99}, file)
    with pytest.raises(BadArgument, match="is of format 99"):
        run(checkpoint=file)


def test_a_checkpoint_that_cannot_be_written_fails_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        BadArgument, match=r"checkpoint='.*/file/run.pt' cannot be written: .*Choose a file"
    ):
        run(
            checkpoint=tmp_path / "file" / "run.pt",
            callback=lambda latest: pytest.fail("it worked"),
        )


def test_a_diverging_baseline_says_so() -> None:
    with pytest.raises(Diverged, match=r"round \d+: the update left the finite numbers"):
        run(optimizer=lambda p: torch.optim.SGD(p, lr=1e6), learner="mlp", steps=30, rounds=50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert": 3}, "expert=3 must be a function.*from_stable_baselines3"),
        ({"expert": "nowhere.safetensors"}, "there is no expert file"),
        ({"expert": "sac"}, "no expert for environment 'PointMass' of family 'sac'"),
        ({"optimizer": lambda p: torch.optim.SGD(p), "lr": 0.5}, "lr belong to SSO"),
        (
            {"optimizer": lambda p: 3},
            "must make a torch optimiser from the parameters; it made int",
        ),
        ({"steps": 5}, r"steps=5 is for optimizer=.*inner=to.Armijo\(max_steps=5\)"),
        ({"rounds": 0}, "rounds=0"),
        ({"states_per_round": 0}, "states_per_round=0"),
        ({"evaluate_every": -1}, "evaluate_every=-1"),
        ({"learner": "tree"}, "mean='tree'"),
        (
            {"learner": im.GaussianPolicy(11, 3)},
            "learner= takes 11 numbers and gives 3; env='PointMass' shows 2",
        ),
        ({"held_out": -1}, "held_out=-1"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        run(**({"inner": None} | options))


def test_an_expert_of_the_wrong_width() -> None:
    walker = teacher(im.Environment("Walker2d-v5"))
    with pytest.raises(
        BadArgument, match="'Walker2d-v5' takes 17 numbers and gives 6; it got states of 11"
    ):
        im.train("Hopper-v5", walker, progress=False)
    with pytest.raises(to.BadAnswer, match=r"shape \(\d+, 3\) for 'Hopper-v5'.*got \(\d+, 2\)"):
        im.train("Hopper-v5", lambda s: s[:, :2], progress=False)


def test_missing_packages_are_named_with_their_extra() -> None:
    """In a process where they cannot be imported; targetopt itself needs none of them."""
    program = """
import sys, targetopt as to
assert not {"gymnasium", "mujoco", "safetensors"} & set(sys.modules)

def attempt(missing, call):
    sys.modules[missing] = None
    try:
        call()
    except to.imitation.MissingPackage as error:
        print(error)
    del sys.modules[missing]

attempt("safetensors", lambda: to.imitation.GaussianPolicy(2, 1).save("policy.safetensors"))
attempt("gymnasium", lambda: to.imitation.train("Hopper-v5", lambda s: s[:, :3]))
attempt("mujoco", lambda: to.imitation.train("Hopper-v5", lambda s: s[:, :3]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    for line, missing in zip(lines, ["safetensors", "gymnasium", "mujoco"], strict=True):
        assert missing in line.lower()
        assert line.endswith("pip install 'targetopt[rl]'")


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    # one at once, so that whoever waits sees that it goes on, and one for each evaluation
    assert [line.partition(" ·")[0] for line in lines] == [f"{t} of 6 rounds" for t in (1, 2, 4, 6)]
    assert f"return {result.history[-1].mean_return:.0f} of {result.expert_return:.0f}" in lines[-1]


def test_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(progress=True)
    shown = capsys.readouterr().err
    assert "6/6" in shown
    assert "held out" in shown


@pytest.mark.skipif(importlib.util.find_spec("stable_baselines3") is None, reason="needs [expert]")
@pytest.mark.parametrize("kind", ["SAC", "PPO", "TD3", "SAC with gSDE"])
def test_stable_baselines_models_keep_their_actions(kind: str, tmp_path: Path) -> None:
    import gymnasium
    import stable_baselines3 as sb3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Hopper-v5")]))
    rng = np.random.default_rng(0)
    options = {"use_sde": True} if kind.endswith("gSDE") else {}
    model = getattr(sb3, kind.split()[0])("MlpPolicy", venv, seed=0, device="cpu", **options)
    venv.obs_rms.mean, venv.obs_rms.var = rng.standard_normal(11), rng.uniform(0.5, 2, 11)
    expert = im.from_stable_baselines3(model, venv)
    states: Array = 4 * rng.standard_normal((50, 11))
    actions, _ = model.predict(venv.normalize_obs(states).astype(np.float32), deterministic=True)
    np.testing.assert_allclose(expert(states), actions, atol=1e-5)
    taken = isinstance(expert, im.NetworkExpert)
    assert taken == (not options)
    if isinstance(expert, im.NetworkExpert):
        assert expert.environment == "Hopper-v5"
        again = im.load_expert(expert.save(tmp_path / "e.safetensors"))
        np.testing.assert_array_equal(again(states), expert(states))
    with pytest.raises(BadArgument, match="model=int must be a trained Stable-Baselines3 model"):
        im.from_stable_baselines3(3)
    with pytest.raises(BadArgument, match="normalizer=int must be the VecNormalize"):
        im.from_stable_baselines3(model, 3)


def test_nothing_chosen_is_dagger_on_all_states_by_small_updates() -> None:
    """The expert drives the first round, then the learner with little noise; every round learns from all so far."""
    drives: list[float] = []
    result = im.train(
        PointMass,
        spring,
        rounds=3,
        states_per_round=60,
        copies=3,
        evaluate_every=0,
        progress=False,
        callback=lambda latest: drives.append(latest.beta),
    )
    assert drives == [1.0, 0.0, 0.0]
    assert [r.states for r in result.history] == [60, 120, 180]
    assert [r.inner_steps for r in result.history] == [1000] * 3  # 100 updates of 10 Adam steps
    settings = result.policy.provenance["settings"]
    assert settings["update"]["lr"] == 1.0
    assert "GradientStep" in settings["update"]["rule"]
    assert settings["data"] == "Replay(n='all', batch=250, updates=100, average=True)"


def test_a_linear_mean_is_solved_for_on_all_states() -> None:
    """With nothing chosen it is its expert after the first round."""
    expert = lambda s: 0.2 - 0.3 * s[:, :1]  # noqa: E731
    options: dict[str, Any] = {"learner": "linear", "rounds": 1, "states_per_round": 60}
    result = im.train(PointMass, expert, copies=3, evaluate_every=0, progress=False, **options)
    np.testing.assert_allclose(result.policy.layers[0].weight.detach(), [[-0.3, 0.0]], atol=1e-9)
    assert result.history[-1].inner_steps == 1


@pytest.mark.parametrize(
    ("policy", "objective", "step"),
    [
        (im.GaussianPolicy(2, 2, std=[0.5, 2.0]), "kl", 0.25),
        (im.GaussianPolicy(2, 2, std=[0.5, 2.0]), "mean-squared", 1.0),
        (im.GaussianPolicy(2, 2), "reverse-kl", None),
        (im.GaussianPolicy(2, 2, std="learned"), "kl", None),
        (im.ChoicePolicy(2, 3), "kl", 2.0),
        (im.ChoicePolicy(2, 3), "reverse-kl", None),
    ],
)
def test_the_step_by_default_is_one_over_smoothness(
    policy: im.Policy, objective: Any, step: float | None
) -> None:
    policy.train_by(objective)
    assert policy.natural_step == step
    if step is not None:
        labels = np.zeros((4, policy.action_size))
        assert policy.loss(labels).smoothness == pytest.approx(1.0 / step)


def test_little_noise_is_a_tenth_of_half_the_box() -> None:
    policy = im.GaussianPolicy(1, 2, low=[-2.0, -np.inf], high=[2.0, np.inf], std=0.5)
    np.testing.assert_allclose(policy.little_noise, [0.2, 0.05])
    policy.layers[-1].weight.data.zero_()
    policy.layers[-1].bias.data.zero_()
    behaviour = im.Mixture(0.0, learner_noise="little").at(1, policy, spring)
    drawn = behaviour(np.zeros((20_000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(drawn.std(axis=0), [0.2, 0.05], rtol=0.03)
