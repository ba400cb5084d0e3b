"""The site: ``make docs`` builds it with warnings as errors."""

import re
import warnings
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

project = "targetopt"
author = "the targetopt developers"
copyright = "2026, the targetopt developers"
release = version = installed("targetopt")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.md5"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "targetopt"
html_show_search_summary = False  # a page that is opened from the disk may not fetch others
html_theme_options = {"navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say in words what each argument is
autosummary_generate = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("targetopt",),
}
warnings.filterwarnings("ignore", message=".*non-interactive.*")


def setup(app: Any) -> None:
    """Pages and docstrings are written for readers of the source, too; here they become what Sphinx expects."""
    app.connect("source-read", name_files_outside)
    app.connect("source-read", list_every_page)
    app.connect("autodoc-process-docstring", escape)


def name_files_outside(app: Any, name: str, source: list[str]) -> None:
    """A link to a page of the repository that is no page of the site becomes its text and its path."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./([^)#]+\.md)(?:#[^)]*)?\)", r"\1 (`\2`)", source[0])


def list_every_page(app: Any, name: str, source: list[str]) -> None:
    """A page that no section of the index names stands at the end of the guide."""
    if name == "index":
        listed = set(source[0].splitlines())
        new = [page.stem for page in sorted(HERE.glob("*.md")) if page.stem not in {*listed, name}]
        source[0] = source[0].replace("\nglossary\n", "\n".join(["", *new, "glossary", ""]), 1)


def escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Bars are absolute values here, not substitutions; labels of other projects are only text."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("``")  # every other one is code
            lines[place] = "``".join(
                part if index % 2 else plain(part) for index, part in enumerate(parts)
            )


def plain(text: str) -> str:
    text = re.sub(r":ref:`([^`<]+?)\s*<[^`]*>`", r"\1", text)
    return re.sub(r":ref:`([^`]+)`", r"\1", text).replace("|", r"\|")
