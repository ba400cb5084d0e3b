"""What the paper says of its imitation figures, and what it does not ask, as predicates.

Texts follow the captions of Fig. 1, Fig. 3 and App. E.6 and the paragraphs of §5; those that begin with "beyond
the paper" are ours. ``docs/imitation-study.md`` says how the words are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from targetopt.lab.report.lines import readings
from targetopt.lab.store.directory import Run
from targetopt.lab.studies.paper.evidence import (
    ADAGRAD,
    ADAM,
    EVERYWHERE,
    INNER,
    SGD,
    SLS,
    SSO,
    TUNED,
    Array,
    Case,
    Evidence,
    Methods,
    NotJudged,
    Where,
)
from targetopt.lab.studies.paper.judging import ALWAYS, BEYOND, Claim, Judged
from targetopt.lab.studies.paper.predicates import (
    Alone,
    Compared,
    Contest,
    contest,
    more_steps,
)
from targetopt.lab.studies.paper.runtimes import RUNTIME_CLAIMS, On
from targetopt.lab.studies.paper.scoring import VISIBLE, Pair, Scores

CONTROL = "Plain steps on the same states"
"""The further panel with optimisers that take m steps on each round's loss."""

DRASTIC = 2.0
"""\"Drastically\" is a factor of two in the loss: what a reader of a log plot sees without a ruler."""
SHARE = 0.01
"""Returns nearer than one per cent of the expert's tie."""
LATE = 0.2
"""The share of the rounds, at the end, over which losses on fresh states are averaged."""


@dataclass(frozen=True)
class Quantity:
    """What of a run is compared: a number, and the words for it.

    Attributes:
        words: what it is.
        column: the metric that it is made of.
        share: the share of the rounds, at the end, over which the geometric mean is taken; the last reading if None.
        higher: whether more of it is better; then it is compared by differences, else by ratios.
    """

    words: str
    column: str
    share: float | None = None
    higher: bool = False

    def of(self, run: Run) -> float:
        """Its value for a run; the worst there is for one that diverged."""
        if run.manifest["status"] == "diverged":
            return -np.inf if self.higher else np.inf
        if self.share is None:
            return float(readings(run, self.column)[-1])
        first, end = run.columns["step"][0], run.columns["step"][-1]
        # The first record is before any update, the same for all. Rounds are numbered, since not all are published.
        before = min(first + round((1.0 - self.share) * (end - first)), end - 1)
        late = run.columns["step"] > before
        kept = run.columns[self.column][late]
        if len(kept) < end - before:
            raise NotJudged(f"it needs all of the last {end - before} rounds; {len(kept)} are here")
        return float(np.exp(np.log(np.maximum(kept, np.finfo(float).tiny)).mean()))

    def best(self, cases: list[Case]) -> Array:
        """The best of some rivals, seed by seed."""
        values = [case.measure(self.of) for case in cases]
        return np.asarray(np.max(values, axis=0) if self.higher else np.min(values, axis=0))


def _best_share(run: Run) -> float:
    return float(readings(run, "return_share").max())


FRESH = Quantity(
    f"policy loss on fresh states, geometric mean of the last {LATE:.0%} of the rounds",
    "loss",
    LATE,
)
ALONG = Quantity("policy loss on fresh states, geometric mean of all rounds", "loss", 1.0)
HELD_OUT = Quantity(
    f"policy loss on the held-out states, geometric mean of the last {LATE:.0%} of the rounds",
    "held_out_loss",
    LATE,
)
RETURN = Quantity("return of the mean action after the last round", "return_share", higher=True)


@dataclass(frozen=True)
class Better(Compared):
    """A quantity is better than that of every rival, by more than a tie."""

    contests: tuple[Contest, ...]
    quantity: Quantity = FRESH
    factor: float = VISIBLE
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        pairs = [pair for each in self.contests for pair in each.pairs(evidence, self.where)]
        return _compared(pairs, self.quantity, self.factor)

    def describe(self) -> str:
        return f"{self.quantity.words}, {_margin(self.quantity, self.factor)}"


@dataclass(frozen=True)
class MoreSteps(Alone):
    """From each m to the next larger one a quantity gets better."""

    methods: Methods
    quantity: Quantity = FRESH
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        pairs = more_steps(self.methods, evidence, self.where)
        return _compared(pairs, self.quantity, VISIBLE)

    def describe(self) -> str:
        return f"{self.quantity.words}, {_margin(self.quantity, VISIBLE)} at the next larger m"


@dataclass(frozen=True)
class Instead(Alone):
    """A quantity is better than with the same methods on the same problem with other options ``instead``."""

    methods: Methods
    where: On
    instead: Mapping[str, str]
    quantity: Quantity = FRESH

    def scores(self, evidence: Evidence) -> Scores:
        others = evidence.cases(self.methods, On(options=self.instead))
        pairs = [
            (case, [other])
            for case in evidence.cases(self.methods, self.where)
            for other in others
            if self._panel(case) == self._panel(other)
            and case.method.get("m") == other.method.get("m")
        ]
        if not pairs:
            raise NotJudged("what it compares was not run on the same problems")
        return _compared(pairs, self.quantity, VISIBLE)

    def _panel(self, case: Case) -> str:
        """The panel, but for the options that differ."""
        problem, *rest = json.loads(case.panel)
        return json.dumps([{**problem, **self.instead}, *rest], sort_keys=True)

    def describe(self) -> str:
        other = ", ".join(f"{key} = {value}" for key, value in self.instead.items())
        return f"{self.quantity.words}, {_margin(self.quantity, VISIBLE)} than with {other}"


@dataclass(frozen=True)
class Attains(Alone):
    """The return comes to a share of the expert's in some evaluation."""

    methods: Methods
    share: float
    where: Where = EVERYWHERE

    def scores(self, evidence: Evidence) -> Scores:
        cases = evidence.cases(self.methods, self.where)
        best = [case.measure(_best_share) for case in cases]
        return Scores(
            np.stack([np.asarray(b >= self.share, dtype=float) for b in best], axis=1),
            [f"{c.label}: {b.min():.0%} of the expert's" for c, b in zip(cases, best, strict=True)],
            [case.batch_size for case in cases],
            problems=[case.problem_label for case in cases],
        )

    def describe(self) -> str:
        return f"return of at least {self.share:.0%} of the expert's in some evaluation"


def _margin(quantity: Quantity, factor: float) -> str:
    if quantity.higher:
        return f"higher by more than {SHARE:.0%} of the expert's (within it: half)"
    if factor > VISIBLE:
        return f"lower by a factor of {factor:g} or more"
    return "lower by more than 1 % (within 1 %: half)"


def _compared(pairs: Sequence[Pair], quantity: Quantity, factor: float) -> Scores:
    """1 where ours is better by the margin, 0 where it is not; ½ for ties where a tie is all it is."""
    columns, ratios = [], []
    for case, others in pairs:
        ours, theirs = case.measure(quantity.of), quantity.best(others)
        if quantity.higher:
            won, lost = ours > theirs + SHARE, theirs > ours + SHARE
        else:
            won = ours * factor < theirs
            lost = theirs * VISIBLE < ours if factor == VISIBLE else ~won
            ratios.append([1.0 if a == b else a / b for a, b in zip(ours, theirs, strict=True)])
        columns.append(0.5 + 0.5 * won - 0.5 * lost)
    cases = [case for case, _ in pairs]
    return Scores(
        np.stack(columns, axis=1),
        [case.label for case in cases],
        [case.batch_size for case in cases],
        np.array(ratios).T if ratios else None,
        problems=[case.problem_label for case in cases],
    )


@dataclass(frozen=True)
class WithStep(Methods):
    """Methods with this step size."""

    lr: float = 1.0

    def match(self, run: Run) -> bool:
        return super().match(run) and run.manifest["method"]["lr"] == self.lr


STANDARD = (SGD, SLS, ADAM, ADAGRAD)
TUNED_STANDARD = tuple(replace(method, panel=TUNED) for method in (SGD, ADAM, ADAGRAD))
ADAM_STEPS = Methods("adam-m", panel=CONTROL)
SGD_STEPS = Methods("sgd-m", panel=CONTROL)
ARMIJO_STEPS = WithStep("sso", panel=CONTROL, lr=1.0)
KL_STEPS = Methods("sso", "mirror-descent", inner="adam")
GRADIENT_STEPS = Methods("sso", "gradient-step", inner="adam")
ARMIJO_INSIDE = Methods("sso", "gradient-step", inner="armijo", m=100)
LINEAR, MLP = On(options={"policy": "linear"}), On(options={"policy": "mlp"})
HUNDRED, THOUSAND = replace(SSO, m=100), replace(SSO, m=1000)


def _paper(quantity: Quantity, what: str) -> Iterator[Claim]:
    """What all captions say."""
    yield Claim(
        f"in all panels SSO outperforms all other online-optimisation algorithms in terms of {what}, for every m",
        Better(contest(SSO, *STANDARD), quantity),
        asks=ALWAYS,
    )
    yield Claim(
        f"in all panels SSO with the largest m (1000) outperforms all of them in terms of {what}",
        Better(contest(THOUSAND, *STANDARD), quantity),
        asks=ALWAYS,
    )
    yield Claim(
        f"as m increases, so does the performance of SSO in terms of {what}",
        MoreSteps(SSO, quantity),
    )


def _control() -> Iterator[Claim]:
    """What is left of the advantage when the others may use their states as often as SSO does."""
    for name, rivals in (
        ("Adam", ADAM_STEPS),
        ("tuned SGD", SGD_STEPS),
        ("gradient descent with Armijo's rule", ARMIJO_STEPS),
    ):
        yield Claim(
            f"{BEYOND}SSO-m outperforms {name} taking m steps on the loss of the same states (m = 10, 100)",
            Better(tuple(Contest(replace(SSO, m=m), (replace(rivals, m=m),)) for m in (10, 100))),
        )
    yield Claim(
        f"{BEYOND}SSO with L-BFGS inside (m = 10, 100) outperforms Adam taking m steps on the loss of the same states",
        Better(contest(Methods("sso", panel=INNER, inner="lbfgs"), ADAM_STEPS)),
    )
    yield Claim(
        f"{BEYOND}m steps of Adam do better on the surrogate (η = ½) than on the loss itself (η = 1)",
        Better(contest(Methods("sso", panel=INNER, inner="adam"), ADAM_STEPS)),
    )


def _tuned() -> Iterator[Claim]:
    for m in (100, 1000):
        yield Claim(
            f"{BEYOND}SSO-{m}, its step not tuned, outperforms tuned SGD, Adam and Adagrad",
            Better(contest(replace(SSO, m=m), *TUNED_STANDARD)),
        )


Claims = Sequence[Judged]
_FIRST: Claims = [
    *_paper(FRESH, "the policy loss"),
    Claim(
        "SSO (m = 100, 1000) drastically outperforms standard algorithms in log-loss as a function of interactions",
        Better((*contest(HUNDRED, *STANDARD), *contest(THOUSAND, *STANDARD)), ALONG, DRASTIC),
    ),
    Claim(
        "with the linear parameterisation performance improves consistently as m increases",
        MoreSteps(SSO, where=LINEAR),
    ),
    Claim(
        "with the neural network performance improves consistently as m increases",
        MoreSteps(SSO, where=MLP),
    ),
    Claim(
        f"{BEYOND}on held-out states of the expert, too, SSO-1000 outperforms all of them",
        Better(contest(THOUSAND, *STANDARD), HELD_OUT),
    ),
    Claim(
        f"{BEYOND}on held-out states of the expert, too, SSO improves as m increases",
        MoreSteps(SSO, HELD_OUT),
    ),
    *_tuned(),
    *_control(),
]

CLAIMS: dict[str, Claims] = {
    "fig1-oil": _FIRST,
    "fig1-oil-ppo": _FIRST,
    "fig3-runtime": RUNTIME_CLAIMS,
    "figA-oil-mlp": [
        *_paper(FRESH, "the policy loss"),
        *_paper(RETURN, "the return"),
        Claim(
            f"{BEYOND}online on Hopper, SSO with Adam inside (m = 100) attains 90 % of the expert's return",
            Attains(
                Methods("sso", panel=INNER, inner="adam", m=100),
                0.9,
                On(options={"environment": "Hopper-v5", "behaviour": "online"}),
            ),
        ),
    ],
    "oil-quiet": [
        *(
            Claim(
                f"{BEYOND}online with noise 0.3, {name} attains 90 % of the expert's return on {env}",
                Attains(methods, 0.9, On(options={"environment": env})),
            )
            for env in ("Hopper-v5", "Walker2d-v5")
            for name, methods in (
                ("SSO with Adam inside (m = 100)", Methods("sso", panel=INNER, inner="adam")),
                ("Adam taking 100 steps on each round", ADAM_STEPS),
            )
        ),
        Claim(
            f"{BEYOND}online with noise 0.3, SSO (m = 100) earns more than SGD and Adam",
            Better(contest(HUNDRED, SGD, ADAM), RETURN),
        ),
    ],
    "oil-control": [
        Claim(
            f"{BEYOND}in states of a common behaviour, m steps of Adam do better on the surrogate (η = ½) than on the "
            "loss itself, both tuned (m = 100)",
            Better(contest(GRADIENT_STEPS, Methods("adam-m")), HELD_OUT),
        ),
        Claim(
            f"{BEYOND}in states of a common behaviour SSO (m = 100, as the paper runs it) outperforms tuned Adam that "
            "takes one step a round",
            Better(contest(ARMIJO_INSIDE, ADAM), HELD_OUT),
        ),
        Claim(
            f"{BEYOND}in states of a common behaviour SSO (m = 100, as the paper runs it) outperforms tuned Adam with "
            "100 steps on the loss of the same states each round",
            Better(contest(ARMIJO_INSIDE, Methods("adam-m")), HELD_OUT),
        ),
        *(
            Claim(
                f"{BEYOND}learning from as many of all states so far is better than forgetting them, {what}, for {who}",
                Instead(methods, On(options={"data": "all"}), {"data": "round"}, quantity),
            )
            for what, quantity in (
                ("by the loss in states of a common behaviour", HELD_OUT),
                ("by the last return", RETURN),
            )
            for who, methods in (
                ("tuned Adam, 100 steps", Methods("adam-m")),
                ("SSO with tuned Adam inside, 100 steps", GRADIENT_STEPS),
            )
        ),
    ],
    "oil-mirror": [
        Claim(
            f"{BEYOND}where actions are choices, mirror descent by KL outperforms gradient steps on logits, both tuned",
            Better(contest(KL_STEPS, GRADIENT_STEPS)),
        ),
        Claim(
            f"{BEYOND}on held-out states of the expert, too, mirror descent by KL outperforms gradient steps",
            Better(contest(KL_STEPS, GRADIENT_STEPS), HELD_OUT),
        ),
        Claim(
            f"{BEYOND}mirror descent by KL outperforms Adam taking m steps on the loss of the same states, both tuned",
            Better(contest(KL_STEPS, Methods("adam-m"))),
        ),
        Claim(
            f"{BEYOND}100 inner steps improve mirror descent by KL over 10, each tuned",
            MoreSteps(KL_STEPS),
        ),
        Claim(
            f"{BEYOND}mirror descent by KL (m = 100) attains 95 % of the expert's return",
            Attains(replace(KL_STEPS, m=100), 0.95),
        ),
    ],
    "figA-oil-linear": [*_paper(FRESH, "the policy loss"), *_paper(RETURN, "the return")],
    "figA-oil-long": [
        *_paper(FRESH, "the policy loss, even after a very large number of rounds"),
        *_tuned(),
    ],
}
"""Figure → its claims."""
