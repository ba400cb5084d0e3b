r"""The tables of a report for papers: ``tables/*.tex``, each a ``tabular`` for the package booktabs.

\usepackage{booktabs}
\input{tables/final-loss.tex}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from targetopt.lab.report.lines import Results
from targetopt.lab.report.plots import slug, words
from targetopt.lab.statistics.pairwise import Comparison
from targetopt.lab.statistics.summary import Final, Standing
from targetopt.lab.store.files import write_whole

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "η": r"$\eta$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "θ": r"$\theta$",
    "√": r"$\surd$",
    "∞": r"$\infty$",
    "−": "$-$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
}


def escaped(text: str) -> str:
    r"""Text as LaTeX shows it, whatever is in it.

    >>> escaped("SSO m=10, 50% & $x_1$")
    'SSO m=10, 50\\% \\& \\$x\\_1\\$'
    """
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def number(value: float, digits: int = 3) -> str:
    r"""A number in mathematics.

    >>> number(0.05234), number(1.5e-7), number(math.inf), number(math.nan), number(12345.0)
    ('$0.0523$', '$1.5\\cdot 10^{-7}$', '$\\infty$', '--', '$12300$')
    """
    if math.isnan(value):
        return "--"
    if math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        shown = f"{value:.{digits}g}"
        return f"${float(shown):.0f}$" if "e" in shown else f"${shown}$"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return rf"${float(mantissa):g}\cdot 10^{{{int(exponent)}}}$"


def write(
    results: Results,
    finals: dict[str, list[dict[int, Final]]],
    standings: Sequence[Standing],
    pairs: Sequence[Comparison],
) -> list[str]:
    """``standings.tex``, ``pairwise.tex`` and a ``final-<metric>.tex`` for each metric; their names.

    Args:
        results: what was run.
        finals: for each metric, the final values of every panel.
        standings: the methods by their mean rank.
        pairs: who beats whom.
    """
    made = {"standings.tex": _standings(results, standings)}
    if pairs:
        made["pairwise.tex"] = _pairwise(results, pairs)
    for metric, per_panel in finals.items():
        made[f"final-{slug(metric)}.tex"] = _finals(results, metric, per_panel)
    for name, text in made.items():
        write_whole(results.directory / "tables" / name, text.encode())
    return list(made)


def tabular(columns: str, head: Sequence[str], rows: Iterable[Sequence[str]], said: str) -> str:
    r"""A ``tabular`` with three rules; ``said`` becomes comments above it.

    >>> print(tabular("lr", ["a", "b"], [["1", "2"]], "two numbers"))
    % two numbers
    \begin{tabular}{lr}
    \toprule
    a & b \\
    \midrule
    1 & 2 \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    body = "\n".join(" & ".join(row) + r" \\" for row in rows)
    comment = "\n".join(f"% {line}" for line in said.splitlines())
    begin, end = f"\\begin{{tabular}}{{{columns}}}", "\\end{tabular}"
    top = " & ".join(head) + r" \\"
    return f"{comment}\n{begin}\n\\toprule\n{top}\n\\midrule\n{body}\n\\bottomrule\n{end}\n"


def _standings(results: Results, standings: Sequence[Standing]) -> str:
    rows = [
        [
            escaped(results.methods[row.method].label),
            number(row.rank),
            f"{row.wins} of {row.panels}",
            str(row.statuses.get("done", 0)),
            str(row.statuses.get("diverged", 0)),
        ]
        for row in standings
    ]
    said = "Methods by their mean rank on the final value of the first metric."
    return tabular("lrrrr", ["method", "mean rank", "best on", "done", "diverged"], rows, said)


def _finals(results: Results, metric: str, per_panel: Sequence[dict[int, Final]]) -> str:
    titles = [
        f"{results.problems[panel.problem]}, {results.batches[panel.batch]}"
        for panel in results.panels
    ]
    used = [place for place, table in enumerate(per_panel) if table]
    rows = []
    for index, method in enumerate(results.methods):
        cells = [_final(per_panel[place], index) for place in used]
        if any(cell != "--" for cell in cells):
            rows.append([escaped(method.label), *cells])
    said = (
        f"Final {words(metric)}: interquartile mean over seeds with its 95 % bootstrap interval.\n"
        "The best of a column is bold; a diverged run counts as the worst possible value."
    )
    head = ["method", *(escaped(titles[place]) for place in used)]
    return tabular("l" + "r" * len(used), head, rows, said)


def _final(table: dict[int, Final], method: int) -> str:
    if method not in table:
        return "--"
    final = table[method]
    best = final.rank == min(each.rank for each in table.values())
    shown = rf"\textbf{{{_bold(number(final.iqm))}}}" if best else number(final.iqm)
    if final.runs < 2:
        return shown
    return rf"{shown} {{\small [{number(final.low)}, {number(final.high)}]}}"


def _bold(shown: str) -> str:
    """A number in mathematics is not bold by itself."""
    return rf"\boldmath{shown}" if shown.startswith("$") else shown


def _pairwise(results: Results, pairs: Sequence[Comparison]) -> str:
    members = list(dict.fromkeys(each.row for each in pairs))
    found = {(each.row, each.column): each for each in pairs}

    def cell(row: int, column: int) -> str:
        each = found.get((row, column))
        if each is None:
            return "--"
        if math.isnan(each.low):
            return f"${each.probability:.2f}$"
        interval = f"[${each.low:.2f}$, ${each.high:.2f}$]"
        return rf"${each.probability:.2f}$ {{\small {interval}}}"

    labels = [escaped(results.methods[index].label) for index in members]
    rows = [
        [label, *(cell(row, column) for column in members)]
        for label, row in zip(labels, members, strict=True)
    ]
    said = "How probably a run of the row ends better than a run of the column, with 95 % bootstrap intervals."
    return tabular("l" + "r" * len(members), ["", *labels], rows, said)
