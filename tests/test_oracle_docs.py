"""The code in the pages about oracles runs, block after block, with the example's service behind it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def url():
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "oracle_server.py"), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


def blocks(page: str) -> str:
    found = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found
    return "\n".join(found)


def test_write_your_oracle(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = blocks("write-your-oracle.md").replace("http://127.0.0.1:8000", url)
    names: dict = {}
    exec(compile(code, "write-your-oracle.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "spent 0.384 of 5.00: 192 rows, 192 of them asked in 12 calls" in printed
    assert "128 of 192 rows came from the cache" in printed
    assert "64 rows in 1 calls" in printed
    assert names["opt"].totals.oracle_calls == 11


def test_what_you_pay_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("what-you-pay-for.md"), "what-you-pay-for.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "2.00 of money more would exceed the budget of 3" in printed
    assert "spent 4.00 of 4.00" in printed


def test_the_reference_service_is_forty_lines_of_code():
    text = (ROOT / "examples" / "oracle_server.py").read_text()
    code = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
    assert len(code) <= 45
