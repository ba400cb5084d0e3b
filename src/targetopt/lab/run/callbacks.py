"""Logging callbacks: the rows of a run as they appear, in TensorBoard or any W&B-like tracker.

``targetopt run SPEC.toml --track tensorboard`` writes event files beside the results. Other
trackers are a function that starts one, registered under a name by a plugin of the specification::

    import wandb
    from targetopt.lab.run.callbacks import register


    @register("wandb")
    def start(manifest):
        return wandb.init(project="sso", id=manifest["id"], config=manifest["config"])

and asked for with ``--track wandb``. Nothing is imported before it is asked for. The files of the
result directory remain the record; a tracker is a window on it, and one that fails is closed with
a warning while the run goes on.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from targetopt.types import BadArgument, MissingCapability

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Manifest = Mapping[str, Any]
Row = Mapping[str, float]


class Callback(Protocol):
    """Told of one run: once when it begins, of each recorded row in order, once when it ends.

    A continued run begins again with the same id; rows since its last checkpoint come again.
    """

    def on_start(self, manifest: Manifest) -> None:
        """What is known beforehand: ``id``, ``problem``, ``method``, ``seed``, ``config``, …"""

    def on_row(self, row: Row) -> None:
        """``step``, the counts, and the metrics."""

    def on_end(self, manifest: Manifest) -> None:
        """The whole manifest, with ``status`` and ``reason``."""


class Log(Protocol):
    """The one call that W&B-like trackers share; a ``finish()`` is used where there is one."""

    def log(self, data: dict[str, Any], *, step: int) -> object: ...


class TensorBoard:
    """Event files, one directory per run: scalars by step, the configuration as hparams and text.

    Rows that a continued run records a second time replace those of the first.

    Args:
        directory: give it to ``tensorboard --logdir``.

    Example:
        >>> import tempfile
        >>> board = TensorBoard(tempfile.mkdtemp())
        >>> board.on_start({"id": "a1b2c3", "seed": 0})
        >>> board.on_row({"step": 1, "oracle_calls": 1, "loss": 0.7})
        >>> board.on_end({"id": "a1b2c3", "seed": 0, "status": "done"})
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingCapability(
                "TensorBoard needs the package tensorboard, which is not installed. "
                "Run: pip install 'targetopt[trackers]'"
            ) from error
        self._open_writer = SummaryWriter
        self._directory = Path(directory)
        self._manifest: Manifest = {}
        self._writer: SummaryWriter | None = None

    def on_start(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._writer = None

    def on_row(self, row: Row) -> None:
        step = int(row["step"])
        writer = self._writer_from(step)
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, step)

    def on_end(self, manifest: Manifest) -> None:
        from torch.utils.tensorboard.summary import hparams

        writer = self._writer_from(None)
        text = json.dumps(manifest, indent=2, default=str, ensure_ascii=False)
        # Four spaces make a Markdown code block, whatever the text holds.
        writer.add_text("manifest", "    " + text.replace("\n", "\n    "))
        events: Any = writer.file_writer
        # Not add_hparams: it would log each metric once more, at step 0.
        for summary in hparams(_choices(manifest), {"loss": 0.0}):
            events.add_summary(summary)
        writer.close()
        self._writer = None

    def _writer_from(self, step: int | None) -> SummaryWriter:
        """The run's writer; opened at the first row, it hides older events from ``step`` on."""
        if self._writer is None:
            path = self._directory / run_name(self._manifest)
            self._writer = self._open_writer(str(path), purge_step=step)
        return self._writer


class Tracker:
    """Any object with W&B's ``log(data, step=)``.

    Args:
        start: called with the manifest when a run begins, in the process that runs it, which does
            no other run meanwhile; gives the tracker of that run. If the tracker has a
            ``finish()``, it is called when the run ends.

    Example:
        >>> class Printer:
        ...     def log(self, data, *, step):
        ...         print(step, data)
        >>> tracker = Tracker(lambda manifest: Printer())
        >>> tracker.on_start({"id": "a1b2c3"})
        >>> tracker.on_row({"step": 3, "loss": 0.25})
        3 {'loss': 0.25}
        >>> tracker.on_end({"id": "a1b2c3", "status": "done"})
    """

    def __init__(self, start: Callable[[Manifest], Log]) -> None:
        self._start = start
        self._log: Log | None = None

    def on_start(self, manifest: Manifest) -> None:
        started = self._start(manifest)
        if not callable(getattr(started, "log", None)):
            raise BadArgument(
                f"a tracker must have log(data, step=); {started!r} has none. Return the tracker "
                "itself from the function that starts it, e.g. what wandb.init() gives."
            )
        self._log = started

    def on_row(self, row: Row) -> None:
        assert self._log is not None, "on_start comes first"
        data = {name: value for name, value in row.items() if name != "step"}
        self._log.log(data, step=int(row["step"]))

    def on_end(self, manifest: Manifest) -> None:
        finish = getattr(self._log, "finish", None)
        self._log = None
        if callable(finish):
            finish()


class Trackers:
    """Several callbacks as one. One that raises is dropped with a warning: the run matters more.

    Example:
        >>> Trackers([]).on_row({"step": 1, "loss": 0.5})
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)

    def on_start(self, manifest: Manifest) -> None:
        self._tell(lambda callback: callback.on_start(manifest))

    def on_row(self, row: Row) -> None:
        self._tell(lambda callback: callback.on_row(row))

    def on_end(self, manifest: Manifest) -> None:
        self._tell(lambda callback: callback.on_end(manifest))

    def _tell(self, message: Callable[[Callback], None]) -> None:
        for callback in list(self._callbacks):
            try:
                message(callback)
            except Exception as error:  # a user's tracker may raise anything
                self._callbacks.remove(callback)
                warnings.warn(
                    f"{type(callback).__name__} failed and is not told of this run any more; the "
                    f"run goes on ({type(error).__name__}: {error})",
                    RuntimeWarning,
                    stacklevel=3,
                )


Start = Callable[[Manifest], Log]
_STARTS: dict[str, Start] = {}


def register(name: str) -> Callable[[Start], Start]:
    """Make a function that starts a tracker known to ``--track`` under ``name`` (see the module)."""

    def keep(start: Start) -> Start:
        if name == "tensorboard" or _STARTS.setdefault(name, start) is not start:
            raise BadArgument(f"a tracker named {name!r} is registered already: choose another")
        return start

    return keep


def open_trackers(names: Sequence[str], directory: str | Path) -> Trackers:
    """The callbacks of these names, ready for one run.

    Args:
        names: ``"tensorboard"``, or names given to :func:`register` by a plugin loaded before.
        directory: the result directory; event files go to its folder ``tensorboard``.

    Example:
        >>> open_trackers(["visdom"], ".")
        Traceback (most recent call last):
        targetopt.errors.BadArgument: no tracker is named 'visdom'; there are: tensorboard. ...
    """
    for name in names:
        if name != "tensorboard" and name not in _STARTS:
            known = ", ".join(["tensorboard", *sorted(_STARTS)])
            raise BadArgument(
                f"no tracker is named {name!r}; there are: {known}. A plugin of the specification "
                "adds others with targetopt.lab.run.callbacks.register."
            )
    return Trackers(
        [
            TensorBoard(Path(directory) / name) if name == "tensorboard" else Tracker(_STARTS[name])
            for name in names
        ]
    )


def run_name(manifest: Manifest) -> str:
    """A readable directory for a run: problem, method, seed and the beginning of its id.

    Example:
        >>> run_name({"id": "0123456789ab", "seed": 2, "method": {"label": "SSO <m=10>"}})
        'run/SSO-m=10-seed2-01234567'
    """

    def slug(what: str, default: str) -> str:
        label = str((manifest.get(what) or {}).get("label", default))
        return re.sub(r"[^\w.+=]+", "-", label).strip("-.")[:60] or default

    tail = re.sub(r"[^\w-]+", "-", f"seed{manifest.get('seed', 0)}-{str(manifest['id'])[:8]}")
    return f"{slug('problem', 'run')}/{slug('method', 'run')}-{tail}"


def _choices(manifest: Manifest) -> dict[str, str | float]:
    """What distinguishes a run from its neighbours, as TensorBoard's hparams."""
    labels = {k: str((manifest.get(k) or {}).get("label", "")) for k in ("problem", "method")}
    numbers = {k: manifest[k] for k in ("seed", "batch_size", "epochs") if k in manifest}
    return labels | {k: v if isinstance(v, int | float) else str(v) for k, v in numbers.items()}
