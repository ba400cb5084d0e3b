"""The code in docs/baselines.md runs, and prints what its comments say."""

import re
from pathlib import Path


def test_the_page_runs(capsys):
    page = (Path(__file__).parents[1] / "docs" / "baselines.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)
    line_search, variance_reduced = capsys.readouterr().out.splitlines()
    gradients, values, step = line_search.split()
    assert gradients == "8"
    assert int(values) >= 8
    assert 0 < float(step) <= 10
    assert variance_reduced == "2 48"
    assert 0 < names["step"] == 0.5 / names["L_theta"]
    assert names["worst"] >= names["L_theta"]
