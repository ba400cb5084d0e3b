"""The six findings that the results open with: sentences whose numbers are those of verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from targetopt.lab.report.page import number
from targetopt.lab.statistics.verdicts import Verdict

Judged = Mapping[str, Sequence[Verdict]]


@dataclass(frozen=True)
class Number:
    """A number of a verdict: the figure, how its claim begins, and the number's name there."""

    figure: str
    claim: str
    name: str = "share"
    percent: bool = True

    def of(self, judged: Judged) -> str | None:
        """As it stands in a sentence; None if it was not judged."""
        for verdict in judged.get(self.figure, ()):
            if verdict.claim.startswith(self.claim):
                value = verdict.numbers.get(self.name)
                if isinstance(value, str):
                    return value
                if value is not None:
                    return f"{100 * value:.0f} %" if self.percent else number(value)
        return None


def _ratio(figure: str, claim: str) -> Number:
    return Number(figure, claim, "median ratio of losses", percent=False)


_LOGISTIC, _SQUARED = "figA-sgd-constant-logistic", "figA-sgd-constant-squared"
_QUIET, _LOUD = "share at batch 625 and full", "share at the others"
_MORE = "§4.1.2: more inner steps help more often"
_DEAR = "beyond the paper: where an oracle call costs 1000 inner steps, SSO (m = 20) reaches "
FINDINGS: tuple[tuple[str, tuple[Number, ...]], ...] = (
    (
        "With the steps that theory gives, SSO ends below SGD in {} of the runs with the logistic loss "
        f"([median ratio of losses {{}}]({_LOGISTIC}/README.md)) and in {{}} with the squared loss "
        f"([{{}}]({_SQUARED}/README.md)).",
        (
            Number(_LOGISTIC, "SSO improves over SGD"),
            _ratio(_LOGISTIC, "SSO improves over SGD"),
            Number(_SQUARED, "SSO improves over SGD"),
            _ratio(_SQUARED, "SSO improves over SGD"),
        ),
    ),
    (
        "More inner steps help where batches are large, as the paper's §4.1.2 predicts: the next larger m ends lower "
        f"in [{{}} of the pairs at batch 625 and full, and in {{}} at the others]({_LOGISTIC}/README.md) (logistic "
        "loss).",
        (Number(_LOGISTIC, _MORE, _QUIET), Number(_LOGISTIC, _MORE, _LOUD)),
    ),
    (
        "SSO-SLS ends below SLS in [{} of the runs on RCV1](fig2-rcv1/README.md), where the paper's caption says "
        "always; SLS has no cap on its step in effect here, and a cap turns this round.",
        (Number("fig2-rcv1", "the SSO variant of SLS outperforms it"),),
    ),
    (
        "Re-scaling by p(1−p), SSO-Newton, improves SSO in [{} of the runs, with a median ratio of losses of {}]"
        "(figA-newton-logistic/README.md), with curvatures floored at 0.03; the floor decides where it converges and "
        "where it explodes.",
        (
            Number("figA-newton-logistic", "re-scaling the regularisation by p(1−p) improves SSO"),
            _ratio("figA-newton-logistic", "re-scaling the regularisation by p(1−p) improves SSO"),
        ),
    ),
    (
        "In imitation SSO with m = 1000 has a lower policy loss than every rival that takes one step a round "
        "[with every seed in {}](fig1-oil/README.md); against Adam that may take m steps, too, on the states that are "
        "paid for, SSO wins in {} of the runs (m = 10, 100).",
        (
            Number(
                "fig1-oil",
                "in all panels SSO with the largest m (1000) outperforms all of them",
                "true with every seed in",
            ),
            Number("fig1-oil", "beyond the paper: SSO-m outperforms Adam taking m steps"),
        ),
    ),
    (
        "Where an oracle call costs 1000 inner steps, SSO (m = 20) reaches SGD's final loss for less in "
        f"[{{}} of the runs]({_LOGISTIC}/README.md) and those of SLS and Adam in {{}} (logistic loss, steps as in the "
        "paper).",
        (Number(_LOGISTIC, f"{_DEAR}SGD's"), Number(_LOGISTIC, f"{_DEAR}the final loss of SLS")),
    ),
)
"""Sentences with gaps, and the numbers that go there."""


def findings(judged: Judged) -> list[str]:
    """The sentences whose numbers are all known."""
    found = []
    for sentence, numbers in FINDINGS:
        values = [each.of(judged) for each in numbers]
        if all(value is not None for value in values):
            found.append(sentence.format(*values))
    return found
