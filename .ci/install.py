"""``install.py EXTRA [--compile]``: install the project with an extra into the environment that runs this.

uv does it in a fifth of pip's time. It reads none of pip's settings, so that those are handed on to it: an environment
that has its own index or its own wheels has them here as well. Where uv cannot be had, or cannot do it, pip does it.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# pip's settings that say where packages come from, and uv's words for them
PLACES = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}


def settings(listed: str) -> dict[str, str]:
    """What ``pip config list`` says of installing. Its section wins over the global one, and the environment over both.

    >>> settings("global.find-links='a b'\\ninstall.no-index='true'\\n:env:.find-links='c'")
    {'find-links': 'c', 'no-index': 'true'}
    """
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(section):
                found[name.removeprefix(section)] = ast.literal_eval(value)
    return found


def arguments(said: Mapping[str, str]) -> list[str]:
    """pip's settings as arguments of uv; like pip, it takes the best version of all places.

    >>> arguments({"find-links": "a b", "no-index": "true", "timeout": "5"})
    ['--index-strategy', 'unsafe-best-match', '--find-links', 'a', '--find-links', 'b', '--no-index']
    """
    found = ["--index-strategy", "unsafe-best-match"]
    for name, word in PLACES.items():
        for value in said.get(name, "").split():
            found += [word, value]
    for name, word in (("no-index", "--no-index"), ("no-cache-dir", "--no-cache")):
        if said.get(name, "").lower() in ("1", "true", "yes", "on"):
            found.append(word)
    return found


def by_uv(project: list[str], compiled: bool) -> bool:
    """Whether uv has installed the project."""
    get = [*PIP, "install", "--quiet", "--constraint", "constraints.txt", "uv"]
    for _ in range(2):  # an index may be out of reach for a moment, and pip alone takes minutes
        got = subprocess.run(get, cwd=ROOT, capture_output=True, text=True)
        if got.returncode == 0:
            break
    else:
        print(f"uv cannot be installed: {got.stderr.strip()[-500:]}", flush=True)
        return False
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    said = settings(listed.stdout)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    command += [*arguments(said), *(["--compile-bytecode"] if compiled else []), *project]
    own = {"SSL_CERT_FILE": "cert", "SSL_CLIENT_CERT": "client-cert", "ALL_PROXY": "proxy"}
    known = {name: said[key] for name, key in own.items() if key in said}
    return not subprocess.run(command, cwd=ROOT, env={**known, **os.environ}).returncode


def main() -> None:
    """Exit with pip's code if neither of them can."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extra")
    parser.add_argument("--compile", action="store_true", help="all modules now, not when imported")
    given = parser.parse_args()
    project = ["--constraint", "constraints.txt", "--editable", f".[{given.extra}]"]
    if not by_uv(project, given.compile):
        print("Without uv, pip takes some minutes …", flush=True)
        compiled = "--compile" if given.compile else "--no-compile"
        sys.exit(
            subprocess.run([*PIP, "install", "--quiet", compiled, *project], cwd=ROOT).returncode
        )


if __name__ == "__main__":
    main()
