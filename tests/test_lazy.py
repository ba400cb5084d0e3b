"""Lazy packages: what type checkers are told is what there is, and importing loads nothing."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["targetopt", "targetopt.lab"])
def test_type_checkers_are_told_of_exactly_the_names_there_are(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__ or "").read_text("utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: node.module for node in imports for alias in node.names}
    grouped = {name for names in getattr(module, "_GROUPED", {}).values() for name in names}
    assert set(told) == set(module.__all__) - {"__version__"} | grouped
    assert not grouped & set(module.__all__)
    for name, home in told.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_an_object_goes_before_a_package_of_its_name() -> None:
    importlib.import_module("targetopt.lab.run.runner")
    lab = importlib.import_module("targetopt.lab")
    assert lab.run is importlib.import_module("targetopt.lab.run.runner").run


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("raise ModuleNotFoundError('No module', name='anyio')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import targetopt as to\n"
        "try:\n    to.RemoteOracle\nexcept to.MissingCapability as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(
        "needs anyio, which is not installed: pip install 'targetopt[remote]'\n"
    )


def test_importing_the_packages_loads_no_torch() -> None:
    code = (
        "import sys, targetopt, targetopt.lab; print('torch' in sys.modules, targetopt.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False 0.")


def test_importing_the_estimators_loads_no_torch() -> None:
    pytest.importorskip("sklearn")
    code = "import sys, targetopt.sklearn; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_saving_and_reading_a_run_loads_neither_torch_nor_pandas(tmp_path: Path) -> None:
    """Every worker would import pandas, for a second, before its first run could end."""
    pytest.importorskip("pandas")
    code = (
        "import sys\nfrom targetopt.lab.store.directory import AXES, Store\n"
        "store = Store(sys.argv[1])\nstore.prepare()\n"
        "rows = [{**dict.fromkeys(AXES, n), 'loss': n / 3} for n in range(4)]\n"
        "store.save({'id': '0' * 16}, rows)\n"
        "print(store._columns('0' * 16)['loss'].tolist() == [n / 3 for n in range(4)])\n"
        "print({'torch', 'pandas'} & set(sys.modules))"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "True\nset()\n"
