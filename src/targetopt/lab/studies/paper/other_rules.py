"""What is asked of the rules that the paper states and draws no figure of: diagonal AdaGrad, FTRL, mirror descent."""

from __future__ import annotations

from dataclasses import replace

from targetopt.lab.studies.paper.evidence import ADAGRAD, SGD, SSO, SSO_ADAGRAD, Methods
from targetopt.lab.studies.paper.judging import BEYOND, Claim
from targetopt.lab.studies.paper.predicates import Beats, MoreStepsHelp, OnPar, contest

_DIAGONAL, _FTRL = Methods("sso", "adagrad"), Methods("sso", "ftrl")
_ENTROPY = Methods("sso", "mirror-descent")

CLAIMS: dict[str, list[Claim]] = {
    "figB-rules": [
        Claim(
            f"{BEYOND}AdaGrad with a step for each target (m = 20), tuned, outperforms tuned Adagrad of torch, which "
            "has one for each parameter",
            Beats(contest(_DIAGONAL, ADAGRAD)),
        ),
        Claim(
            f"{BEYOND}AdaGrad with a step for each target is on par with AdaGrad-Norm, which has one for all, both "
            "tuned",
            OnPar(contest(_DIAGONAL, SSO_ADAGRAD)),
        ),
        Claim(f"{BEYOND}SSO with FTRL outperforms SGD, both tuned", Beats(contest(_FTRL, SGD))),
        Claim(
            f"{BEYOND}SSO with FTRL is on par with SSO with gradient steps, both tuned",
            OnPar(contest(_FTRL, SSO)),
        ),
    ],
    "figB-mirror": [
        Claim(
            f"{BEYOND}where targets are probabilities, mirror descent by their entropy outperforms gradient steps by "
            "the squared distance, both tuned",
            Beats(contest(_ENTROPY, SSO)),
        ),
        Claim(
            f"{BEYOND}mirror descent on probabilities (m = 20) outperforms SGD, both tuned",
            Beats(contest(replace(_ENTROPY, m=20), SGD)),
        ),
        Claim(
            f"{BEYOND}20 inner steps improve mirror descent on probabilities over one, each tuned",
            MoreStepsHelp(_ENTROPY),
        ),
    ],
}
"""Figure → its claims; all are ours, and every step size is tuned."""
