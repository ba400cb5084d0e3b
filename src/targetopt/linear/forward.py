"""`to.Linear`: a forward that says it is linear, and the solver that makes use of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.inner import Inner, InnerResult, Objective
from targetopt.linear import backend
from targetopt.linear.coordinates import FORMS, REASONS, SOLVERS
from targetopt.linear.design import Design, as_array, design
from targetopt.surrogate import Quadratic, Surrogate
from targetopt.types import BadArgument, State


class Linear:
    """z = Xθ (+ bias) as a forward for `to.SSO`, X dense or sparse.

    ``forward()`` gives the targets, through autograd, so every rule and inner solver works on it.
    With a quadratic rule, `Armijo`, `GradientDescent`, `LBFGS` and `Exact` do not go through
    autograd at all: they run on a Gram matrix (``"dual"``, n × n, or ``"primal"``, d × d) or on
    products with X (``"matvec"``), whichever the cost model finds cheapest, and give the same
    iterates. ``report.form`` says which. A sparse X is never made dense.

    Args:
        module: an ``nn.Linear``, or its weight: shape ``(d,)`` for one output or ``(k, d)``.
        X: the examples: numpy array, torch tensor, or scipy sparse matrix, shape ``(n, d)``; or a
            `linear.Design`.
        bias: with a bare weight, its bias: shape ``()`` or ``(1,)`` for one output, or ``(k,)``.
        form: ``"dual"``, ``"primal"`` or ``"matvec"`` instead of the cheapest.

    The targets of one output are a vector, shape ``(n,)``; of k outputs, ``(n, k)``.

    Example:
        >>> import numpy as np, scipy.sparse as sp, targetopt as to
        >>> X = sp.random_array((30, 200), density=0.1, rng=0, format="csr")
        >>> y = torch.tensor(np.random.default_rng(0).choice([-1.0, 1.0], 30))
        >>> model = torch.nn.Linear(200, 1, dtype=torch.float64)
        >>> forward = Linear(model, X)
        >>> opt = to.SSO(model.parameters(), lr=2.0, inner=to.Armijo(max_steps=100))
        >>> reports = [opt.step(forward, to.LossOracle(to.losses.Logistic(y))) for _ in range(5)]
        >>> reports[-1].loss < reports[0].loss
        True
        >>> forward.rows([3, 1, 4])().shape  # a mini-batch of the same model
        torch.Size([3])
    """

    def __init__(
        self,
        module: nn.Linear | Tensor,
        X: Any,
        *,
        bias: Tensor | None = None,
        form: str | None = None,
    ) -> None:
        self.weight: Tensor
        self.bias: Tensor | None
        if isinstance(module, nn.Linear):
            if bias is not None:
                raise BadArgument("bias= is for a bare weight; the module has its own")
            self.weight, self.bias = module.weight, module.bias
        elif isinstance(module, Tensor):
            self.weight, self.bias = module, bias
        else:
            raise BadArgument(
                f"module={type(module).__name__} must be an nn.Linear or a weight tensor. For other "
                "models pass lambda: model(x) to step."
            )
        if form is not None and form not in FORMS:
            raise BadArgument(f"form={form!r} must be one of {FORMS}, or None for the cheapest")
        self.form = form
        plain = design(X)
        self._check_shapes(plain)
        self.design = plain if self.bias is None else plain.with_bias()

    def _check_shapes(self, X: Design) -> None:
        weight, bias = self.weight, self.bias
        if not weight.is_floating_point() or weight.ndim not in (1, 2):
            raise BadArgument(
                "the weight must be floating point of shape (features,) or (outputs, features); got "
                f"{weight.dtype} of shape {tuple(weight.shape)}"
            )
        if weight.shape[-1] != X.shape[1]:
            raise BadArgument(
                f"X has {X.shape[1]} columns, the weight (shape {tuple(weight.shape)}) takes "
                f"{weight.shape[-1]} features; they must be equal"
            )
        if bias is not None and bias.numel() != self.outputs:
            raise BadArgument(
                f"bias has shape {tuple(bias.shape)}; the weight has {self.outputs} outputs"
            )

    @property
    def outputs(self) -> int:
        return 1 if self.weight.ndim == 1 else int(self.weight.shape[0])

    def parameters(self) -> list[Tensor]:
        """The tensors the targets depend on."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def rows(self, index: ArrayLike) -> Linear:
        """The same model on some of the rows: a mini-batch's forward."""
        part = object.__new__(Linear)
        part.weight, part.bias, part.form = self.weight, self.bias, self.form
        part.design = self.design.rows(index)
        return part

    def __call__(self) -> Tensor:
        theta = self._stacked()
        z: Tensor = _Product.apply(theta, self.design)
        return z[:, 0] if self.outputs == 1 else z

    def _stacked(self) -> Tensor:
        """θ as one (features, outputs) tensor, the bias its last row."""
        theta = self.weight.reshape(self.outputs, -1)
        if self.bias is not None:
            theta = torch.cat([theta, self.bias.reshape(-1, 1)], dim=1)
        return theta.T

    def solver_for(
        self, inner: Inner, surrogate: Surrogate, params: Sequence[Tensor]
    ) -> Callable[[Objective, State], InnerResult] | None:
        """What does ``inner.minimise`` without autograd, in coordinates; None if it must be called itself.

        `SSO` asks every forward that has this method. It takes a quadratic surrogate, a forward of exactly
        these parameters, and an inner solver whose own class is registered with `coordinates.solves`; a
        subclass of a solver, of the surrogate or of this forward may do something else.
        """
        exactly = type(self) is Linear and type(surrogate) is Quadratic and type(inner) in SOLVERS
        exactly = exactly and inner.prescribed
        if not exactly or {id(p) for p in params} != {id(p) for p in self.parameters()}:
            return None
        return partial(self._minimise, inner)

    @torch.no_grad()
    def _minimise(self, inner: Inner, objective: Objective, state: State) -> InnerResult:
        surrogate = objective.surrogate
        assert isinstance(surrogate, Quadratic)
        start = objective.start()
        z = start.z.detach()
        shape = (z.shape[0], self.outputs)
        metric = as_array(surrogate.metric)
        if metric.ndim == z.ndim:
            metric = metric.reshape(shape)
        solver = SOLVERS[type(inner)]
        solution = backend.kernels().solve_inner(
            self.design,
            as_array(self._stacked()),
            as_array(z).reshape(shape),
            as_array(start.slope).reshape(shape),
            metric,
            objective.weight_decay,
            inner,
            float(state.get("step_size", solver.first_step(inner))),
            -1 if self.form is None else FORMS.index(self.form),
        )
        objective.forward_calls += solution.forward_calls
        objective.backward_calls += solution.backward_calls
        self.write(torch.from_numpy(solution.theta))
        steps, decrease, reason, step = solution.result
        carried = {"step_size": step} if solver.carries and not math.isnan(step) else {}
        return InnerResult(steps, decrease, REASONS[reason], carried, FORMS[solution.form])

    @torch.no_grad()
    def write(self, theta: Tensor) -> None:
        """Put a (features, outputs) tensor, the bias its last row, into the parameters."""
        if self.bias is not None:
            self.bias.copy_(theta[-1].reshape(self.bias.shape))
            theta = theta[:-1]
        self.weight.copy_(theta.T.reshape(self.weight.shape))


class _Product(torch.autograd.Function):
    """Xθ, differentiable as often as one likes: it is linear."""

    @staticmethod
    def forward(theta: Tensor, X: Design) -> Tensor:
        return torch.from_numpy(X.matvec(as_array(theta))).to(theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Design], output: Tensor) -> None:
        ctx.design = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Adjoint.apply(grads[0], ctx.design), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return torch.from_numpy(ctx.design.matvec(as_array(tangents[0]))).to(tangents[0])


class _Adjoint(torch.autograd.Function):
    """Xᵀu."""

    @staticmethod
    def forward(u: Tensor, X: Design) -> Tensor:
        return torch.from_numpy(X.rmatvec(as_array(u))).to(u)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Design], output: Tensor) -> None:
        ctx.design = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Product.apply(grads[0], ctx.design), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return torch.from_numpy(ctx.design.rmatvec(as_array(tangents[0]))).to(tangents[0])
