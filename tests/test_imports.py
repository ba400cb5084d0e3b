"""Who may import whom: the rooms of the package in their order, and no circles, read from the source."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import targetopt

SOURCE = Path(targetopt.__file__).parent

LEVELS = [
    ["errors", "lazy", "files", "arrays", "_version", "reference", "distributed.world"],
    ["types", "chunked", "vocabulary"],
    ["losses", "divergence", "surrogate", "schedules"],
    ["distributions"],
    ["rules", "inner"],
    ["step", "oracle", "distributed", "heads"],
    ["core"],
    ["optim"],
    ["oracle services", "registry", "baselines", "display"],
    ["linear"],
    ["sklearn", "theory"],
    ["imitation", "rl"],
    ["lab"],
    ["__main__", "__init__"],
]
"""Every room may import what stands in its own line and in those above it."""

SEAM = {"base", "answer", "loss", "gradient", "scalar"}
"""What the core knows of oracles; the rest of ``oracle`` are services, which know the core."""

CONVENIENCES = {("targetopt.types", "targetopt.oracle.answers")}
"""Imports against the order, inside a function that would be elsewhere but is easier found there.

``query.export(path)`` writes a question as a file that :class:`targetopt.Answers` can be asked for.
"""

OF_THEIR_OWN = {
    "targetopt.distributed.world": "distributed.world",
    "targetopt.distributed": "distributed.world",
}
"""Modules that stand above the rest of their room: who is present in a step is asked everywhere."""

LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def modules() -> dict[str, Path]:
    """All modules of the package by their full names."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(tree: ast.AST, *, at_once: bool) -> Iterator[str]:
    """Names of modules of the package that are imported; ``at_once``: when this one is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and at_once:
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("targetopt"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if (node.module or "").partition(".")[0] == "targetopt":
                for each in node.names:
                    inside = f"{node.module}.{each.name}"
                    yield inside if inside in MODULES else str(node.module)
        else:
            yield from imported(node, at_once=at_once)


def imports(module: str, *, at_once: bool) -> set[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return {name for name in imported(tree, at_once=at_once) if name in MODULES} - {module}


def room(module: str) -> str:
    parts = module.split(".")
    if module in OF_THEIR_OWN:
        return OF_THEIR_OWN[module]
    if len(parts) == 1:
        return "__init__"
    service = parts[1] == "oracle" and len(parts) > 2 and parts[2] not in SEAM
    return "oracle services" if service else parts[1]


def test_every_room_has_its_place() -> None:
    new = {room(module) for module in MODULES} - LEVEL.keys()
    assert not new, f"say in LEVELS what these may import and who may import them: {sorted(new)}"


def test_imports_point_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module, at_once=False)
        if LEVEL[room(other)] > LEVEL[room(module)] and (module, other) not in CONVENIENCES
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_there_are_no_circles() -> None:
    graph = {module: imports(module, at_once=True) for module in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_modules_and_folders_stay_small() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: n for name, n in lengths.items() if n >= 450} == {}
    folders = Counter(str(path.parent.relative_to(SOURCE)) for path in MODULES.values())
    assert {folder: n for folder, n in folders.items() if n >= 20} == {}


def test_the_drawn_walks_lead_through_files_that_are_there() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for what, files in (("opt.step", 8), ("targetopt run", 14)):
        walk = page.split(f"## A walk through `{what}`")[1].split("These eight")[0].split("##")[0]
        assert len(re.findall(r"(?:^|\s)\d+\. ", walk)) == files
        lost = [f for f in re.findall(r"`([\w/]+/\w+\.py)`", walk) if not (SOURCE / f).exists()]
        assert not lost


def test_the_top_is_light_and_short() -> None:
    code = (
        "import sys, targetopt\n"
        "print(*(m for m in sys.modules if m.startswith('targetopt.') or m == 'torch'))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    assert not loaded & {"torch", "targetopt.lab", "targetopt.theory", "targetopt.baselines"}
