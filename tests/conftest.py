"""Fixtures that every test file may use."""

import os
import signal
from pathlib import Path

import pytest

# Two workers on two cores: threads of theirs would only get in each other's way. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell lets what it starts in the background ignore Ctrl-C, and processes inherit that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Plugins register their problems when imported, which is the engine's to do, not the doctest collector's.
collect_ignore = ["bench_plugin.py", "bench_trap.py"]

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data files that lies beside the checkout."""
    directory = REPOSITORY.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"no real data beside the checkout: {directory} does not exist")
    return directory
