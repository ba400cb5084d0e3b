"""The site: it builds without a warning, and a reader can open it, follow its links and search it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTIONS = ("Guide", "Examples", "Reference", "Studies", "Theory and errata", "Contributing")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def test_the_index_has_every_section() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert all(f":caption: {section}\n" in index for section in SECTIONS)


def test_every_listed_page_is_there() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    blocks = [block.partition("```")[0] for block in index.split("```{toctree}")[1:]]
    named = [line for block in blocks for line in block.splitlines() if line and line[0] != ":"]
    made = {"gallery/index"}  # by the build
    assert named
    assert [
        name for name in named if name not in made and not (ROOT / "docs" / f"{name}.md").is_file()
    ] == []


PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "changelog"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_says_at_its_top_what_you_will_be_able_to_do(page: Path) -> None:
    text = page.read_text("utf-8")
    if text.startswith("```{include}"):
        text = (ROOT / text.split()[1].removeprefix("../")).read_text("utf-8")
    opening = " ".join(text.split("\n## ")[0].split()[:110])
    assert re.search(r"you will (be able to|know)", opening), opening


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_site_builds_and_opens(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery")
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no `chromium` on PATH: install it (Debian: apt-get install chromium)")
    copy = tmp_path / "copy"  # the build writes beside its sources
    for folder in ("docs", "examples"):
        leave = shutil.ignore_patterns("_build", "reference", "__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=leave)
    for page in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / page, copy)
    (copy / "benchmarks").symlink_to(ROOT / "benchmarks")  # pages link to its results
    site = tmp_path / "site"
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(
        [*words, str(copy / "docs"), str(site)], capture_output=True, text=True, env=environment
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(300_000)  # against hanging alone
        wrong: list[str] = []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((site / "index.html").as_uri())
        captions = page.locator(".sidebar-tree .caption-text").all_inner_texts()
        assert [caption.lower() for caption in captions] == [name.lower() for name in SECTIONS]
        links = page.locator("article a[href], .sidebar-tree a[href]").evaluate_all(
            "all => all.map(a => a.href).filter(href => href.startsWith('file:'))"
        )
        assert len(links) > 20
        for link in {link.partition("#")[0] for link in links}:
            page.goto(link)
            assert page.locator("h1").first.inner_text(), link
        page.goto((site / "search.html").as_uri() + "?q=TrustRegion")
        page.locator("#search-results li a").first.wait_for()
        assert wrong == []
        browser.close()
