"""The one list of names, and what a user adds to it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import targetopt as to
from targetopt import inner, losses, registry, rules
from targetopt.types import BadArgument

ROOT = Path(__file__).parents[1]


def concrete(module, base):
    found = {each for each in vars(module).values() if isinstance(each, type)}
    return {each for each in found if issubclass(each, base) and each is not base}


def ours(kinds):
    """Without those of plugins that other tests of this process have read."""
    return {kind for kind in kinds if kind.__module__.startswith("targetopt.")}


def test_everything_that_is_public_has_a_name():
    named = ours(type(entry.item) for entry in registry.rules.values())
    assert named == concrete(rules, rules.Rule)
    made = ours(type(entry.item.make(3, 0.1)) for entry in registry.inner.values())
    assert made == concrete(inner, inner.Inner)
    # Ridged is made of another loss, and BinaryLikelihood takes probabilities, which linear models do not give
    named = ours(entry.item for entry in registry.losses.values())
    assert named == concrete(losses, losses.Loss) - {
        losses.Ridged,
        losses.Pointwise,
        losses.BinaryLikelihood,
    }
    for names in (registry.rules, registry.inner, registry.losses, registry.schedules):
        assert all(entry.title and entry.about for entry in names.values())


def test_inner_solvers_are_made_from_what_specifications_say():
    assert registry.inner["armijo"].item.make(7, None) == to.Armijo(max_steps=7)
    assert registry.inner["exact"].item.iterates is False
    assert registry.inner["gradient-descent"].item.make(2, 0.5) == to.GradientDescent(0.5, 2)
    with pytest.raises(BadArgument, match="step_size"):
        registry.inner["gradient-descent"].item.make(2, None)
    assert registry.schedules["exponential"].item(10)(10) == pytest.approx(0.1)


def test_unknown_and_taken_names_are_errors_that_help():
    with pytest.raises(BadArgument, match=r"no rule named 'newtn'; there are 'gradient-step'"):
        registry.rules["newtn"]
    registry.register_rule("newton", to.Newton())  # a plugin that is read twice
    with pytest.raises(BadArgument, match="registered already"):
        registry.register_rule("newton", to.Newton(floor=1.0))
    with pytest.raises(BadArgument, match="parentheses"):
        registry.register_rule("mine", to.Newton)
    assert "mine" not in registry.rules


def test_the_registry_loads_no_laboratory():
    check = (
        "import sys; from targetopt import registry; "
        "sys.exit(any(name.startswith('targetopt.lab') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def blocks():
    page = (ROOT / "docs" / "add-your-own.md").read_text()
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))


def test_add_your_own_does_what_it_says(tmp_path):
    """Each file stands alone on disk; the plugin and the use import them."""
    found = blocks()
    assert set(found) == {"log_cosh.py", "damped.py", "momentum.py", "plugin.py", "use.py"}
    for name in ("log_cosh.py", "damped.py", "momentum.py"):
        (tmp_path / name).write_text(found[name])
    imports = (
        "from log_cosh import LogCosh\nfrom damped import Damped\nfrom momentum import Momentum\n"
    )
    checks = """
from targetopt.linear import Run, backend
registered = registry.rules["damped"].title, registry.inner["momentum"].item.make(3, None).max_steps
assert registered == ("SSO-damped", 3), registered
run = Run(X, y, loss=LogCosh)
assert ("memory" in run.state_dict()) == (backend.name() == "numba")
"""
    program = tmp_path / "program.py"
    program.write_text(imports + found["plugin.py"] + found["use.py"] + checks)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "NUMBA_CACHE_DIR": "", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for before, after in re.findall(r"(\d+\.\d+) -> (\d+\.\d+)", done.stdout):
        assert float(after) < 0.5 * float(before)
    assert done.stdout.count("->") == 2


def test_add_your_own_is_one_definition(tmp_path, monkeypatch):
    """The class of the page against its functions, as the package's losses are tested."""
    (tmp_path / "log_cosh.py").write_text(blocks()["log_cosh.py"])
    monkeypatch.syspath_prepend(tmp_path)
    from log_cosh import LogCosh

    z = np.array([-40.0, -1.0, 0.0, 0.3, 5.0, 1e4])
    loss = LogCosh(torch.full((6,), 0.3, dtype=torch.float64), scale=0.7)
    form = loss.scalar_form()
    at = torch.from_numpy(z)
    for function, found in zip(
        form.scalar, (loss.value(at), loss.gradient(at), loss.curvature(at)), strict=True
    ):
        expected = [function(each, 0.3, 0.7) for each in z]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-15)
