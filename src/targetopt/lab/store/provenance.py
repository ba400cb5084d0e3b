"""What a run was done with: versions, commit, machine. Asked once per process."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "numba", "pyarrow", "ray")


@cache
def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what its numbers depend on."""
    from targetopt._version import __version__

    found = {"python": platform.python_version(), "targetopt": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str | None:
    """The commit of the source tree this package runs from, ``+changes`` if files differ from it.

    None when the package was installed from a wheel, or git is not there to ask.
    """
    source = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(source), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", str(source.parent))
    return f"{head}+changes" if head and changed else head


@cache
def machine() -> dict[str, str | int | float]:
    """System, processor, cores and memory; nothing that names the owner."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
