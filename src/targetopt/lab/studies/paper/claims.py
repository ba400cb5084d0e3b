"""What the paper says of each supervised figure, as predicates; one table, one line of thought a claim.

Texts follow the captions and §5 / App. E; those that begin with "beyond the paper" are ours. How a share
is judged is in :func:`targetopt.lab.studies.paper.judging.judge`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from pathlib import Path

from targetopt.lab.spec.panels import MAIN
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.studies.imitation import claims as oil_claims
from targetopt.lab.studies.paper import other_rules
from targetopt.lab.studies.paper.evidence import (
    ADAGRAD,
    ADAGRAD_NORM,
    ADAM,
    INNER,
    OTHER_FLOORS,
    SGD,
    SLS,
    SSO,
    SSO_ADAGRAD,
    SSO_NEWTON,
    SSO_SLS,
    SVRG,
    TUNED,
    Evidence,
    Methods,
    Reader,
    Where,
)
from targetopt.lab.studies.paper.judging import (
    ALWAYS,
    BEYOND,
    MOSTLY,
    SOME,
    Claim,
    Judged,
    verdict_on,
)
from targetopt.lab.studies.paper.predicates import (
    SIGNIFICANT,
    Beats,
    Cheaper,
    Gains,
    MoreStepsHelp,
    NoDearer,
    OnPar,
    Reaches,
    ReachesOnSeveral,
    RisesLess,
    contest,
    counterparts,
)
from targetopt.lab.studies.paper.scoring import VISIBLE

STOPPED = 1e-6
"""The gradient norm at which the authors' code ends a run; the paper names no number."""
MINI_BATCHES = Where(batch_sizes=(25, 125, 625))


def _outperforms(sso: Methods, name: str, counterpart: Methods, rival: str) -> list[Claim]:
    """What the captions of App. E.1 (constant), E.2 and E.3 say alike."""
    return [
        Claim(
            f"{name} outperforms its parametric counterpart, {rival}",
            Beats(contest(sso, counterpart)),
        ),
        *_generally(sso, name),
    ]


def _generally(sso: Methods, name: str) -> list[Claim]:
    """What the captions of those figures say of SLS and Adam, and of inner steps."""
    return [
        Claim(f"{name} is on par with both SLS and Adam", OnPar(contest(sso, SLS, ADAM))),
        Claim(
            f"more steps in the surrogate generally improve {name}", MoreStepsHelp(sso), asks=MOSTLY
        ),
    ]


SLS_OR_ADAM = Claim(
    "SSO is competitive with SLS or Adam", OnPar(contest(SSO, SLS, ADAM), either=True)
)
"""The sentence of App. E.1, which is about all of its figures; captions say "on par with both"."""


def _constant() -> list[Claim]:
    """What App. E.1 says of constant steps, and what §4.1.2 predicts of inner steps and noise."""
    return [
        Claim(
            "SSO significantly outperforms its parametric counterpart, SGD",
            Beats(contest(SSO, SGD), factor=SIGNIFICANT),
        ),
        Claim(
            "SSO improves over SGD when the step sizes are set theoretically",
            Beats(contest(SSO, SGD)),
        ),
        *_generally(SSO, "SSO"),
        SLS_OR_ADAM,
        Claim(
            "§4.1.2: where the noise dominates (ijcnn1, which cannot be fitted, batches of 25 and 125), a large m (100 "
            "against 1) might not result in substantial improvements",
            Gains(_LARGE_M, SIGNIFICANT, less=True, where=Where((25, 125), "ijcnn1")),
        ),
        Claim(
            "§4.1.2: with a large batch (625, full) a large m (100 against 1) can result in superior performance",
            Beats(_LARGE_M, Where((625, "full"))),
            asks=MOSTLY,
        ),
        Claim(
            "§4.1.2: with an over-parameterised model (RCV1, more features than documents) a large m (100 against 1) "
            "can result in superior performance",
            Beats(_LARGE_M, Where(problem="rcv1")),
            asks=MOSTLY,
        ),
        Claim(
            "§4.1.2: more inner steps help more often where there is less noise (batch 625 and full)",
            MoreStepsHelp(SSO),
            quieter=(625, "full"),
        ),
    ]


_LARGE_M = contest(Methods("sso", "gradient-step", m=100), Methods("sso", "gradient-step", m=1))


def _newton(floor: float | None, named: str) -> list[Claim]:
    """What App. E.4 says, for one choice of the smallest curvature, of which the paper does not speak."""
    newton = replace(SSO_NEWTON, floor=floor, panel=MAIN if floor is None else OTHER_FLOORS)
    plain = SSO.of("figA-sgd-constant-logistic")
    return [
        Claim(
            f"significant improvement over SSO by re-scaling the regularisation by p(1−p) ({named})",
            Beats(contest(newton, plain), factor=SIGNIFICANT),
        ),
        Claim(
            f"re-scaling the regularisation by p(1−p) improves SSO ({named})",
            Beats(contest(newton, plain)),
        ),
        Claim(
            f"re-scaling the regularisation by p(1−p) comes at no additional cost ({named})",
            NoDearer(contest(newton, plain)),
        ),
        Claim(
            f"SSO-Newton with m = 20 meets the stopping criterion on mushrooms in all cases ({named})",
            Reaches(replace(newton, m=20), STOPPED, Where(problem="mushrooms")),
            asks=ALWAYS,
        ),
        Claim(
            "SSO-Newton converges, so that its line ends early, for multiple data sets and batch sizes "
            f"({named})",
            ReachesOnSeveral(newton, STOPPED),
        ),
        Claim(
            f"SSO-Newton outperforms both SLS and Adam even in many stochastic settings ({named})",
            Beats(contest(newton, SLS, ADAM), MINI_BATCHES),
            asks=MOSTLY,
        ),
        Claim(
            "re-scaling often leads to extremely good performance, even in the stochastic setting: at most "
            f"twice the lowest loss of SGD, SLS, Adam and Adagrad ({named})",
            OnPar(contest(newton, SGD, SLS, ADAM, ADAGRAD), where=MINI_BATCHES),
            asks=MOSTLY,
        ),
    ]


OUR_FLOOR = "floor 0.03, ours"
FLOORS = {1e-5: "floor 1e-5, the authors' code", 1e-300: "no floor, the paper's text"}
"""The smallest curvature that SSO-Newton believes. 1e-300 changes no number that a double has."""


def _scheduled(loss: str, schedule: str) -> Iterator[Claim]:
    """What the captions of App. E.1 say of both decreasing schedules."""
    yield Claim(
        "more steps in the surrogate generally improve SSO", MoreStepsHelp(SSO), asks=MOSTLY
    )
    constant = f"figA-sgd-constant-{loss}"
    yield Claim(
        "the decreasing step size helps SSO to improve monotonically, compared with the constant one",
        RisesLess(counterparts(constant, SSO)),
        asks=MOSTLY,
    )
    yield Claim(
        "SSO improves over SGD when the step sizes are set theoretically", Beats(contest(SSO, SGD))
    )
    yield SLS_OR_ADAM
    if schedule == "exponential":
        decreasing = f"figA-sgd-decreasing-{loss}"
        yield Claim(
            "the algorithms make more progress than with 1/√t, whose steps decay more aggressively",
            Beats(counterparts(decreasing, SGD, SLS, SSO)),
        )


def _tuned_sso(sso: Methods, name: str) -> tuple[Methods, str]:
    """SSO as the tuned panel has it, and its name there."""
    rule_has_no_step = sso.rule == "line-search"
    shown = f"{name} (m = 20)" if rule_has_no_step else f"{name} (m = 20), tuned,"
    return replace(sso, m=20, panel=TUNED), shown


def _tuned(sso: Methods, name: str, counterpart: Methods, rival: str) -> list[Claim]:
    """What becomes of the comparison when all have their step chosen from five values."""
    ours, shown = _tuned_sso(sso, name)
    sls, adam, parametric = (replace(m, panel=TUNED) for m in (SLS, ADAM, counterpart))
    return [
        Claim(f"{BEYOND}{shown} outperforms tuned {rival}", Beats(contest(ours, parametric))),
        Claim(
            f"{BEYOND}{shown} is on par with tuned SLS and tuned Adam",
            OnPar(contest(ours, sls, adam)),
        ),
    ]


def _solved(sso: Methods, name: str) -> list[Claim]:
    """How much the choice of the inner solver matters."""
    hundred = replace(sso, m=100)
    return [
        Claim(
            f"{BEYOND}20 steps of L-BFGS do as well as 100 of Armijo for {name}",
            OnPar(contest(replace(sso, panel=INNER, inner="lbfgs"), hundred), factor=VISIBLE),
        ),
        Claim(
            f"{BEYOND}{name} with its surrogate solved exactly (m = ∞) improves on m = 100",
            Beats(contest(replace(sso, panel=INNER, inner="exact"), hundred)),
            asks=MOSTLY,
        ),
    ]


def _priced(sso: Methods, name: str, counterpart: Methods, rival: str) -> list[Claim]:
    """Where it pays: how dear the oracle has to be.

    A counterpart with a cautious theoretical step is the easiest to undercut, so the tuned one and what
    needs no such step are asked for, too.
    """
    ours, shown = replace(sso, m=20), f"{name} (m = 20)"
    tuned, tuned_shown = _tuned_sso(sso, name)
    others = {"SLS": SLS, "Adam": ADAM}
    others.pop(rival, None)  # the counterpart has its own claim
    return [
        *_cheaper(ours, shown, {rival: counterpart}),
        *_cheaper(tuned, tuned_shown, {f"tuned {rival}": replace(counterpart, panel=TUNED)}),
        *_cheaper(ours, shown, others),
    ]


def _cheaper(ours: Methods, name: str, rivals: Mapping[str, Methods]) -> Iterator[Claim]:
    """One claim for each price of an oracle call."""
    if len(rivals) == 1:
        (rival,) = rivals
        comparison = f"reaches {rival}'s final loss at lower cost than {rival}"
    else:
        names = " and of ".join(rivals)
        comparison = f"reaches the final loss of {names}, each at lower cost than the rival"
    for tau in (1.0, 10.0, 100.0, 1000.0):
        yield Claim(
            f"{BEYOND}where an oracle call costs {tau:g} inner {'step' if tau == 1 else 'steps'}, "
            f"{name} {comparison}",
            Cheaper(contest(ours, *rivals.values()), tau),
        )


def _further(sso: Methods, name: str, counterpart: Methods, rival: str) -> list[Claim]:
    """What the further panels say of a method beside its parametric counterpart."""
    return [
        *_tuned(sso, name, counterpart, rival),
        *_solved(sso, name),
        *_priced(sso, name, counterpart, rival),
    ]


CLAIMS: dict[str, list[Claim]] = {
    "fig2-rcv1": [
        Claim(
            "SGD with its theoretical step size is outperformed by SLS", Beats(contest(SLS, SGD))
        ),
        Claim(
            "SGD with its theoretical step size is outperformed by Adam", Beats(contest(ADAM, SGD))
        ),
        Claim(
            "SSO with the theoretical step size is competitive with both SLS and Adam",
            OnPar(contest(SSO, SLS, ADAM)),
        ),
        Claim(
            "the SSO variant of SGD outperforms it across both m and batch size",
            Beats(contest(SSO, SGD)),
            asks=ALWAYS,
        ),
        Claim(
            "the SSO variant of SLS outperforms it across both m and batch size",
            Beats(contest(SSO_SLS, SLS)),
            asks=ALWAYS,
        ),
        Claim(
            "the SSO variants of SGD and SLS do as well as their parametric counterparts for all m",
            OnPar((*contest(SSO, SGD), *contest(SSO_SLS, SLS)), factor=VISIBLE),
            asks=ALWAYS,
        ),
        Claim(
            "the SSO variants of SGD and SLS improve on their counterparts for m sufficiently large (100)",
            Beats(
                (
                    *contest(Methods("sso", "gradient-step", m=100), SGD),
                    *contest(Methods("sso", "line-search", m=100), SLS),
                )
            ),
        ),
        *_tuned(SSO, "SSO", SGD, "SGD"),
        *_priced(SSO, "SSO", SGD, "SGD"),
    ],
    **{
        f"figA-sgd-constant-{loss}": [
            *_constant(),
            *_further(SSO, "SSO", SGD, "SGD"),
        ]
        for loss in ("squared", "logistic")
    },
    **{
        f"figA-sgd-{schedule}-{loss}": [
            *_scheduled(loss, schedule),
            *_tuned(SSO, "SSO", SGD, "SGD"),
        ]
        for schedule in ("decreasing", "exponential")
        for loss in ("squared", "logistic")
    },
    "figA-sls-squared": [
        *_outperforms(SSO_SLS, "SSO-SLS", SLS, "SLS"),
        Claim(
            "more steps improve SSO-SLS especially where there is less noise (batch 625 and full)",
            MoreStepsHelp(SSO_SLS),
            quieter=(625, "full"),
        ),
        *_further(SSO_SLS, "SSO-SLS", SLS, "SLS"),
    ],
    "figA-sls-logistic": [
        *_outperforms(SSO_SLS, "SSO-SLS", SLS, "SLS"),
        *_further(SSO_SLS, "SSO-SLS", SLS, "SLS"),
    ],
    **{
        f"figA-adagrad-{loss}": [
            Claim(
                "SSO-AdaGrad outperforms its parametric counterpart, AdaGrad-Norm",
                Beats(contest(SSO_ADAGRAD, ADAGRAD_NORM)),
            ),
            Claim(
                "SSO-AdaGrad outperforms torch's Adagrad, which has a step for each coordinate",
                Beats(contest(SSO_ADAGRAD, ADAGRAD)),
            ),
            *_generally(SSO_ADAGRAD, "SSO-AdaGrad"),
            *_further(SSO_ADAGRAD, "SSO-AdaGrad", ADAGRAD, "Adagrad"),
            Claim(
                f"{BEYOND}SSO-AdaGrad (m = 20), tuned, outperforms tuned AdaGrad-Norm",
                Beats(
                    contest(
                        replace(SSO_ADAGRAD, m=20, panel=TUNED), replace(ADAGRAD_NORM, panel=TUNED)
                    )
                ),
            ),
        ]
        for loss in ("squared", "logistic")
    },
    "figA-newton-logistic": [
        *_newton(None, OUR_FLOOR),
        *(claim for floor, named in FLOORS.items() for claim in _newton(floor, named)),
        *_further(SSO_NEWTON, "SSO-Newton", SGD, "SGD"),
    ],
    "figA-svrg": [
        Claim(
            'SSO can improve over SVRG even where the batch is small (25). (The paper adds: "it is likely, that for '
            'small enough batch sizes SVRG may become competitive with SSO")',
            Beats(contest(SSO, SVRG), Where((25,), "rcv1")),
            asks=SOME,
        ),
        Claim(
            "SSO consistently outperforms SVRG across the batch sizes",
            Beats(contest(SSO, SVRG), Where(problem="rcv1")),
        ),
        *(
            Claim(
                f"{BEYOND}SSO outperforms SVRG across the batch sizes on {other} as well",
                Beats(contest(SSO, SVRG), Where(problem=other)),
            )
            for other in ("mushrooms", "ijcnn1")
        ),
        Claim(
            f"{BEYOND}SSO (m = 20), tuned, outperforms tuned SVRG, on all three data sets",
            Beats(contest(replace(SSO, panel=TUNED), replace(SVRG, panel=TUNED))),
        ),
    ],
    **other_rules.CLAIMS,
}
"""Figure → its claims. The theory figures judge themselves."""


EVERY: Mapping[str, Sequence[Judged]] = {**CLAIMS, **oil_claims.CLAIMS}
"""The claims of every figure that has runs, supervised or imitation."""


def in_order(figures: Sequence[str]) -> list[str]:
    """The figures with those that others are compared with before them, otherwise as given.

    >>> in_order(["figA-sgd-decreasing-squared", "figA-sgd-constant-squared"])
    ['figA-sgd-constant-squared', 'figA-sgd-decreasing-squared']
    """
    needed = {
        figure: {n for claim in EVERY.get(figure, ()) for n in claim.needs if n in figures}
        for figure in figures
    }
    return list(TopologicalSorter(needed).static_order())


def judge_figure(directory: Path, figure: str, read: Reader | None = None) -> list[Verdict]:
    """Judge every claim of ``figure`` on the results in ``directory/figure``.

    ``read`` says how runs are found there: where they were done, if nothing is said, or as they were published.
    """
    evidence = Evidence(directory, figure, read)
    return [verdict_on(claim, evidence) for claim in EVERY[figure]]
