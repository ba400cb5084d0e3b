"""The examples of the guide to reinforcement learning run as they stand."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "rl.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    known: dict[str, object] = {}
    for block in blocks:
        exec(block, known)
    assert known["report"].solves >= 1  # type: ignore[attr-defined]


def test_the_table_of_presets_says_what_they_are() -> None:
    from targetopt.rl import PRESETS

    text = PAGE.read_text()
    for name, recipe in PRESETS.items():
        (row,) = re.findall(rf'^\| `"{name}"`.*$', text, re.MULTILINE)
        cells = [cell.strip() for cell in row.split("|")[2:4]]
        surrogate = type(recipe.surrogate).__name__.lower().replace("logratio", "log-ratio")
        assert cells == [surrogate, str(recipe.divergence).replace("-kl", " KL")]
