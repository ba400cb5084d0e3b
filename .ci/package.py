"""Build the wheel and the sdist, and use the core from each in an environment that has the core's dependencies alone.

The environments are made by ``venv`` and see nothing of the one that runs this. The packages that the core declares,
and what those declare in turn, are linked into them instead of being downloaded and copied once more.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from importlib import metadata
from pathlib import Path

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


def needed(names: list[str], found: set[str]) -> set[str]:
    """The names of these distributions and of all that they need here."""
    for name in names:
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in found:
            continue
        try:
            requirements = metadata.requires(plain) or []
        except metadata.PackageNotFoundError:
            continue  # of another platform
        found.add(plain)
        wanted = [Requirement(text) for text in requirements]
        here = [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
        needed(here, found)
    return found


def link(names: set[str], place: Path) -> None:
    """Everything that these distributions installed, as links."""
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            target = Path(str(metadata.distribution(name).locate_file(top)))
            if target.exists() and not (place / top).exists():
                (place / top).symlink_to(target)


def main() -> None:
    """Exit with an error if anything of this does not work."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "dist"
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", made], cwd=ROOT, check=True
        )
        [wheel], [sdist] = made.glob("*.whl"), made.glob("*.tar.gz")
        core = needed(["torch", "numpy", "scipy"], set())
        build = needed(["hatchling"], set())
        for source, linked in ((wheel, core), (sdist, core | build)):
            print(f"{source.name}, {source.stat().st_size / 1e6:.1f} MB")
            home = Path(folder) / source.suffix.strip(".")
            venv.create(home, with_pip=True)
            [packages] = home.glob("lib/python*/site-packages")
            link(linked, packages)
            python = str(home / "bin" / "python")
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
            subprocess.run([python, *install, source], check=True)
            subprocess.run([python, "-I", "-W", "error", "-c", USE], cwd=folder, check=True)


if __name__ == "__main__":
    main()
