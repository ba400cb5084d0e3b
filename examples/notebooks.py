"""The first five examples of the gallery as notebooks, executed: ``make notebooks`` writes them to ``notebooks/``.

Each is written once, as ``examples/gallery/plot_N_name.py``: text stands in the docstring and in comments after
``# %%``, and everything else is code. The tests hold the notebooks to these files.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GALLERY, NOTEBOOKS = ROOT / "examples" / "gallery", ROOT / "notebooks"
NUMBERED = range(1, 6)


def sources() -> dict[str, Path]:
    """The name of every notebook, and the example that it is made of.

    >>> list(sources())[0]
    '1-first-oracle.ipynb'
    """
    found = [path for n in NUMBERED for path in GALLERY.glob(f"plot_{n}_*.py")]
    return {
        f"{path.stem.removeprefix('plot_').replace('_', '-')}.ipynb": path for path in sorted(found)
    }


def cells(source: str) -> list[tuple[str, str]]:
    """The cells of an example: ``("markdown" or "code", text)``.

    >>> cells('\"\"\"Title\\n=====\\n\\nSome ``code``.\"\"\"\\n\\nx = 1\\n\\n# %%\\n# More\\n# ----\\n\\ny = 2\\n')
    [('markdown', '# Title\\n\\nSome `code`.'), ('code', 'x = 1'), ('markdown', '## More'), ('code', 'y = 2')]
    """
    opening = ast.parse(source).body[0]
    text = ast.get_docstring(ast.parse(source)) or ""
    rest = "\n".join(source.splitlines()[opening.end_lineno :])
    found = [("markdown", markdown(text))]
    for place, part in enumerate(re.split(r"^# %%\n", rest, flags=re.MULTILINE)):
        comment, code = "", part
        if place:
            said = re.match(r"(#[^\n]*\n)*", part)
            assert said is not None
            comment, code = said[0], part[said.end() :]
        plain = "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment.splitlines())
        for kind, content in (("markdown", markdown(plain)), ("code", code.strip("\n"))):
            if content.strip():
                found.append((kind, content))
    return found


def markdown(text: str) -> str:
    """Titles and code of reStructuredText as Markdown writes them."""
    text = re.sub(r"^(.+)\n=+$", r"# \1", text.strip(), flags=re.MULTILINE)
    text = re.sub(r"^(.+)\n-+$", r"## \1", text, flags=re.MULTILINE)
    return text.replace("``", "`")


def main(*only: str) -> None:
    """Write and execute all of them, or those whose numbers are given; the plots are kept."""
    import nbformat
    from nbclient import NotebookClient

    NOTEBOOKS.mkdir(exist_ok=True)
    for name, path in sources().items():
        if only and name[0] not in only:
            continue
        made = [
            nbformat.v4.new_markdown_cell(text, id=f"cell-{place}")
            if kind == "markdown"
            else nbformat.v4.new_code_cell(text, id=f"cell-{place}")
            for place, (kind, text) in enumerate(cells(path.read_text("utf-8")))
        ]
        notebook = nbformat.v4.new_notebook(cells=made)
        options = {"timeout": 1800, "startup_timeout": 600, "kernel_name": "python3"}
        NotebookClient(notebook, **options).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran, which changes from day to day
        nbformat.write(notebook, NOTEBOOKS / name)
        print(f"{name}: {len(made)} cells", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
