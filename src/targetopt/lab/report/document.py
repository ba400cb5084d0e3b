"""The whole report as one PDF: the answer in words, the tables, and every figure on a page of its own."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_pdf import FigureCanvasPdf, PdfPages
from matplotlib.figure import Figure

from targetopt.lab.report.multiples import RC, clipped
from targetopt.lab.store.files import write_whole

WIDTH, HEIGHT = 11.69, 8.27
"""A4, lying, in inches."""
LINES = 34
"""Rows of a table on one page."""
MARGIN = 0.7


class Pages:
    """A PDF under way. What is added to it begins a new page."""

    def __init__(self, pages: PdfPages) -> None:
        self._pages = pages

    def add(self, figure: Figure) -> None:
        """A figure as it is, on a page of its size."""
        FigureCanvasPdf(figure).print_pdf(self._pages)

    def text(self, title: str, paragraphs: Sequence[str]) -> None:
        """A title and some paragraphs."""
        with mpl.rc_context(RC):
            figure = Figure(figsize=(WIDTH, HEIGHT))
            self._title(figure, title)
            top = HEIGHT - MARGIN - 0.55
            for paragraph in paragraphs:
                for line in textwrap.wrap(paragraph, 118) or [""]:
                    figure.text(MARGIN / WIDTH, top / HEIGHT, line, fontsize=11, va="top")
                    top -= 0.24
                top -= 0.12
            self.add(figure)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table, on as many pages as it takes; the first column is the widest."""
        for begin in range(0, len(rows), LINES):
            with mpl.rc_context(RC):
                figure = Figure(figsize=(WIDTH, HEIGHT))
                self._title(figure, title if begin == 0 else f"{title} (continued)")
                self._rows(figure, head, rows[begin : begin + LINES])
                self.add(figure)

    @staticmethod
    def _title(figure: Figure, title: str) -> None:
        place = (MARGIN / WIDTH, (HEIGHT - MARGIN) / HEIGHT)
        figure.text(*place, clipped(title, 90), fontsize=15, va="top")

    @staticmethod
    def _rows(figure: Figure, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        first = 2.6
        each = (WIDTH - 2 * MARGIN - first) / max(len(head) - 1, 1)
        letters = max(int(each / 0.075), 6)
        for line, row in enumerate([head, *rows]):
            top = HEIGHT - MARGIN - 0.55 - 0.19 * line
            for column, cell in enumerate(row):
                left = column == 0
                x = MARGIN if left else MARGIN + first + each * column
                figure.text(
                    x / WIDTH,
                    top / HEIGHT,
                    clipped(cell, 40 if left else letters),
                    fontsize=7.5,
                    va="top",
                    ha="left" if left else "right",
                    color="#666666" if line == 0 else "black",
                )


@contextmanager
def written(path: Path) -> Iterator[Pages]:
    """The pages that are added in here, written to ``path`` at the end, whole or not at all."""
    held = io.BytesIO()
    anonymous: dict[str, Any] = dict.fromkeys(("CreationDate", "Producer", "Creator"))
    with PdfPages(held, metadata=anonymous) as pages:
        yield Pages(pages)
    write_whole(path, held.getvalue())
