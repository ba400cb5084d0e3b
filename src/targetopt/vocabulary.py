"""Targets over a large vocabulary, of which only a few classes matter: a support and one bucket for the rest.

A language model's logits of all positions, shape ``(positions, vocabulary)``, are often the largest tensor there is,
and a surrogate needs several of them. If a teacher says its k most probable classes, the loss depends on the student's
probabilities of these and on the sum of all others: k + 1 numbers for each position. `on_support` computes those, a
few positions at a time, so that the whole never exists; softmax over the k + 1 columns gives the student's
probabilities of the support and of the tail, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from targetopt.types import BadArgument, positive_int


def on_support(
    hidden: Tensor, weight: Tensor, support: Tensor, bias: Tensor | None = None, *, rows: int = 64
) -> Tensor:
    """The logits of each position's own classes, and the logarithm of the sum of exp over all others.

    With logits a = W h + b and the classes S of a position ::

        z_j = a_{S_j} for j < k,        z_k = log Σ_{c ∉ S} exp a_c

    so that softmax(z) has the student's probabilities of S, and that of the tail in the last column. The
    cross-entropy of z with a teacher's k probabilities and the rest is `targetopt.oracle.teachers.TailBucket` of
    the whole logits, and its gradient is p_student − p_teacher in each of the k + 1 columns.

    Args:
        hidden: what the head is applied to, shape ``(n, d)``: one row for each position.
        weight: of the head, shape ``(vocabulary, d)``.
        support: classes, shape ``(n, k)``, each once in a row; they stay the same in an inner loop.
        bias: of the head, if it has one.
        rows: positions at a time. The memory is a few times ``rows · vocabulary`` numbers; a backward pass
            computes the logits again.

    Returns:
        Targets of shape ``(n, k + 1)``.

    Example:
        >>> logits = torch.tensor([[0.2, 0.3, 0.5]]).log()
        >>> on_support(torch.ones(1, 1), logits.T, torch.tensor([[2]])).softmax(1)
        tensor([[0.5000, 0.5000]])
    """
    positive_int("on_support: rows", rows)
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise BadArgument(
            f"on_support: hidden must have shape (n, d) and weight (vocabulary, d); got {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}. Flatten batch and positions: hidden.flatten(0, 1)."
        )
    if support.ndim != 2 or support.shape[0] != hidden.shape[0] or support.is_floating_point():
        raise BadArgument(
            f"on_support: support must be whole numbers of shape ({hidden.shape[0]}, k), the classes of each "
            f"position; got {support.dtype} of shape {tuple(support.shape)}"
        )
    if support.shape[1] >= weight.shape[0]:
        raise BadArgument(
            f"on_support: support names {support.shape[1]} of {weight.shape[0]} classes, which leaves no tail. Use "
            "the logits themselves."
        )
    pieces = []
    for piece in _pieces(hidden.shape[0], rows):
        arguments = (hidden[piece], weight, bias, support[piece])
        pieces.append(
            checkpoint(_merged, *arguments, use_reentrant=False, preserve_rng_state=False)
        )
    return torch.cat(pieces)


def best_classes(
    hidden: Tensor, weight: Tensor, k: int, bias: Tensor | None = None, *, rows: int = 64
) -> tuple[Tensor, Tensor]:
    """The k most probable classes of each position and their log-probabilities, a few positions at a time.

    This is what a teacher answers with (see `to.teachers.from_top_k`), and with a student's own head a support
    that needs no teacher.

    Args:
        hidden: shape ``(n, d)``.
        weight: of the head, shape ``(vocabulary, d)``.
        k: how many classes.
        bias: of the head, if it has one.
        rows: positions at a time.

    Example:
        >>> logits = torch.tensor([[0.2, 0.3, 0.5]]).log()
        >>> classes, logs = best_classes(torch.ones(1, 1), logits.T, 2)
        >>> classes, logs.exp()
        (tensor([[2, 1]]), tensor([[0.5000, 0.3000]]))
    """
    found = []
    with torch.no_grad():
        for piece in _pieces(hidden.shape[0], positive_int("best_classes: rows", rows)):
            logs = F.linear(hidden[piece], weight, bias).log_softmax(1)
            found.append(logs.topk(k, dim=1))
    return torch.cat([top.indices for top in found]), torch.cat([top.values for top in found])


def _merged(hidden: Tensor, weight: Tensor, bias: Tensor | None, support: Tensor) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    tail = logits.scatter(1, support, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([logits.gather(1, support), tail], dim=1)


def _pieces(count: int, rows: int) -> Iterator[slice]:
    return (slice(begin, begin + rows) for begin in range(0, count, rows))
