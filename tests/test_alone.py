"""The tests pass on a clone that stands alone: nothing of theirs leans on the directory beside it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import conftest

TESTS = Path(__file__).parent


def test_only_the_fixture_knows_where_the_real_data_lie() -> None:
    """A path to them spelled out elsewhere, for this process or another, goes past the fixture."""
    spelled = re.compile(r"""/ *["']shared["'/]|["']\.\./shared|["'/]shared/data""")
    places = [path.name for path in TESTS.rglob("*.py") if spelled.search(path.read_text("utf-8"))]
    assert places == ["conftest.py"]


def test_real_data_cannot_be_opened_without_asking_for_them() -> None:
    for name in ("mushrooms.bz2", "not-there"):  # refused whether or not it lies there
        with pytest.raises(PermissionError, match="Ask for it through the fixture real_data"):
            (conftest.BESIDE / "data" / name).open("rb")


def test_whatever_asks_for_real_data_is_skipped_where_there_are_none(tmp_path: Path) -> None:
    """The tests in question once more, from a copy with nothing beside it."""
    alone = tmp_path / "clone"
    shutil.copytree(TESTS, alone / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parent / "pyproject.toml", alone)
    asking = [
        str(path.relative_to(alone))
        for path in sorted(alone.glob("tests/test_*.py"))
        if "real_data" in path.read_text("utf-8") and path.name != Path(__file__).name
    ]
    assert asking
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "real_data"]
    ran = subprocess.run([*command, *asking], cwd=alone, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counts = dict(re.findall(r"(\d+) (\w+)", ran.stdout.splitlines()[-1]))
    assert set(counts.values()) <= {"skipped", "deselected"}, ran.stdout
