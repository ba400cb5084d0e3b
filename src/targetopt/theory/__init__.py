"""Theory you can run: constants, bounds, measurements, the counter-example, and advice.

>>> import numpy as np, torch, targetopt as to
>>> from targetopt import theory
>>> problem = theory.ExactProblem(
...     np.array([[1.0], [2.0]]), to.losses.Squared(torch.tensor([1.0, -0.5]))
... )
>>> constants = problem.target_constants(batch_size=1)
>>> bound = theory.constant_step_bound(
...     1.0, 100, L=constants.smoothness, mu=constants.mu, sigma=0.0, error=0.0
... )
>>> bound.total < 1e-5
True

docs/theory.md says what is computed and in which norm; docs/errata.md, where the paper is wrong.
"""

from targetopt.theory import counterexample
from targetopt.theory.advice import Advice, Measurements, advise
from targetopt.theory.bounds import (
    Bound,
    BoundCurve,
    constant_step_bound,
    distance_bound,
    exponential_step_bound,
    projection_error_bound,
    stationarity,
)
from targetopt.theory.conditions import OutsideAssumptions
from targetopt.theory.constants import (
    ParameterConstants,
    TargetConstants,
    curvature_range,
    loss_constants,
    parameter_constants,
)
from targetopt.theory.costs import CostModel, best_inner_steps, cost_model
from targetopt.theory.descent import relative_error_rate
from targetopt.theory.driven import drive
from targetopt.theory.exact_problem import (
    ExactProblem,
    Runs,
    all_batches,
    sampled_batches,
    simulate,
    sso_steps,
    unbiased_steps,
)
from targetopt.theory.exponential import ExponentialStep
from targetopt.theory.measure import (
    Surrogates,
    Trace,
    expected_projection_error,
    gradient_noise,
    measured_projection_error,
    objective_noise,
    parameter_noise,
    proposition_4_3,
    surrogates,
    trace,
)
from targetopt.theory.memory import MemoryRate, leverages, miso_rate, saga_rate

__all__ = [
    "Advice",
    "Bound",
    "BoundCurve",
    "CostModel",
    "ExactProblem",
    "ExponentialStep",
    "Measurements",
    "MemoryRate",
    "OutsideAssumptions",
    "ParameterConstants",
    "Runs",
    "Surrogates",
    "TargetConstants",
    "Trace",
    "advise",
    "all_batches",
    "best_inner_steps",
    "constant_step_bound",
    "cost_model",
    "counterexample",
    "curvature_range",
    "distance_bound",
    "drive",
    "expected_projection_error",
    "exponential_step_bound",
    "gradient_noise",
    "leverages",
    "loss_constants",
    "measured_projection_error",
    "miso_rate",
    "objective_noise",
    "parameter_constants",
    "parameter_noise",
    "projection_error_bound",
    "proposition_4_3",
    "relative_error_rate",
    "saga_rate",
    "sampled_batches",
    "simulate",
    "sso_steps",
    "stationarity",
    "surrogates",
    "trace",
    "unbiased_steps",
]
