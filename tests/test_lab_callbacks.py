"""Trackers: a real SummaryWriter whose files are read back, and real objects of W&B's shape."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from targetopt.lab.run import callbacks
from targetopt.lab.run.callbacks import TensorBoard, Tracker, Trackers, open_trackers, run_name
from targetopt.types import BadArgument, MissingCapability

MANIFEST = {
    "id": "0f1e2d3c4b5a",
    "problem": {"name": "digits", "label": "digits, logistic"},
    "method": {"name": "sso", "label": "SSO <b>m=10</b>/../.."},
    "seed": 3,
    "batch_size": None,
    "epochs": 5,
    "config": {"lr": 0.5},
}
ENDED = {**MANIFEST, "status": "done", "reason": ""}


def row(step: int, loss: float) -> dict[str, float]:
    return {"step": step, "oracle_calls": step, "wall_time": step / 8, "loss": loss}


def events(directory) -> EventAccumulator:
    found = EventAccumulator(str(directory / run_name(MANIFEST)))
    found.Reload()
    return found


def scalars(found: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_tensorboard_files_hold_what_was_recorded(tmp_path):
    board = TensorBoard(tmp_path)
    board.on_start(MANIFEST)
    for step, loss in ((0, 2.5), (1, 1.25), (10, math.inf)):
        board.on_row(row(step, loss))
    board.on_end(ENDED)
    found = events(tmp_path)
    assert sorted(found.Tags()["scalars"]) == ["loss", "oracle_calls", "wall_time"]
    assert scalars(found, "loss") == [(0, 2.5), (1, 1.25), (10, math.inf)]
    assert scalars(found, "oracle_calls") == [(0, 0.0), (1, 1.0), (10, 10.0)]
    assert scalars(found, "wall_time") == [(0, 0.0), (1, 0.125), (10, 1.25)]
    (text,) = found.Tensors("manifest/text_summary")[0].tensor_proto.string_val
    assert json.loads(text) == ENDED


def test_tensorboard_hparams_name_the_run(tmp_path):
    board = TensorBoard(tmp_path)
    board.on_start(MANIFEST)
    board.on_row(row(0, 1.0))
    board.on_end(ENDED)
    data = events(tmp_path).summary_metadata["_hparams_/session_start_info"].plugin_data
    parsed = plugin_data_pb2.HParamsPluginData.FromString(data.content)
    hparams = parsed.session_start_info.hparams
    assert hparams["problem"].string_value == "digits, logistic"
    assert hparams["method"].string_value == MANIFEST["method"]["label"]
    assert hparams["seed"].number_value == 3
    assert hparams["batch_size"].string_value == "None"


def test_a_continued_run_replaces_the_rows_it_records_again(tmp_path):
    killed = TensorBoard(tmp_path)
    killed.on_start(MANIFEST)
    for step in range(5):
        killed.on_row(row(step, 100.0 + step))
    killed._writer.close()  # the process ends here; the checkpoint was at step 2

    again = TensorBoard(tmp_path)
    again.on_start(MANIFEST)
    for step in range(3, 7):
        again.on_row(row(step, float(step)))
    again.on_end(ENDED)
    expected = [(0, 100.0), (1, 101.0), (2, 102.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 6.0)]
    assert scalars(events(tmp_path), "loss") == expected


def test_one_board_serves_runs_one_after_another_and_a_run_without_rows(tmp_path):
    board = TensorBoard(tmp_path)
    for seed in (0, 1):
        manifest = {**MANIFEST, "seed": seed, "id": f"{seed}" * 12}
        board.on_start(manifest)
        if seed == 0:
            board.on_row(row(0, 1.0))
        board.on_end({**manifest, "status": "failed"})
    directories = sorted(path.parent.name for path in tmp_path.rglob("events.*"))
    assert [d[-14:] for d in directories] == ["seed0-00000000", "seed1-11111111"]


def test_labels_cannot_leave_the_directory(tmp_path):
    name = run_name(MANIFEST)
    assert name == "digits-logistic/SSO-b-m=10-b-seed3-0f1e2d3c"
    assert (tmp_path / name).resolve().is_relative_to(tmp_path)
    hostile = {**MANIFEST, "problem": {"label": "../../etc"}, "method": {"label": ".."}}
    assert run_name(hostile) == "etc/run-seed3-0f1e2d3c"


class LocalTracker:
    """A tracker with W&B's calls that keeps its history in a file of JSON lines, as offline runs do."""

    def __init__(self, path, config):
        self.file = path.open("w")
        self.file.write(json.dumps({"config": config}) + "\n")
        self.step = -1

    def log(self, data, *, step=None, commit=True):
        assert commit
        if step <= self.step:  # W&B drops such rows with a warning
            raise ValueError(f"steps must increase: {step} after {self.step}")
        self.step = step
        self.file.write(json.dumps({"_step": step, **data}) + "\n")

    def finish(self, exit_code=None):
        self.file.close()


def test_a_tracker_of_wandbs_shape_gets_every_row_and_is_finished(tmp_path):
    started = []

    def start(manifest):
        started.append(LocalTracker(tmp_path / f"{manifest['id']}.jsonl", manifest["config"]))
        return started[-1]

    tracker = Tracker(start)
    for run in ("first", "second"):
        tracker.on_start({**MANIFEST, "id": run})
        tracker.on_row(row(0, 2.0))
        tracker.on_row(row(4, 1.0))
        tracker.on_end(ENDED)
    assert [t.file.closed for t in started] == [True, True]
    lines = [json.loads(line) for line in (tmp_path / "second.jsonl").read_text().splitlines()]
    assert lines == [
        {"config": {"lr": 0.5}},
        {"_step": 0, "oracle_calls": 0, "wall_time": 0.0, "loss": 2.0},
        {"_step": 4, "oracle_calls": 4, "wall_time": 0.5, "loss": 1.0},
    ]


class LogOnly:
    def __init__(self):
        self.rows = []

    def log(self, data, *, step):
        self.rows.append((step, data))


def test_a_tracker_needs_nothing_but_log():
    log = LogOnly()
    tracker = Tracker(lambda manifest: log)
    tracker.on_start(MANIFEST)
    tracker.on_row({"step": 2.0, "loss": 0.5})
    tracker.on_end(ENDED)
    assert log.rows == [(2, {"loss": 0.5})]
    with pytest.raises(BadArgument, match=r"must have log\(data, step=\)"):
        Tracker(lambda manifest: None).on_start(MANIFEST)


def test_a_failing_tracker_is_dropped_with_a_warning_and_the_others_go_on():
    good, bad = LogOnly(), LogOnly()

    def fail(data, *, step):
        raise ConnectionError("no network")

    bad.log = fail
    trackers = Trackers([Tracker(lambda manifest: bad), Tracker(lambda manifest: good)])
    trackers.on_start(MANIFEST)
    with pytest.warns(RuntimeWarning, match="the run goes on .ConnectionError: no network"):
        trackers.on_row(row(0, 1.0))
    trackers.on_row(row(1, 0.5))  # warnings are errors here: it is not told again
    trackers.on_end(ENDED)
    assert [step for step, _ in good.rows] == [0, 1]


def test_names(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "_STARTS", {})
    log = LogOnly()

    @callbacks.register("mine")
    def start(manifest):
        return log

    trackers = open_trackers(["mine", "tensorboard"], tmp_path)
    trackers.on_start(MANIFEST)
    trackers.on_row(row(1, 0.5))
    trackers.on_end(ENDED)
    assert [step for step, _ in log.rows] == [1]
    assert scalars(events(tmp_path / "tensorboard"), "loss") == [(1, 0.5)]
    with pytest.raises(BadArgument, match="there are: tensorboard, mine"):
        open_trackers(["wandb"], tmp_path)
    callbacks.register("mine")(start)  # the same plugin, loaded twice
    for name in ("mine", "tensorboard"):
        with pytest.raises(BadArgument, match="registered already"):
            callbacks.register(name)(lambda manifest: log)


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys; from targetopt.lab.run import callbacks as c; c.open_trackers([], '.');"
        "assert not {'tensorboard', 'wandb', 'torch.utils.tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingCapability, match=r"pip install 'targetopt\[trackers\]'"):
        TensorBoard(tmp_path)
