"""Whole experiments in worker processes: crashes, kills, sharing, full disks, Ctrl-C, Ray."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from forked import Forked, command
from targetopt.lab import Experiment, Store, expand, run
from targetopt.lab.run import local
from targetopt.lab.store.locks import Locks

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))

SPEC = f"""\
plugins = ["{PLUGIN}"]
epochs = 4
batch_size = 6
seeds = 2

[[problems]]
name = "tiny"
pause = 0.005

[[methods]]
name = "sso"
m = [1, 3]

[[methods]]
name = "sso"
rule = ["line-search", "adagrad"]
m = 2

[[methods]]
name = "svrg"
lr = 0.1

[[methods]]
name = "adam"
"""


def digests(directory: Path) -> dict[str, str]:
    """Fingerprints of the numbers of all finished runs, recomputed from the files."""
    store = Store(directory)
    from targetopt.lab.store.directory import digest, pq

    found = {}
    for name in store.ended():
        manifest = store.manifest(name)
        assert manifest is not None
        assert manifest["status"] == "done", manifest["reason"]
        found[name] = digest(pq.read_table(store.metrics_path(name)))
        assert found[name] == manifest["digest"]
    return found


def asked(spec: Path, out: Path, *options: str) -> list[str]:
    return ["run", str(spec), "--out", str(out), *(options or ("--jobs", "2"))]


def fresh(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "targetopt", *words]


def started(words: list[str], **options: object) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(fresh(words), **{**pipes, **options})


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "grid.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def undisturbed(spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result directory of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed")
    summary = run(Experiment.read(spec), out, jobs=2)
    assert summary.statuses == {"done": 12}
    return out


def watch(directory: Path) -> Iterator[None]:
    """Read every result file there is, as a report would, while runs are going on."""
    while True:
        store = Store(directory)
        for ended in store.load():
            assert ended.manifest["rows"] == len(ended.columns["step"])
        yield


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_again_and_again_the_numbers_are_those_of_an_undisturbed_run(
    spec: Path, undisturbed: Path, tmp_path: Path, times: int
) -> None:
    out = tmp_path / "killed"
    dice = random.Random(7)
    finished: dict[str, int] = {}
    reader = watch(out)
    kills = 0
    while kills < times:
        with Forked(
            command, *asked(spec, out, "--jobs", "2", "--checkpoint-seconds", "0")
        ) as runner:
            while not list((out / "locks").glob("*")) and runner.poll() is None:
                time.sleep(0.01)
            deadline = time.monotonic() + dice.uniform(0.0, 0.4)
            while time.monotonic() < deadline:
                next(reader)
            assert runner.poll() is None or len(finished) == 12, runner.said.read()
        kills += 1
        for name in Store(out).ended():
            stamp = Store(out).manifest_path(name).stat().st_mtime_ns
            assert finished.setdefault(name, stamp) == stamp, "a finished run was run again"
    assert run(Experiment.read(spec), out, jobs=2).statuses == {"done": 12}
    assert digests(out) == digests(undisturbed)
    for name, stamp in finished.items():
        assert Store(out).manifest_path(name).stat().st_mtime_ns == stamp
    assert not list(out.rglob("*.tmp")) + list(out.rglob("*.pt"))


def test_two_runners_share_the_work(spec: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "together"
    with Forked(command, *asked(spec, out)) as first, Forked(command, *asked(spec, out)) as second:
        outputs = [runner.said.read() for runner in (first, second)]
        assert [first.wait(), second.wait()] == [0, 0], outputs
    assert all("12 runs: 12 done" in output for output in outputs)
    assert digests(out) == digests(undisturbed)
    attempts = [Store(out).manifest(name)["attempt"] for name in Store(out).ended()]
    assert attempts == [1] * 12


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_ctrl_c_reaches_the_runner_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start = BaseProcess.start

    def interrupted(process: BaseProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

    local._start_worker().process.kill()  # the server they are forked from is running now
    monkeypatch.setattr(BaseProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local._start_worker()


def test_ctrl_c_stops_at_checkpoints_and_says_how_to_go_on(
    spec: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "interrupted"
    slow = tmp_path / "slow.toml"
    slow.write_text(SPEC.replace("pause = 0.005", "pause = 0.5").replace("seeds = 2", "seeds = 1"))
    with Forked(command, *asked(slow, out)) as runner:
        while len(list((out / "locks").glob("*"))) < 2 and runner.poll() is None:
            time.sleep(0.01)
        time.sleep(0.7)
        workers = {holder["pid"] for holder in Locks(out / "locks").alive().values()}
        assert workers - {runner.pid}
        for process in (*workers, runner.pid):  # as a terminal does: the runner and its workers
            os.kill(process, signal.SIGINT)
        output = runner.said.read()
        assert runner.wait() == 130, output
    assert "0 of 6 runs are finished" in output
    assert f"targetopt run {slow} --out {out} --jobs 2" in output
    assert "Traceback" not in output
    assert len(list((out / "checkpoints").glob("*.pt"))) == 2
    assert not list((out / "locks").iterdir())


def test_trouble_in_one_run_is_recorded_and_stops_no_other(
    tmp_path: Path,
) -> None:
    troubles = ("raise", "segfault", "exit", "once", "stuck", "none")
    marker = str(tmp_path / "marker")
    experiment = Experiment(
        problems=[{"name": "tiny", "trouble": trouble, "marker": marker} for trouble in troubles],
        methods=[{"name": "adam"}, {"name": "sgd", "lr": 1e300}],
        epochs=2,
        batch_size=8,
        plugins=[PLUGIN],
    )
    runs = expand(experiment)
    tame = [config.id for config in runs if config.method.name == "adam"]
    wild = [config.id for config in runs if config.method.name == "sgd"]
    out = tmp_path / "out"
    summary = run(experiment, out, jobs=1, time_limit=1.0, only=tame)
    reasons = {
        config.problem_label: (status, reason) for config, status, reason in summary.troubles
    }
    assert reasons == {
        "tiny raise": ("failed", "after step 2: RuntimeError: the simulator is out of paper"),
        "tiny segfault": ("failed", "the process doing this run was ended by SIGSEGV"),
        "tiny exit": ("failed", "the process doing this run exited with code 3"),
        "tiny once": ("failed", "the process doing this run exited with code 4"),
        "tiny stuck": ("timeout", "it did not stop by itself at the time limit of 1 s: killed"),
    }
    assert summary.statuses == {"done": 1, "failed": 4, "timeout": 1}
    assert summary.left == 0
    again = run(experiment, out, jobs=1, time_limit=1.0, only=tame)
    assert again.statuses == {"done": 2, "failed": 3, "timeout": 1}, "what failed is tried again"
    manifests = [Store(out).manifest(name) for name in tame]
    assert [manifest["attempt"] for manifest in manifests] == [2, 2, 2, 2, 1, 1]
    assert run(experiment, out, jobs=2, only=wild[-1:]).statuses == {"diverged": 1}


def _mounted(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a mount namespace of its own, or skip where the system forbids that."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare(1) to mount a small file system")
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c", script, "sh", *arguments]
    probe = subprocess.run([*inside[:3], "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("this system does not let users mount a small file system")
    return subprocess.run(inside, capture_output=True, text=True, check=False)


def test_a_full_disk_is_told_and_loses_no_finished_run(
    spec: Path, undisturbed: Path, tmp_path: Path
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=96k tmpfs "$1"; shift; kept=$1; disk=$2; shift 2; '
        '"$@" && exit 9; code=$?; cp -r "$disk" "$kept"; exit $code'
    )
    out = disk / "out"
    words = [
        str(disk),
        str(kept),
        str(out),
        *fresh(asked(spec, out, "--jobs", "1", "--checkpoint-seconds", "0")),
    ]
    result = _mounted(script, *words)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "the disk is full. Free some space" in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    survived = digests(kept)
    assert 0 < len(survived) < 12
    assert survived.items() <= digests(undisturbed).items()
    assert not list(kept.rglob("*.tmp"))
    assert run(Experiment.read(spec), kept, jobs=2).statuses == {"done": 12}
    assert digests(kept) == digests(undisturbed)


def test_a_read_only_directory_is_told_before_anything_runs(
    spec: Path, undisturbed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed, copy)
    before = digests(copy)
    victim = Store(copy).ended()[0]
    Store(copy).manifest_path(victim).unlink()
    script = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; shift; "$@"'
    result = _mounted(script, str(copy), *fresh(asked(spec, copy)))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "the file system is read-only. Choose a writable --out directory" in result.stderr
    assert "Traceback" not in result.stderr
    assert digests(copy) == {name: value for name, value in before.items() if name != victim}


def test_new_labels_reach_finished_runs_without_running_them(
    spec: Path, undisturbed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(undisturbed, copy)
    experiment = Experiment.read(spec)
    experiment.methods[-1]["label"] = "Adam of 2015"
    summary = run(experiment, copy)
    assert summary.statuses == {"done": 12}
    labels = {r.manifest["method"]["label"] for r in Store(copy).shown()}
    assert "Adam of 2015" in labels
    assert "Adam" not in labels
    assert digests(copy) == digests(undisturbed)


def test_one_run_of_many_can_be_redone_by_its_command(undisturbed: Path, tmp_path: Path) -> None:
    name = Store(undisturbed).ended()[0]
    manifest = Store(undisturbed).manifest(name)
    assert manifest["command"] == (
        f"targetopt run {undisturbed / 'spec.toml'} --only {name} --out {undisturbed}-redo"
    )
    experiment = Experiment.read(undisturbed / "spec.toml")
    summary = run(experiment, tmp_path, only=[name[:6]])
    assert summary.total == 1
    assert digests(tmp_path) == {name: manifest["digest"]}
    assert len(json.loads((tmp_path / "plan.json").read_text())) == 12


@pytest.mark.slow  # a cluster of its own
def test_ray_gives_the_numbers_of_the_local_executor_and_outlives_a_crash(
    undisturbed: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    spec = tmp_path / "grid.toml"
    spec.write_text(SPEC + '[[problems]]\nname = "tiny"\ntrouble = "exit"\n')
    runs = expand(Experiment.read(spec))
    healthy = [config.id for config in runs if config.problem["trouble"] == "none"]
    crashing = runs[-1].id
    chosen = [word for name in (crashing, *healthy) for word in ("--only", name)]
    out = tmp_path / "ray"
    runner = started(asked(spec, out, "--jobs", "2", "--executor", "ray", *chosen))
    output = runner.communicate()[0]
    assert runner.returncode == 1, output
    assert "13 runs: 12 done, 1 failed" in output
    manifest = Store(out).manifest(crashing)
    assert manifest["reason"].startswith("the Ray worker doing this run died")
    Store(out).manifest_path(crashing).unlink()
    assert digests(out) == digests(undisturbed)
