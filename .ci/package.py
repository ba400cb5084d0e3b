"""Build the wheel and the sdist, and use them in clean environments: the core alone, and each extra alone.

The environments are made by ``venv`` and see nothing of the one that runs this. The packages that the core or an extra
declares, and what those declare in turn, are linked into them instead of being downloaded and copied once more.

``package.py --from-index [--python PYTHON]… [EXTRA]…`` has pip install the wheel from the index, for each of these
interpreters: the core in a fresh environment, and each extra in a copy of that. It uses more of them, which takes
minutes for each.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import extras
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

USE = """
import importlib.util, pathlib, sys
import torch, targetopt as to

home = pathlib.Path(to.__file__).resolve()
assert home.is_relative_to(pathlib.Path(sys.prefix).resolve()), home
for name in ("sklearn", "numba", "pydantic", "typer", "rich", "matplotlib", "pyarrow", "gymnasium", "ray", "pytest"):
    assert importlib.util.find_spec(name) is None, name  # nothing but the core's dependencies
torch.manual_seed(0)
x = torch.randn(64, 5)
y = torch.sign(x @ torch.randn(5))
model = torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0))
opt = to.SSO(model.parameters(), rule=to.GradientStep(), inner=to.Armijo(max_steps=10))
losses = [opt.step(lambda: model(x), to.LossOracle(to.losses.Logistic(y))).loss for _ in range(5)]
assert losses[-1] < losses[0], losses
fitted = to.linear.fit(x.double().numpy(), y.double().numpy(), batch_size=16, epochs=2)
assert (home.parent / "py.typed").exists()
print(f"targetopt {to.__version__} works: loss {losses[0]:.3f}, then {losses[-1]:.3f}")
"""


def needed(wanted: Iterable[Requirement], found: set[tuple[str, str]]) -> set[str]:
    """The names of the distributions that satisfy these requirements here, and of all that those need in turn."""
    for requirement in wanted:
        plain = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for extra in ("", *requirement.extras):
            if (plain, extra) in found:
                continue
            try:
                declared = metadata.requires(plain) or []
            except metadata.PackageNotFoundError:
                continue  # of another platform
            found.add((plain, extra))
            needed(applying(declared, extra), found)
    return {name for name, _ in found}


def applying(declared: Iterable[str], extra: str) -> list[Requirement]:
    """Those of a distribution's requirements that one of its extras has, or that it has without any."""
    parsed = [Requirement(text) for text in declared]
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": extra})]


def declared_by(wheel: Path, extra: str) -> list[Requirement]:
    """What a wheel of ours needs with an extra; an extra may name others."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        declared = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found = applying(declared, extra)
    for own in [each for each in found if each.name == "targetopt"]:
        found += [r for other in own.extras for r in declared_by(wheel, other)]
    return [each for each in found if each.name != "targetopt"]


def link(names: set[str], place: Path) -> None:
    """Everything that these distributions installed, as links."""
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            target = Path(str(metadata.distribution(name).locate_file(top)))
            if target.exists() and not (place / top).exists():
                (place / top).symlink_to(target)


def clean(home: Path, names: set[str]) -> Path:
    """An environment with links to these distributions; returns the folder of its packages."""
    venv.create(home, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    link(names, packages)
    return packages


def use(python: str, code: str, folder: str) -> None:
    """Run code that must neither fail nor warn, in a file, as processes that it starts may look for one."""
    script = Path(folder) / "use.py"
    script.write_text(code, encoding="utf-8")
    # Tests run beside this: threads of torch would wait for one another.
    alone = {"OMP_NUM_THREADS": "1", **os.environ}
    subprocess.run([python, "-I", "-W", "error", script], cwd=folder, check=True, env=alone)


def by_links(wheel: Path, sdist: Path, folder: str) -> None:
    """The core from wheel and sdist, and every extra from the wheel, with the packages that are here."""
    core = needed(declared_by(wheel, ""), set())
    build = needed([Requirement("hatchling")], set())
    for source, linked in ((sdist, core | build), (wheel, core)):
        print(f"{source.name}, {source.stat().st_size / 1e6:.1f} MB", flush=True)
        home = Path(folder) / source.suffix
        installed, made = clean(home, linked), str(home / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", made, "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", source], check=True)
        use(made, USE, folder)
    for extra, code in extras.QUICK.items():
        linked = core | needed(declared_by(wheel, extra), set())
        packages = clean(Path(folder) / extra, linked)
        for ours in installed.glob("targetopt*"):
            (packages / ours.name).symlink_to(ours)
        use(str(Path(folder) / extra / "bin" / "python"), code, folder)
        print(f"[{extra}] alone works ({len(linked)} packages)", flush=True)


def from_index(wheel: Path, pythons: list[str], wanted: list[str], folder: str) -> None:
    """The core and every extra as a stranger installs them, for each interpreter; exit with what did not work."""
    home, core, failed = Path(folder) / "environment", Path(folder) / "core", []
    made = str(home / "bin" / "python")
    for python in pythons:
        version = subprocess.check_output([python, "-V"], text=True).strip()
        shutil.rmtree(core, ignore_errors=True)
        for extra in ["", *(wanted or extras.QUICK)]:
            shutil.rmtree(home, ignore_errors=True)
            if extra:  # with hard links: pip writes files anew, and changes none in its place
                shutil.copytree(core, home, symlinks=True, copy_function=os.link)
            else:
                subprocess.run([python, "-m", "venv", home], check=True)
            began = time.monotonic()
            source = f"{wheel}[{extra}]" if extra else str(wheel)
            try:
                subprocess.run([made, "-m", "pip", "install", "--quiet", source], check=True)
                seconds = time.monotonic() - began
                if not extra:
                    shutil.copytree(home, core, symlinks=True, copy_function=os.link)
                for code in [extras.QUICK[extra], extras.WHOLE.get(extra)] if extra else [USE]:
                    if code:
                        use(made, code, folder)
            except subprocess.CalledProcessError as error:
                failed.append(f"{version}, [{extra}]: {error}")
                print(failed[-1], flush=True)
                if core.exists():
                    continue
                break  # without the core there is nothing to try
            size = sum(f.stat().st_size for f in home.rglob("*") if not f.is_symlink()) / 1e6
            print(f"{version}, [{extra}]: works, {size:.0f} MB in {seconds:.0f} s", flush=True)
    if failed:
        sys.exit("\n".join(failed))


def main() -> None:
    """Exit with an error if anything of this does not work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from-index", action="store_true")
    parser.add_argument("--python", action="append", help="an interpreter; several may be given")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="some of them; all without")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "dist"
        build = [sys.executable, "-m", "hatchling", "build", "-d", made]
        subprocess.run(build, cwd=ROOT, check=True)
        [wheel], [sdist] = made.glob("*.whl"), made.glob("*.tar.gz")
        if given.from_index:
            from_index(wheel, given.python or [sys.executable], given.extras, folder)
        else:
            by_links(wheel, sdist, folder)


if __name__ == "__main__":
    main()
