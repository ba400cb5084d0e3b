"""One run at a time, in this process: checkpoints, statuses, claims, files."""

import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from targetopt.lab import Experiment, RunConfig, Store, StoreError, expand, modelled_cost
from targetopt.lab.run.execute import record_steps
from targetopt.lab.run.job import Event, Job, perform, record_death, settled
from targetopt.lab.store.directory import AXES, COUNTS
from targetopt.lab.store.files import write_whole
from targetopt.lab.store.locks import Locks

PLUGIN = str(Path(__file__).with_name("lab_plugin.py"))

METHODS = [
    {"name": "sso", "m": 3},
    {"name": "sso", "rule": "line-search", "m": 3, "schedule": "inverse-sqrt"},
    {"name": "sso", "rule": "adagrad", "inner": "lbfgs", "m": 3},
    {"name": "sso", "rule": "adagrad-norm", "m": 2},
    {"name": "sso", "rule": "newton", "inner": "gauss-newton", "m": 2},
    {"name": "sso", "rule": "ftrl", "inner": "gradient-descent", "step_size": 0.1, "m": 2},
    {"name": "sgd", "lr": 0.1, "schedule": "exponential"},
    {"name": "sls"},
    {"name": "svrg", "lr": 0.05, "weight_decay": 0.01},
    {"name": "adam", "lr": 0.01},
    {"name": "adagrad"},
    {"name": "adagrad-norm"},
]


def grid(methods: list[dict], **problem: object) -> list[RunConfig]:
    return expand(
        Experiment(
            problems=[{"name": "tiny", **problem}],
            methods=methods,
            plugins=[PLUGIN],
            epochs=3,
            batch_size=10,
        )
    )


def task(store: Store, config: RunConfig, **changes: object) -> Job:
    store.prepare()
    fields = {"directory": str(store.directory), "run": config.id, "config": config}
    return Job(**{**fields, "attempt": 1, "command": "", "plugins": (PLUGIN,), **changes})


def never() -> bool:
    return False


def stop_after(steps: int) -> Callable[[], bool]:
    """What a worker asks after each step; true after ``steps`` of them."""
    asked = iter(range(steps - 1))
    return lambda: next(asked, None) is None


def ignore(event: Event) -> None:
    pass


def do(store: Store, config: RunConfig, **changes: object) -> Event:
    return perform(task(store, config, **changes), never, ignore)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_a_run_stopped_at_any_step_continues_to_the_same_numbers(
    method: dict, tmp_path: Path
) -> None:
    [config] = grid([method])
    whole, pieces = Store(tmp_path / "whole"), Store(tmp_path / "pieces")
    assert do(whole, config).status == "done"
    for stops in range(8):  # stopped after 1, 2, … steps: nine steps in all take four pieces
        event = perform(task(pieces, config), stop_after(stops + 1), ignore)
        torch.rand(3)  # what else happens in the process must not matter
        if event.kind == "ended":
            break
        assert event.kind == "stopped"
        assert pieces.checkpoint_path(config.id).exists()
        assert pieces.manifest(config.id) is None
    assert event == Event("ended", config.id, "done")
    [first], [second] = whole.load(), pieces.load()
    assert list(first.columns) == list(second.columns)
    for name in first.columns:
        if name != "wall_time":
            np.testing.assert_array_equal(first.columns[name], second.columns[name])
    assert first.manifest["digest"] == second.manifest["digest"]
    assert first.manifest["counts"] == second.manifest["counts"]
    assert not pieces.checkpoint_path(config.id).exists()


def test_checkpoints_of_other_versions_or_damaged_ones_are_not_continued(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    whole, store = Store(tmp_path / "whole"), Store(tmp_path / "pieces")
    do(whole, config)

    def stop_after_one_step() -> None:
        assert perform(task(store, config), lambda: True, ignore).kind == "stopped"

    path = store.checkpoint_path(config.id)
    stop_after_one_step()
    content = torch.load(path, weights_only=True)
    content["source"]["torch"] = "0.1"
    content["progress"]["rows"] = content["progress"]["rows"] * 9
    torch.save(content, path)
    stop_after_one_step()
    assert torch.load(path, weights_only=True)["progress"]["step"] == 1
    path.write_bytes(path.read_bytes()[:100])
    assert do(store, config).status == "done"
    assert store.load()[0].manifest["digest"] == whole.load()[0].manifest["digest"]


def test_what_is_written_is_what_the_format_says(tmp_path: Path) -> None:
    [config] = grid([{"name": "sso", "rule": "line-search", "m": 4}])
    store = Store(tmp_path)
    do(store, config)
    table = pq.read_table(store.metrics_path(config.id))
    assert tuple(table.column_names[: len(AXES)]) == AXES
    assert table.schema.metadata[b"run"] == config.id.encode()
    for name in table.column_names:
        assert str(table.schema.field(name).type) == (
            "int64" if name in ("step", *COUNTS) else "double"
        )
    manifest = json.loads(store.manifest_path(config.id).read_text())
    last = {name: table.column(name)[-1].as_py() for name in COUNTS}
    assert manifest["counts"] == last
    assert last["oracle_calls"] == 9
    assert table.column("step").to_pylist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert table.column("epoch")[-1].as_py() == 3.0
    assert manifest["config"] == config.resolved()
    for key in ("versions", "commit", "machine", "started", "duration", "command", "seed"):
        assert key in manifest
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".pt")]
    assert not list((tmp_path / "locks").iterdir())


def test_counts_are_what_the_methods_promise(tmp_path: Path) -> None:
    configs = grid(METHODS)
    store = Store(tmp_path)
    for config in configs:
        do(store, config)
        counts = store.manifest(config.id)["counts"]
        name, steps = config.method.name, 9
        if name == "svrg":  # a snapshot of 3 batches per epoch, two gradients per step
            assert counts["oracle_calls"] == counts["backward_calls"] == 3 * 3 + 2 * steps
        else:
            assert counts["oracle_calls"] == steps
        if name != "sso":
            assert counts["inner_steps"] == steps
            assert counts["forward_calls"] == counts["oracle_calls"] + counts["value_calls"]
        line_search = name == "sls" or config.resolved()["method"].get("rule") == "line-search"
        assert (counts["value_calls"] >= steps) == line_search
        assert line_search or counts["value_calls"] == 0


def test_an_error_is_a_failure_with_its_traceback_and_is_tried_again(tmp_path: Path) -> None:
    [config] = grid([{"name": "sgd", "lr": 0.1}], trouble="raise", at=4)
    store = Store(tmp_path)
    event = do(store, config)
    assert event.status == "failed"
    assert event.reason == "after step 3: RuntimeError: the simulator is out of paper"
    [run] = store.load()
    assert run.columns["step"].tolist() == [0, 1, 2, 3]
    assert "in go_wrong" in run.manifest["traceback"]
    assert do(store, config) == event, "this attempt was made already"
    assert store.manifest(config.id)["attempt"] == 1
    do(store, config, attempt=2)
    assert store.manifest(config.id)["attempt"] == 2


def test_divergence_is_recorded_and_final(tmp_path: Path) -> None:
    [config] = grid([{"name": "sgd", "lr": 1e300}])
    store = Store(tmp_path)
    event = do(store, config)
    assert event.status == "diverged"
    assert "step" in event.reason
    [run] = store.load()
    assert np.isfinite(run.columns["loss"]).all()
    before = store.manifest_path(config.id).stat().st_mtime_ns
    assert do(store, config, attempt=2) == event
    assert store.manifest_path(config.id).stat().st_mtime_ns == before


def test_a_time_limit_ends_a_run_and_a_larger_one_continues_it(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    [slow] = grid([{"name": "adam"}], pause=0.02)
    store = Store(tmp_path)
    assert do(store, slow, time_limit=0.05).status == "timeout"
    manifest = store.manifest(slow.id)
    assert "--time-limit" in manifest["reason"]
    assert settled(manifest, 0.05)
    assert settled(manifest, 0.01)
    assert not settled(manifest, 60.0)
    assert not settled(manifest, None)
    assert do(store, slow, time_limit=60.0, attempt=2).status == "done"
    reference = Store(tmp_path / "reference")
    do(reference, config)
    np.testing.assert_array_equal(
        store.load()[0].columns["loss"], reference.load()[0].columns["loss"]
    )


def test_processor_time_is_that_of_all_pieces_of_a_run(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    store = Store(tmp_path)
    perform(task(store, config), stop_after(4), ignore)
    path = store.checkpoint_path(config.id)
    content = torch.load(path, weights_only=True)
    assert content["progress"]["cpu_time"] > 0.0
    content["progress"]["cpu_time"] += 1000.0
    torch.save(content, path)
    assert do(store, config).status == "done"
    assert 1000.0 < store.manifest(config.id)["cpu_time"] < 1100.0


def test_the_death_of_a_process_is_recorded_with_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    store = Store(tmp_path)
    perform(task(store, config), stop_after(4), ignore)
    event = record_death(task(store, config), "the process doing this run was ended by SIGSEGV")
    assert (event.kind, event.status) == ("ended", "failed")
    [run] = store.load()
    assert run.columns["step"].tolist() == [0, 1, 2, 3]
    assert run.manifest["counts"]["oracle_calls"] == 3
    assert do(store, config, attempt=2).status == "done", "from the checkpoint, which is kept"


def test_a_claimed_run_is_left_alone(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    store = Store(tmp_path)
    store.prepare()
    assert store.locks.take(config.id)
    assert do(store, config).kind == "elsewhere"
    assert record_death(task(store, config), "…").kind == "elsewhere"
    assert list(store.locks.alive()) == [config.id]
    store.locks.release(config.id)
    assert do(store, config).status == "done"


def _hold(directory: str, ready: object) -> None:
    Locks(Path(directory)).take("run")
    ready.set()
    signal.pause()


# JAX, which another test of this process may have imported, warns of every fork
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready))
    holder.start()
    ready.wait()
    claims = Locks(tmp_path)
    assert not claims.take("run")
    assert claims.alive()["run"]["pid"] == holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert claims.alive() == {}
    assert claims.take("run")
    claims.release("run")


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"a\.json: the disk is full\. Free some space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_files_are_named_with_the_remedy(tmp_path: Path) -> None:
    [config] = grid([{"name": "adam"}])
    store = Store(tmp_path)
    do(store, config)
    store.metrics_path(config.id).write_bytes(b"PAR1 no more")
    with pytest.raises(StoreError, match="only this run is redone"):
        store.load()
    store.manifest_path(config.id).write_text("{")
    with pytest.raises(StoreError, match="delete the file"):
        store.load()


def test_full_batches_need_no_sampling_and_equal_one_batch_of_everything(tmp_path: Path) -> None:
    runs = expand(
        Experiment(
            problems=[{"name": "breast_cancer"}],
            methods=[
                {"name": "sgd"},
                {"name": "sso", "inner": "gradient-descent", "step_size": 0.1},
            ],
            batch_size=["full", 569],
            epochs=3,
            engine="torch",
        )
    )
    store = Store(tmp_path)
    for config in runs:
        assert do(store, config).status == "done"
    loaded = {(r.manifest["method"]["name"], r.manifest["batch_size"]): r for r in store.load()}
    for method in ("sgd", "sso"):
        np.testing.assert_array_equal(
            loaded[method, "full"].columns["loss"], loaded[method, 569].columns["loss"]
        )


def test_sso_with_one_fixed_inner_step_is_sgd(tmp_path: Path) -> None:
    """m = 1 with step α is SGD with step α, whatever η; seen through the whole engine."""
    runs = expand(
        Experiment(
            problems=[{"name": "breast_cancer"}],
            methods=[
                {"name": "sgd", "lr": 0.05},
                {"name": "sso", "inner": "gradient-descent", "step_size": 0.05, "m": 1, "lr": 7.0},
            ],
            batch_size=50,
            epochs=2,
            engine="torch",
        )
    )
    store = Store(tmp_path)
    for config in runs:
        do(store, config)
    sgd, sso = (run.columns for run in store.load([config.id for config in runs]))
    np.testing.assert_allclose(sgd["loss"], sso["loss"], rtol=1e-12)
    for name in COUNTS[:3]:
        np.testing.assert_array_equal(sgd[name], sso[name])
    np.testing.assert_array_equal(modelled_cost(sgd, 10.0), 11.0 * sgd["step"])


@given(total=st.integers(1, 10**6), per_epoch=st.integers(1, 10**4))
def test_recorded_steps(total: int, per_epoch: int) -> None:
    total = min(total, 2000 * per_epoch)
    steps = record_steps(total, per_epoch)
    assert steps[0] == 0
    assert steps[-1] == total
    assert steps == sorted(set(steps))
    crowded = 20 * per_epoch
    assert set(range(per_epoch, min(total, crowded) + 1, per_epoch)) <= set(steps)
    assert all(step % per_epoch == 0 for step in steps[:-1] if step > crowded)
    assert len([step for step in steps if step > crowded]) <= 24 * np.log10(2000 / 20) + 2
    gaps = [b / a for a, b in itertools.pairwise(steps) if a >= 12]
    assert all(gap <= 1.3 for gap in gaps)


def test_modelled_cost_refuses_a_negative_price() -> None:
    with pytest.raises(ValueError, match="tau=-1"):
        modelled_cost({"oracle_calls": np.zeros(1), "inner_steps": np.zeros(1)}, -1.0)


def test_a_task_is_plain_data() -> None:
    [config] = grid([{"name": "sso"}])
    assert dataclasses.is_dataclass(config)
    assert config.id == dataclasses.replace(config, method_label="other").id
    assert config.id != dataclasses.replace(config, seed=1).id


LINEAR_METHODS = [
    *({"name": "sso", "rule": rule, "m": 4} for rule in ("gradient-step", "line-search", "ftrl")),
    *({"name": "sso", "rule": rule, "inner": "lbfgs", "m": 3} for rule in ("adagrad", "newton")),
    {"name": "sso", "inner": "exact", "lr": 0.5, "schedule": "inverse-sqrt"},
    {"name": "sso", "rule": "adagrad-norm", "inner": "gradient-descent", "step_size": 0.05, "m": 2},
    {"name": "sgd"},
    {"name": "sls"},
    {"name": "svrg"},
    {"name": "adam", "lr": 0.01, "schedule": "exponential"},
    {"name": "adagrad", "weight_decay": 0.001},
    {"name": "adagrad-norm"},
]


@pytest.mark.parametrize("method", LINEAR_METHODS, ids=lambda m: "-".join(map(str, m.values())))
def test_the_compiled_engine_takes_the_steps_of_the_torch_path(
    method: dict, tmp_path: Path
) -> None:
    def configured(engine: str) -> RunConfig:
        [config] = expand(
            Experiment(
                problems=[{"name": "breast_cancer", "weight_decay": 0.01}],
                methods=[method],
                batch_size=100,
                epochs=2,
                seeds=[3],
                engine=engine,
            )
        )
        return config

    assert configured("auto") == configured("compiled")
    store = Store(tmp_path)
    for engine in ("torch", "compiled"):
        event = do(store, configured(engine))
        assert event.status == "done", event.reason
    names = [configured(engine).id for engine in ("torch", "compiled")]
    torch_path, compiled = (store.load([name])[0].columns for name in names)
    assert compiled["step"].tolist() == torch_path["step"].tolist()
    for name in ("oracle_calls", "value_calls", "inner_steps"):
        assert compiled[name].tolist() == torch_path[name].tolist()
    np.testing.assert_allclose(compiled["loss"], torch_path["loss"], rtol=1e-9)
    pieces = Store(tmp_path / "pieces")
    config = configured("compiled")
    while (event := perform(task(pieces, config), lambda: True, ignore)).kind == "stopped":
        pass
    assert pieces.manifest(config.id)["digest"] == store.manifest(config.id)["digest"]
