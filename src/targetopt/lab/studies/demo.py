"""``targetopt demo``: SSO and its rivals with a finite element solver; a picture, a table and three sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from targetopt.lab.report import answer
from targetopt.lab.report.lines import Results
from targetopt.lab.run.job import Event
from targetopt.lab.run.progress import ShownRuns
from targetopt.lab.spec.config import RunConfig
from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.store.directory import Run, Store

BLOCKS = "▁▂▃▄▅▆▇█"


OPENING = (
    "First a neural network draws a beam that is to be stiff. One oracle call is one finite element solve, which "
    "tells the compliance and its gradient, and nothing else: SSO takes many steps of the network for each.",
    "Then a linear model learns from labels, sixteen rows at a time. An answer costs nothing, and each batch says "
    "something else: what SSO gains on one batch is lost on the next, and plain Adam is ahead.",
)
"""What the demo compares, and why it turns out as it does."""


def experiment(seeds: int) -> Experiment:
    """A gradient-only oracle with which SSO wins, and small batches of labels with which it does not."""
    return Experiment(
        name="targetopt demo: where SSO wins, and where it does not",
        problems=[
            {"name": "mbb-beam", "size": "smoke", "epochs": 30},
            {"name": "breast_cancer", "batch_size": 16, "epochs": 2},
        ],
        methods=[
            {"name": "sso-auto", "colour": "#0072b2"},
            {"name": "lbfgs"},
            {"name": "adam", "tune": {"lr": [0.003, 0.01, 0.03, 0.1]}},
        ],
        seeds=seeds,
    )


def soonest(run: RunConfig) -> int:
    """The place of a run. SSO's rivals are quick, and their first seed is drawn: it comes first; SSO comes last."""
    return 2 + run.seed if run.method.name == "sso-auto" else int(run.seed > 0)


class Drawn(ShownRuns):
    """A bar for all runs, and the losses of the first seed as small pictures: oracle calls from left to right."""

    def __init__(self, console: Console, directory: Path) -> None:
        super().__init__(console)
        self._store = Store(directory)
        self._begun = False

    def ended(self, run: RunConfig, event: Event) -> None:
        super().ended(run, event)
        if event.status == "done" and run.seed == 0:
            [done] = self._store.load([run.id])
            if not self._begun:
                self._begun = True
                self._progress.say(
                    "The loss by oracle calls, from left to right, of the first seed:"
                )
            named = f"{run.problem_label}, {run.method_label}"
            self._progress.say(f"  {named:<43} {pictured(done)}")


def pictured(run: Run, width: int = 30) -> str:
    """The loss of a run over its oracle calls, from its first value down one decade, and how it ended."""
    calls = np.asarray(run.columns["oracle_calls"], dtype=float)
    losses = np.asarray(run.columns["loss"], dtype=float)
    places = np.searchsorted(calls, np.linspace(0, calls[-1], width), side="right") - 1
    fallen = np.log10(np.maximum(losses[places.clip(0)], 1e-300) / losses[0])
    heights = np.clip((fallen + 1) * (len(BLOCKS) - 1), 0, len(BLOCKS) - 1)
    line = "".join(BLOCKS[round(float(height))] for height in heights)
    return f"{line}  {losses[-1]:.3g} after {calls[-1]:,.0f} calls"


def table(results: Results) -> Table:
    """Oracle calls and inner steps that each method needed for the loss that half of them reach."""
    metric = results.metrics[0]
    shown = Table(
        title="Oracle calls until the loss that half of the methods reach (inner steps in brackets)",
        caption="Medians over seeds. Adam's step size was chosen on another seed; nothing was chosen for the others.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("method", no_wrap=True)
    for panel in results.panels:
        shown.add_column(results.problems[panel.problem], justify="right")
    needed = [
        {each.method: each for each in answer.spent(panel, metric)} for panel in results.panels
    ]
    for index, method in enumerate(results.methods):
        shown.add_row(method.label, *(_cell(each.get(index)) for each in needed))
    return shown


def _cell(spent: answer.Spent | None) -> str:
    if spent is None or not np.isfinite(spent.calls):
        return "not reached"
    return f"{spent.calls:,.0f} ({spent.inner:,.0f})"


def closing(results: Results) -> Sequence[str]:
    """The three sentences that the demo ends with; the report opens with them."""
    return answer.sentences(results)
