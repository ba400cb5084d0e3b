"""`RayOracle`: the rows of a question over the workers of a Ray cluster. Needs ``[ray]``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from targetopt.oracle.cluster import Cluster, told
from targetopt.oracle.columns import Column, Columns
from targetopt.oracle.forms import Form
from targetopt.oracle.ledger import Request
from targetopt.oracle.question import Question
from targetopt.oracle.remote.function import MISTAKES, named
from targetopt.oracle.remote.oracle import RemoteOracle
from targetopt.oracle.remote.outcome import Failed, Reply, Transport
from targetopt.types import BadArgument, checked_whole


class RayOracle(RemoteOracle):
    """An oracle whose rows are answered by workers of a Ray cluster, each with a state of its own.

    Each worker calls ``actor_factory()`` once and keeps what it returns, a simulator say, which is then
    called with the rows of one request at a time. A worker that dies is replaced, and its rows are asked again
    and counted once; Ray's own silent retries are switched off, so that ledger and budget know of every one.
    What is asked of which worker depends on who is free: answers must depend on the rows alone, not on what
    the worker was asked before.

    Args:
        actor_factory: a function without arguments, sent to the workers, that returns a function ``targets
            -> (losses, gradients)`` (or of other arguments, as `RemoteOracle` explains).
        workers: how many.
        cpus: processors that Ray sets aside for each.
        options: as for `RemoteOracle`: ``batch``, ``retries``, ``timeout``, ``price``, ``answers``, ``ledger``,
            ``budget``, ``cache``, ``name``, ``version``, ``progress``.

    The cluster is the one that ``ray.init`` connected to, else the one at ``RAY_ADDRESS``, else one on this
    machine, which `close` shuts down.
    """

    def __init__(
        self,
        actor_factory: Callable[[], Callable[..., Any]],
        *,
        workers: int = 2,
        cpus: float = 1.0,
        **options: Any,
    ) -> None:
        if not callable(actor_factory):
            raise BadArgument(
                f"RayOracle: actor_factory={actor_factory!r} must be a function without arguments that returns "
                "what answers"
            )
        self._cpus = cpus
        workers = checked_whole("RayOracle", "workers", workers, 1)
        super().__init__(actor_factory, concurrency=workers, **options)

    def _transport(self, target: Any, concurrency: int) -> Transport:
        return Workers(target, self.form, concurrency, self._cpus)

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        super().close()
        assert isinstance(self.transport, Workers)
        self.transport.shut_down()


class _Worker:
    """Lives in a process of the cluster."""

    def __init__(self, factory: Callable[[], Callable[..., Any]]) -> None:
        torch.set_num_threads(1)
        self.function = factory()

    def ready(self) -> bool:
        """Whether the process has started."""
        return True

    def answer(self, columns: list[Column]) -> Any:
        given = [torch.from_numpy(np.array(c)) if isinstance(c, np.ndarray) else c for c in columns]
        return _plain(self.function(*given))


def _plain(answer: Any) -> Any:
    """Arrays instead of tensors: they travel without copies."""
    if isinstance(answer, torch.Tensor):
        return answer.detach().cpu().numpy()
    if isinstance(answer, dict):
        return {name: _plain(part) for name, part in answer.items()}
    return tuple(map(_plain, answer)) if isinstance(answer, tuple) else answer


class Workers:
    """The transport: a request goes to whichever worker is free."""

    keyed = True
    """A request that a dead worker did not answer is counted once, with the one that answers it."""

    def __init__(
        self, factory: Callable[[], Callable[..., Any]], form: Form, count: int, cpus: float
    ) -> None:
        self.cluster = Cluster("RayOracle", count, cpus)
        self.form = form
        self.replaced = 0
        self._class = self.cluster.actors_of(_Worker)
        self._factory = self.cluster.ray.put(factory)
        self._starting: list[Any] = []
        self.actors = [self._started() for _ in range(count)]
        self._free: asyncio.Queue[Any] | None = None

    async def send(self, request: Request, question: Question, columns: Columns) -> Reply:
        if self._free is None:
            self._free = asyncio.Queue()
            for actor in self.actors:
                self._free.put_nowait(actor)
        actor = await self._free.get()
        try:
            if self._starts(actor):
                await asyncio.wrap_future(actor.ready.remote().future())
                self._starting = [one for one in self._starting if one is not actor]
            answer = await asyncio.wrap_future(actor.answer.remote(list(columns.values())).future())
        except self.cluster.ray.exceptions.RayTaskError as error:
            self._free.put_nowait(actor)
            raise _said(error) from error.cause
        except BaseException as error:  # dead, or busy with what nobody waits for any more
            died = isinstance(error, self.cluster.ray.exceptions.RayError)
            slow = self._starts(actor) and not died  # the next request waits for it on
            self._free.put_nowait(actor if slow else self._replacement(actor))
            if died:
                raise Failed(f"a worker died: {told(error)}", lost=True) from error
            raise
        self._free.put_nowait(actor)
        return Reply(named(answer, self.form))

    def _started(self) -> Any:
        actor = self._class.remote(self._factory)
        self._starting.append(actor)
        return actor

    def _starts(self, actor: Any) -> bool:
        """Whether the process of a worker was not heard of yet; on a busy machine it takes minutes to start."""
        return any(actor is one for one in self._starting)

    def _replacement(self, actor: Any) -> Any:
        self.cluster.end(actor)
        self.replaced += 1
        self._starting = [one for one in self._starting if one is not actor]
        fresh = self._started()
        self.actors = [fresh if known is actor else known for known in self.actors]
        return fresh

    async def close(self) -> None:
        await asyncio.sleep(0)

    def shut_down(self) -> None:
        """End the workers, and the cluster if it was started here."""
        if self.cluster.running:
            for actor in self.actors:
                self.cluster.end(actor)
        self.actors = []
        self.cluster.shut_down()


def _said(error: Any) -> Exception:
    """The user's own error: their mistakes as they are, others as failures to be tried again."""
    cause = error.cause
    if isinstance(cause, MISTAKES):
        wrong = Failed(f"{type(cause).__name__}: {cause}", lost=True, again=False)
        wrong.__cause__ = cause
        return wrong
    if isinstance(cause, Failed):
        return cause
    return Failed(f"{type(cause).__name__}: {cause}", lost=True)
