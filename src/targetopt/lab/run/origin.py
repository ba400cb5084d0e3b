"""The process that workers are forked from, which imports everything once.

It is started afresh, has one thread and never runs anything itself. This module imports nothing but the standard
library, so that whoever has seconds of imports ahead can start the process first: both then import side by side.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

WORKER_ENVIRONMENT = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
) | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Set in every worker before anything is imported: jobs share the cores, threads would fight.

(Arrow's own allocator keeps a thread in the background, which a process to be forked must not.)
"""


def started() -> bool:
    """Start it, if it is not there already; whether there is one: forking is safe on Linux alone."""
    if sys.platform != "linux":
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload(["targetopt.lab.run.preload"])
    with inherited_by_workers():
        forkserver.ensure_running()
    return True


@contextmanager
def inherited_by_workers() -> Iterator[None]:
    """Environment and signals that a process started in here begins with.

    SIGINT is ignored from birth: Ctrl-C reaches the whole terminal, and it is the runner that
    answers it.
    """
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main_thread else None
    try:
        yield
    finally:
        if main_thread:
            signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
