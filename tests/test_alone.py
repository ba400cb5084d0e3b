"""The tests pass on a clone that stands alone: nothing of theirs leans on the directory beside it."""

import re
import sys
from pathlib import Path

import pytest

import conftest
from forked import forked

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
    """The tests in question once more, in a process that finds none."""
    asking = [
        str(path)
        for path in sorted(TESTS.glob("test_*.py"))
        if "real_data" in path.read_text("utf-8") and path.name != Path(__file__).name
    ]
    assert asking

    class NothingBeside:
        def pytest_collection_finish(self) -> None:
            sys.modules["conftest"].RealData.directory = tmp_path  # pytest has imported it anew

    def without_data() -> None:
        quiet = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", "real_data"]
        assert pytest.main([*quiet, *asking], plugins=[NothingBeside()]) == 0

    said = forked(without_data)
    counts = dict(re.findall(r"(\d+) (\w+)", said.splitlines()[-1]))
    assert set(counts.values()) == {"skipped", "deselected"}, said
