"""Distributions over actions: what a policy's targets mean, and how far two policies are apart. One a file.

A *family* says how a row of targets z (what a network gives for one state) is read as a distribution::

    family.from_targets(z)  ->  n distributions, with log_prob, entropy, sample, mode, kl

=========================== ===================================================== =======================
``Gaussian(k, std=σ)``      z = mean; σ fixed                                     k numbers
``Gaussian(k)``             z = (mean, log σ), σ learned or a function of states  2k numbers
``Categorical(c)``          z = logits of c choices                               c numbers
``Probabilities(c)``        z = the probabilities themselves (a softmax's output) c numbers
``MultiDiscrete((c, d))``   z = logits of several choices, one after the other    c + d numbers
=========================== ===================================================== =======================

`ForwardKL`, `ReverseKL`, `Likelihood` and `MeanSquared` are losses on such targets, with derivatives in closed form;
they work wherever a loss of `targetopt.losses` does. `KLProximity` is the divergence by which `MirrorDescent`
keeps a policy near the last one.
"""

from targetopt.distributions.base import Distribution, Family
from targetopt.distributions.categorical import Categorical, CategoricalRows
from targetopt.distributions.forward_kl import ForwardKL
from targetopt.distributions.gaussian import Gaussian, GaussianRows
from targetopt.distributions.likelihood import Likelihood
from targetopt.distributions.mean_squared import MeanSquared
from targetopt.distributions.multi_discrete import MultiDiscrete, MultiDiscreteRows
from targetopt.distributions.probabilities import Probabilities
from targetopt.distributions.proximity import KLProximity
from targetopt.distributions.reverse_kl import ReverseKL

__all__ = [
    "Categorical",
    "CategoricalRows",
    "Distribution",
    "Family",
    "ForwardKL",
    "Gaussian",
    "GaussianRows",
    "KLProximity",
    "Likelihood",
    "MeanSquared",
    "MultiDiscrete",
    "MultiDiscreteRows",
    "Probabilities",
    "ReverseKL",
]
