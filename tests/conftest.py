"""Fixtures that every test file may use, and the one door to the real data beside the checkout."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lanes import share_out

# Two workers on two cores: threads of theirs would only get in each other's way. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual processors announce AMX and cannot execute it: bfloat16 layers of torch then end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Each process that trains an expert with jax would compile the same functions: four fifths of a small training.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# A shell lets what it starts in the background ignore Ctrl-C, and processes inherit that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Plugins register their problems when imported, which is the engine's to do, not the doctest collector's.
collect_ignore = ["lab_plugin.py", "lab_trap.py"]

REPOSITORY = Path(__file__).resolve().parents[1]
BESIDE = REPOSITORY.parent / "shared"


class RealData:
    """Real data files, which a checkout may have beside it and a fresh clone does not have.

    Call it with a data set's name for the path of its file; the test is skipped where it is not.
    """

    directory = BESIDE / "data"
    files: ClassVar = {
        "mushrooms": "mushrooms.bz2",
        "ijcnn1": "ijcnn1.tr.bz2",
        "rcv1-v2-subset": "rcv1_like_20242.binary.bz2",
    }

    def __call__(self, name: str) -> Path:
        path = self.directory / self.files[name]
        if not path.is_file():
            pytest.skip(f"needs the real data set {name}: there is no {path}")
        return path


@pytest.fixture(scope="session")
def real_data() -> RealData:
    """The only way to the real data: tests that do not ask for it cannot open them (see below)."""
    return RealData()


_may_open_real_data = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported for seven thousand tests lives as long as they do: nobody need look through it for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_out(items)
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("real_data")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    global _may_open_real_data
    _may_open_real_data = "real_data" in getattr(item, "fixturenames", ())
    try:
        return (yield)
    finally:
        _may_open_real_data = False


def _refuse_real_data(event: str, arguments: tuple) -> None:
    """Tests must pass on a clone that stands alone, so none may find the real data by itself."""
    if event != "open" or _may_open_real_data or not isinstance(arguments[0], str | os.PathLike):
        return
    if os.fspath(arguments[0]).startswith(f"{BESIDE}{os.sep}"):
        raise PermissionError(
            f"a test opened {arguments[0]}, which a fresh clone does not have. Ask for it through "
            "the fixture real_data, which skips the test where the file is missing."
        )


sys.addaudithook(_refuse_real_data)


# -- a real browser, one for all tests of a process -----------------------------------------------

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    # the same engine without windows, tabs and menus, each of which is a process for every page that is opened
    executable = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if executable is None:
        reason = "no Chromium on PATH: install it to test the report (Debian: apt-get install chromium-headless-shell)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a report in a fresh context, offline, and notes what a reader must never see."""
    contexts = []

    def open_report(path: Path, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        context.set_offline(True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.wrong = []
        page.on("console", lambda message: page.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: page.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.wrong.append("dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: (
                None
                if request.url == path.as_uri()
                else page.wrong.append(f"request: {request.url}")
            ),
        )
        page.goto(path.as_uri())
        return page

    yield open_report
    for context in contexts:
        context.close()
