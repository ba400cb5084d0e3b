"""What may go wrong around an experiment: damaged and hostile files, stopped processes, clocks, memory."""

import contextlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from forked import Forked
from targetopt.lab import Experiment, RunConfig, Store, StoreError, expand, problems, run
from targetopt.lab.report import page
from targetopt.lab.run import checkpoints, tuning
from targetopt.lab.run.callbacks import run_name
from targetopt.lab.run.job import Event, Job, perform, record_death
from targetopt.lab.spec.document import Document
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.store.locks import Locks
from targetopt.lab.store.records import manifest_fault
from targetopt.lab.store.status import describe
from targetopt.types import BadArgument, TargetoptError

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "problems": [{"name": "tiny"}],
        "methods": [{"name": "sso", "m": 2}, {"name": "adam"}],
        "plugins": [PLUGIN],
        "epochs": 2,
        "batch_size": 6,
    }
    return Experiment(**{**fields, **changes})


def job(store: Store, config: RunConfig, **changes: Any) -> Job:
    store.prepare()
    fields = {"directory": str(store.directory), "run": config.id, "config": config}
    return Job(**{**fields, "attempt": 1, "command": "", "plugins": (PLUGIN,), **changes})


def do(store: Store, config: RunConfig, stop: Callable[[], bool] = bool, **changes: Any) -> Event:
    return perform(job(store, config, **changes), stop, lambda event: None)


def shown(directory: Path) -> str:
    return "\n".join(str(line) for line in describe(directory).renderables)


@pytest.fixture(scope="module")
def ended_well(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("done")
    assert run(experiment(), directory, jobs=1).statuses == {"done": 2}
    return directory


@pytest.fixture
def done(ended_well: Path, tmp_path: Path) -> Store:
    """A directory with two runs that have ended well."""
    return Store(shutil.copytree(ended_well, tmp_path / "done"))


# -- damaged files ------------------------------------------------------------------------------


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: {name: value for name, value in manifest.items() if name != key}


def with_(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: {**manifest, **changes}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda manifest: [manifest], "it holds a list, not an object"),
    "null": (lambda manifest: None, "it holds a NoneType, not an object"),
    "no status": (without("status"), "'status' is missing"),
    "status unknown": (with_(status="fine"), "'status' is 'fine', not one of done"),
    "status a list": (with_(status=["done"]), r"'status' is \['done'\], not one of"),
    "problem a word": (with_(problem="tiny"), "'problem' is 'tiny', not an object"),
    "method unlabelled": (with_(method={"name": "sso"}), "not an object with name and label"),
    "reason a number": (with_(reason=3), "'reason' is 3, not text"),
    "seed negative": (with_(seed=-1), "'seed' is -1, not a number from 0 on"),
    "attempt a word": (with_(attempt="two"), "'attempt' is 'two', not a number"),
    "of another run": (with_(id="0" * 16), "its id is '0000000000000000', not"),
    "timeout without limit": (with_(status="timeout", time_limit=None), "'time_limit' of a run"),
}
BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "cut": (b'{"id": "abc", "sta', "is not JSON"),
    "not UTF-8": (b'{"id": "\xff\xfe"}', "is not JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "is not JSON"),
    "zeros": (bytes(4096), "is not JSON"),
}


@pytest.mark.parametrize("kind", [*DAMAGE, *BYTES, "directory"])
def test_a_damaged_manifest_is_told_of_and_hides_no_other_run(done: Store, kind: str) -> None:
    run_id = done.ended()[0]
    path = done.manifest_path(run_id)
    if kind == "directory":
        path.unlink()
        path.mkdir()
        said = "Is a directory"
    elif kind in BYTES:
        data, said = BYTES[kind]
        path.write_bytes(data)
    else:
        change, said = DAMAGE[kind]
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    output = shown(done.directory)
    assert output.startswith("1 done · 1 damaged\n")
    assert run_id in output
    with pytest.raises(StoreError, match=said):
        done.manifest(run_id)
    with pytest.raises(StoreError, match="delete the file and the run is done again"):
        run(experiment(), done.directory, jobs=1)
    if kind == "cut":
        path.unlink()
        assert run(experiment(), done.directory, jobs=1).statuses == {"done": 2}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["id", "status", "reason", "problem", "method", "batch_size", "seed", "attempt", "time_limit"]
)


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(KEYS, JSON, max_size=3))
def test_what_passes_as_a_manifest_can_be_shown(changes: dict[str, Any], tmp_path_factory) -> None:
    labels = {"name": "tiny", "label": "tiny"}
    manifest = {
        "id": "ab12",
        "status": "failed",
        "reason": "",
        "problem": labels,
        "method": labels,
        "batch_size": 3,
        "seed": 0,
        "attempt": 1,
        "time_limit": None,
        **changes,
    }
    store = Store(tmp_path_factory.mktemp("one"))
    store.prepare()
    store.manifest_path("ab12").write_text(json.dumps(manifest))
    fault = manifest_fault(json.loads(json.dumps(manifest)), "ab12")
    assert ("1 damaged" in shown(store.directory)) == (fault is not None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("plan.json", "[{]", "is not JSON"),
        ("plan.json", '{"id": 3}', "holds a dict, not a list of runs"),
        ("plan.json", "[3]", "entry 0 is damaged: it is not an object"),
        ("plan.json", '[{"id": "ab"}]', "entry 0 is damaged: 'problem' is missing"),
        ("store.json", '{"home": 3}', "does not name the directory"),
        ("store.json", '{"home": "../../../../etc"}', "must be this directory or one around it"),
        ("store.json", '{"home": "/etc"}', "must be this directory or one around it"),
    ],
)
def test_other_damaged_files_are_told_of(done: Store, name: str, content: str, said: str) -> None:
    (done.directory / name).write_text(content)
    with pytest.raises(StoreError, match=said):
        shown(done.directory)


SPOILED: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "no command": ("manifest", without("command"), ""),
    "no duration": ("manifest", without("duration"), ""),
    "duration a list": ("manifest", with_(duration=[0, "1"]), "'duration' is"),
    "duration infinite": ("manifest", with_(duration=float("inf")), "'duration' is inf"),
    "counts a list": ("manifest", with_(counts=[1]), r"'counts' is \[1\], not an object"),
    "half a character": ("manifest", with_(commit="\ud800"), "surrogates not allowed"),
    "panels a word": ("plan", with_(panels=True), "'panels' is True, not a list of texts"),
    "label a number": ("plan", with_(method=3), "'method' is 3, not text"),
    "choices without parts": ("tuning.json", lambda _: [{}], "is not a list of choices"),
    "verdict counts a word": (
        "verdicts.json",
        lambda _: [{"claim": "a", "verdict": "holds", "n": "x"}],
        "n='x' must be a whole number",
    ),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_report_is_made_of_what_is_there_or_says_which_file_is_damaged(
    done: Store, kind: str
) -> None:
    place, change, said = SPOILED[kind]
    path = done.directory / place
    if place == "manifest":
        path = done.manifest_path(done.ended()[0])
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    elif place == "plan":
        path = done.directory / "plan.json"
        first, *others = json.loads(path.read_text())
        path.write_text(json.dumps([change(first), *others]))
    else:
        path.write_text(json.dumps(change(None)))
    if not said:
        assert "Adam" in page.write(done.directory, figures=False).read_text("utf-8")
        return
    with pytest.raises(TargetoptError, match=said) as refused:
        page.write(done.directory, figures=False)
    assert path.name in str(refused.value)


def test_a_report_stands_damaged_metrics_and_a_specification_that_is_no_text(done: Store) -> None:
    (done.directory / "spec.toml").write_bytes(b'name = "\xd6\xff"\n')
    assert page.write(done.directory, figures=False).exists()
    path = done.metrics_path(done.ended()[0])
    whole, dice = path.read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[dice.randrange(len(whole))] ^= dice.randrange(1, 256)
        path.write_bytes(damaged)
        with contextlib.suppress(TargetoptError):
            done.shown()


def test_a_damaged_list_of_choices_is_told_of(tmp_path: Path) -> None:
    (tmp_path / tuning.FILE).write_text('{"chosen": 1}')
    with pytest.raises(StoreError, match="is not a list of choices"):
        tuning.read(tmp_path)


# -- names that lead elsewhere --------------------------------------------------------------------

ELSEWHERE = ["../secret", "/etc/passwd", "a/b", "..", ".", "", "a\0b", "a\nb", "x" * 65, "-rf", 7]


@pytest.mark.parametrize("name", ELSEWHERE, ids=repr)
def test_an_id_never_leads_out_of_the_directory(done: Store, name: Any) -> None:
    for path in (done.manifest_path, done.metrics_path, done.checkpoint_path, done.manifest):
        with pytest.raises(StoreError, match="is no id of a run"):
            path(name)
    plan = json.loads((done.directory / "plan.json").read_text())
    (done.directory / "plan.json").write_text(json.dumps([*plan, {**plan[0], "id": name}]))
    with pytest.raises(StoreError, match="is no id of a run"):
        shown(done.directory)


@settings(max_examples=200, deadline=None)
@given(problem=st.text(max_size=80), method=st.text(max_size=80), name=st.text(max_size=12))
def test_labels_never_lead_out_of_the_trackers_directory(problem, method, name) -> None:
    manifest = {"id": name, "problem": {"label": problem}, "method": {"label": method}}
    inside = Path("/results/tensorboard")
    path = Path(os.path.normpath(inside / run_name(manifest)))
    assert path.parent.parent == inside


def test_a_planted_link_is_not_written_through(done: Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (done.directory / "plan.json.tmp").symlink_to(victim)
    with pytest.raises(StoreError, match="cannot write"):
        done.write("plan.json", b"[]")
    assert victim.read_text() == "precious"


# -- checkpoints ----------------------------------------------------------------------------------


class Malice:
    """Pickled, it makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def stopped(store: Store, config: RunConfig) -> Path:
    asked = iter([False, False, True])
    assert do(store, config, stop=lambda: next(asked)).kind == "stopped"
    return store.checkpoint_path(config.id)


METHODS = [
    {"name": "sso", "m": 2, "rule": "adagrad"},
    {"name": "adam"},
    {"name": "svrg", "lr": 0.05},
    {"name": "sls"},
]


def poison(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


HARM: list[tuple[tuple[Any, ...], Any]] = [
    (("run",), "0" * 16),
    (("source", "torch"), "0.1"),
    (("random",), torch.zeros(3, dtype=torch.uint8)),
    (("random",), torch.zeros(5000)),
    (("session",), []),
    (("session",), {}),
    (("session", "model", "0.weight"), torch.zeros(7, 7, dtype=torch.float64)),
    (("session", "model", "0.weight"), torch.zeros(4, 3)),
    (("session", "model", "0.weight"), torch.full((4, 3), torch.nan, dtype=torch.float64)),
    (("session", "model", "0.weight"), "weights"),
    (("session", "model", "extra"), torch.zeros(1)),
    (("session", "optimiser"), {"state": {}}),
    (("session", "extra"), 1),
    (("progress",), None),
    (("progress", "step"), -1),
    (("progress", "step"), 10**9),
    (("progress", "step"), 2.5),
    (("progress", "elapsed"), -1.0),
    (("progress", "elapsed"), float("nan")),
    (("progress", "cpu_time"), "long"),
    (("progress", "rows"), {"loss": 1.0}),
    (("progress", "rows"), [{"loss": 1.0}]),
    (("progress", "rows", 0, "step"), 99),
    (("progress", "rows", 0, "oracle_calls"), -3),
    (("progress", "rows", 0, "loss"), "small"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_a_damaged_checkpoint_is_not_continued_and_the_numbers_stay(
    method: dict, tmp_path: Path
) -> None:
    [config] = expand(experiment(methods=[method]))
    whole = Store(tmp_path / "whole")
    do(whole, config)
    for place, (path, value) in enumerate(HARM):
        store = Store(tmp_path / str(place))
        file = stopped(store, config)
        content = torch.load(file, weights_only=True)
        poison(content, path, value)
        torch.save(content, file)
        assert do(store, config).status == "done", (path, value)
        manifest = store.manifest(config.id)
        assert manifest["notes"][0].startswith("its checkpoint was not continued"), (path, value)
        assert manifest["digest"] == whole.manifest(config.id)["digest"], (path, value)


def test_the_memory_of_an_optimiser_has_the_shape_of_its_parameters(tmp_path: Path) -> None:
    [config] = expand(experiment(methods=[{"name": "adam"}]))
    for place, wrong in enumerate(
        [torch.zeros(2, dtype=torch.float64), torch.full((4, 3), torch.inf, dtype=torch.float64)]
    ):
        store = Store(tmp_path / str(place))
        file = stopped(store, config)
        content = torch.load(file, weights_only=True)
        content["session"]["optimiser"]["state"][0]["exp_avg"] = wrong
        torch.save(content, file)
        assert do(store, config).status == "done"
        assert "exp_avg" in store.manifest(config.id)["notes"][0]


def test_no_damaged_state_reaches_a_kernel() -> None:
    [config] = expand(
        Experiment(
            problems=[{"name": "two-quadratics"}], methods=[{"name": "sgd", "lr": 0.1}], epochs=3
        )
    )
    assert config.engine == "compiled"
    session = load_problem(config.problem).session(config)
    assert session.advance(0, 1) == 1
    state = session.state_dict()
    harm = {
        "counts shortened": {**state, "counts": state["counts"][:1]},
        "counts negative": {**state, "counts": state["counts"] - 10**6},
        "counts as numbers": {**state, "counts": state["counts"].double()},
        "theta longer": {**state, "theta": torch.zeros(99, dtype=torch.float64)},
        "theta single": {**state, "theta": state["theta"].float()},
        "theta nan": {**state, "theta": torch.full_like(state["theta"], torch.nan)},
        "theta a list": {**state, "theta": [0.0]},
        "steps beyond": {**state, "steps": torch.tensor(4)},
        "steps negative": {**state, "steps": torch.tensor(-1)},
        "a part missing": {key: value for key, value in state.items() if key != "memory"},
        "a part too many": {**state, "more": torch.zeros(1)},
    }
    for kind, damaged in harm.items():
        refused = False
        try:
            session.load_state_dict(damaged)
        except BadArgument:
            refused = True
        assert refused, kind
    session.load_state_dict(state)
    assert session.advance(1, 2) == 2


def test_a_malicious_checkpoint_runs_no_code(tmp_path: Path) -> None:
    [config, _] = expand(experiment())
    store, mark = Store(tmp_path / "out"), tmp_path / "mark"
    store.prepare()
    file = store.checkpoint_path(config.id)
    torch.save({"format": checkpoints.FORMAT, "session": Malice(mark)}, file)
    assert do(store, config).status == "done"
    file.write_bytes(pickle.dumps(Malice(mark)))
    with pytest.raises(checkpoints.Refused):
        checkpoints.read(file)
    assert not mark.exists()
    pickle.loads(file.read_bytes())  # it would have worked
    assert mark.exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_a_checkpoint_is_survived(data: st.DataObject, whole_and_cut) -> None:
    original, file = whole_and_cut
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    with contextlib.suppress(checkpoints.Refused):
        checkpoints.read(file)


@pytest.fixture(scope="module")
def whole_and_cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    store = Store(tmp_path_factory.mktemp("bytes"))
    file = stopped(store, expand(experiment())[1])
    return file.read_bytes(), file


# -- code and specification that change -----------------------------------------------------------


def test_a_plugin_that_changed_begins_its_runs_anew(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        Path(PLUGIN).read_text().replace('"tiny"', '"altered"').replace('"careful"', '"meek"')
    )
    [config] = expand(
        experiment(
            problems=[{"name": "altered"}], methods=[{"name": "adam"}], plugins=[str(plugin)]
        )
    )
    store = Store(tmp_path / "out")
    asked = iter([False, True])
    own = {"plugins": (str(plugin),)}
    assert do(store, config, stop=lambda: next(asked), **own).kind == "stopped"
    plugin.write_text(plugin.read_text() + "\n# another hand was here\n")
    assert do(store, config, **own).status == "done"
    manifest = store.manifest(config.id)
    assert "it was made with another plugin plugin.py" in manifest["notes"][0]
    assert list(manifest["plugins"]) == ["plugin plugin.py"]


def test_a_specification_that_changed_keeps_what_still_belongs_to_it(tmp_path: Path) -> None:
    assert run(experiment(), tmp_path, jobs=1).statuses == {"done": 2}
    stamps = {
        name: Store(tmp_path).manifest_path(name).stat().st_mtime_ns
        for name in Store(tmp_path).ended()
    }
    changed = experiment(methods=[{"name": "sso", "m": 2}, {"name": "adam", "lr": 0.02}])
    assert run(changed, tmp_path, jobs=1).statuses == {"done": 2}
    store = Store(tmp_path)
    assert len(store.ended()) == 3
    for name, stamp in stamps.items():
        assert store.manifest_path(name).stat().st_mtime_ns == stamp
    assert shown(tmp_path).startswith("3 done\n")
    assert "1 of these are of earlier specifications" in shown(tmp_path)
    assert [each.manifest["method"]["label"] for each in store.shown()] == [
        "SSO m=2",
        "Adam lr=0.02",
    ]


def test_a_stopped_run_of_a_changed_specification_is_not_taken_for_another(tmp_path: Path) -> None:
    [short] = expand(experiment(methods=[{"name": "adam"}]))
    [longer] = expand(experiment(methods=[{"name": "adam"}], epochs=3))
    assert short.id != longer.id
    store = Store(tmp_path)
    file = stopped(store, short)
    file.rename(store.checkpoint_path(longer.id))  # what nobody should do
    assert do(store, longer).status == "done"
    assert f"it is of the run {short.id!r}" in store.manifest(longer.id)["notes"][0]


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [10 * 86400, -10 * 86400])
def test_a_clock_that_jumps_makes_no_run_time_out(
    tmp_path: Path, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    [config, _] = expand(experiment())
    store = Store(tmp_path)
    store.prepare()
    assert store.locks.take(config.id)  # a process that dies leaves the file of its lock behind
    os.close(store.locks._held.pop(config.id))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    assert 0 <= Locks(store.locks.directory).age(config.id) < 60
    event = record_death(job(store, config, time_limit=5.0), "the process was ended by SIGSEGV")
    assert event.status == "failed"
    assert store.manifest(config.id)["duration"] < 60


def test_steps_and_limits_do_not_look_at_the_clock_that_can_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [config, _] = expand(experiment())
    now, calls = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: now() + 1e6 * (-1) ** next(calls))
    assert do(Store(tmp_path), config, time_limit=30.0).status == "done"
    [ended] = Store(tmp_path).load()
    assert (ended.columns["wall_time"] >= 0).all()
    assert 0 <= ended.manifest["duration"] < 30


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is kept by Linux alone")
def test_a_run_that_wants_more_memory_than_allowed_fails_with_that_reason(tmp_path: Path) -> None:
    hungry = experiment(
        problems=[{"name": "tiny", "trouble": ["none", "hoard"]}], methods=[{"name": "adam"}]
    )
    summary = run(hungry, tmp_path, jobs=1, memory_limit=1.0)
    assert summary.statuses == {"done": 1, "failed": 1}
    [(_, _, reason)] = summary.troubles
    assert "it needed more memory than the limit of 1 GB. A larger --memory-limit" in reason
    assert "after step 2:" in reason


def test_a_memory_limit_that_is_none_is_refused(tmp_path: Path) -> None:
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(BadArgument, match="must be a number of gigabytes above 0"):
            run(experiment(), tmp_path, memory_limit=wrong)


# -- processes ------------------------------------------------------------------------------------


def command(spec: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "targetopt", "run", str(spec), "--out", str(out), *options]


def slow_spec(directory: Path) -> Path:
    spec = directory / "slow.toml"
    slow = experiment(problems=[{"name": "tiny", "pause": 0.1}], seeds=2, epochs=3)
    spec.write_text(slow.to_toml())
    return spec


def held(out: Path) -> list[str]:
    return [name for name in Locks(out / "locks").alive() if "." not in name and name != "store"]


def wait_until(condition: Callable[[], Any], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_runner_stopped_and_continued_beside_another(tmp_path: Path) -> None:
    spec, out = slow_spec(tmp_path), tmp_path / "out"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    first = subprocess.Popen(command(spec, out, "--jobs", "1"), start_new_session=True, **pipes)
    wait_until(lambda: held(out))
    os.killpg(first.pid, signal.SIGSTOP)
    [kept] = held(out)
    second = subprocess.Popen(command(spec, out, "--jobs", "1"), start_new_session=True, **pipes)
    try:
        wait_until(lambda: len(Store(out).ended()) == 3)
        time.sleep(2.0)
        assert second.poll() is None, "it must wait for what the stopped one holds"
        assert held(out) == [kept]
        assert kept in shown(out)
        os.killpg(first.pid, signal.SIGCONT)
        outputs = [runner.communicate(timeout=600)[0] for runner in (first, second)]
    finally:
        for runner in (first, second):
            if runner.poll() is None:
                os.killpg(runner.pid, signal.SIGKILL)
                runner.wait()
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert all("4 runs: 4 done" in output for output in outputs)
    store, alone = Store(out), tmp_path / "alone"
    assert [store.manifest(name)["attempt"] for name in store.ended()] == [1] * 4
    run(Experiment.read(spec), alone, jobs=2)
    for name in store.ended():
        assert store.manifest(name)["digest"] == Store(alone).manifest(name)["digest"]


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_at_its_limit_and_the_others_go_on(tmp_path: Path) -> None:
    hanging = experiment(
        problems=[{"name": "tiny", "trouble": ["stuck", "none"]}], methods=[{"name": "adam"}]
    )
    summary = run(hanging, tmp_path, jobs=1, time_limit=1.0)
    assert summary.statuses == {"timeout": 1, "done": 1}
    assert "did not stop by itself at the time limit of 1 s: killed" in summary.troubles[0][2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_ray_worker_that_is_killed_fails_its_run_alone(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    spec, out = slow_spec(tmp_path), tmp_path / "out"
    words = command(spec, out, "--jobs", "2", "--executor", "ray")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as runner:
        try:
            wait_until(lambda: held(out) or runner.poll() is not None, seconds=400.0)
            assert runner.poll() is None, runner.communicate()[0]
            holders = Locks(out / "locks").alive()
            name = next(name for name in holders if name in held(out))
            os.kill(holders[name]["pid"], signal.SIGKILL)
            output = runner.communicate(timeout=400)[0]
        finally:
            runner.terminate()
    assert runner.returncode == 1, output
    assert "4 runs: 3 done, 1 failed" in output
    assert Store(out).manifest(name)["reason"].startswith("the Ray worker doing this run died")
    again = run(Experiment.read(spec), out, jobs=2)
    assert again.statuses == {"done": 4}
    assert Store(out).manifest(name)["attempt"] == 2


def test_a_ray_cluster_that_is_not_there_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")

    def unreachable(**options: Any) -> None:
        raise ConnectionError(f"no cluster at {options['address']}.")

    monkeypatch.setattr(ray, "init", unreachable)
    with pytest.raises(TargetoptError, match=r"no cluster at nowhere\. Look at the cluster"):
        run(experiment(), tmp_path, executor="ray")


def _in_child(directory: str, config: RunConfig) -> None:
    assert do(Store(directory), config).status == "done"


# JAX, which another test of this process may have imported, warns of every fork
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("way", multiprocessing.get_all_start_methods())
def test_processes_started_in_any_way_after_an_import_find_the_same_numbers(
    way: str, tmp_path: Path
) -> None:
    [config, _] = expand(experiment())
    here = Store(tmp_path / "here")
    do(here, config)  # what torch starts, it has started
    child = multiprocessing.get_context(way).Process(
        target=_in_child, args=(str(tmp_path / way), config)
    )
    child.start()
    child.join(600)
    assert child.exitcode == 0
    found = Store(tmp_path / way).manifest(config.id)
    assert found["digest"] == here.manifest(config.id)["digest"]


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_how_to_mend_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from targetopt.lab import Experiment, run\n"
        f"run(Experiment.read({str(slow_spec(tmp_path))!r}), {str(tmp_path / 'out')!r}, jobs=1)\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "if __name__ == '__main__':" in ended.stderr.splitlines()[-1]


# -- seeds, and many runs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["quadratic", "interpolation", "matrix-factorisation", "synthetic-ijcnn1"]
)
def test_a_negative_seed_is_refused_by_name(name: str) -> None:
    with pytest.raises(BadArgument, match="seed=-1 must be a whole number from 0"):
        problems.get(name, seed=-1)
    with pytest.raises(TargetoptError, match="seed=-1 must be a whole number from 0"):
        expand(Experiment(problems=[{"name": name, "seed": -1}], methods=[{"name": "sso"}]))
    with pytest.raises(BadArgument, match="seed=-3 must be"):
        problems.get("two-quadratics").model(seed=-3)
    document = Document.parse('seeds = [-1]\n[[problems]]\nname="tiny"\n[[methods]]\nname="sso"\n')
    with pytest.raises(TargetoptError, match="different integers from 0 on"):
        Experiment.parse(document)


@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that says how much was taken")
def test_the_status_of_many_runs_needs_neither_torch_nor_much_memory(
    done: Store, tmp_path: Path
) -> None:
    [entry, _] = done.plan()
    manifest = done.manifest(entry["id"])
    names = [f"{number:016x}" for number in range(2000)]
    for name in names:
        done.manifest_path(name).write_text(json.dumps({**manifest, "id": name}))
    plan = [{**entry, "id": name} for name in names]
    (done.directory / "plan.json").write_text(json.dumps(plan))
    code = (
        "import re, sys\n"
        "from targetopt.lab.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    said = open('/proc/self/status').read()\n"
        "    peak = int(re.search(r'VmHWM:\\s+(\\d+)', said)[1]) / 1024\n"
        "    assert peak < 150, peak\n"
        "    assert 'torch' not in sys.modules\n"
    )
    words = [sys.executable, "-c", code, "status", str(done.directory)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("2002 done\n")


def test_status_is_right_while_runs_end(tmp_path: Path) -> None:
    """Every run is always counted once: as waiting, as running, or as ended."""
    spec, out = slow_spec(tmp_path), tmp_path / "out"
    with Forked(forked.command, "run", str(spec), "--out", str(out), "--jobs", "2") as runner:
        wait_until(lambda: (out / "plan.json").exists())
        looks = 0
        while runner.poll() is None:
            counts = [part.split()[0] for part in shown(out).splitlines()[0].split(" · ")]
            assert sum(map(int, counts)) == 4
            looks += 1
            time.sleep(0.05)  # the runner and others want the processor, too
        assert runner.wait() == 0, runner.said.read()
        assert looks > 5
