"""The code in docs/sklearn.md and the text example run, and print what they say."""

import contextlib
import io
import re
import runpy
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def output(run):
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        run()
    return stream.getvalue().splitlines()


def test_the_page():
    page = (REPOSITORY / "docs" / "sklearn.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    promised = re.findall(r"print\(.*\)  # (.*)", code)
    assert output(lambda: exec(compile(code, "docs/sklearn.md", "exec"), {})) == promised


def test_the_text_example():
    path = str(REPOSITORY / "examples" / "text_classification.py")
    lines = output(lambda: runpy.run_path(path, run_name="__main__"))
    accuracy = float(lines[1].rsplit(" ", 1)[1])
    assert accuracy > 0.9
    markets = ["shares", "profit", "bank", "trade", "stocks", "dollar", "price", "growth"]
    assert set(lines[2].split(": ")[1].split()) <= set(markets)
