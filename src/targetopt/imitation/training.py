"""`train`: a whole run in one call, with progress, checkpoints, and nothing lost to an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from targetopt.imitation import checkpoint as checkpoints
from targetopt.imitation.data import Replay, replay
from targetopt.imitation.expert import FAMILIES, Expert, load_expert
from targetopt.imitation.measuring.measure import Measurement
from targetopt.imitation.person import AwaitingAnswers
from targetopt.imitation.policies.base import LossName, Policy
from targetopt.imitation.policies.policy import GaussianPolicy, Std, made_for
from targetopt.imitation.prices import FREE, Prices
from targetopt.imitation.progress import display
from targetopt.imitation.result import Result, Round
from targetopt.imitation.rounds import Training
from targetopt.imitation.simulation.behaviour import Mixture, mixture
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed, EnvLike
from targetopt.imitation.simulation.gather import Gatherer, make_gatherer
from targetopt.imitation.simulation.observations import PICTURE
from targetopt.imitation.simulation.over_ray import OverRay
from targetopt.imitation.teacher import Teacher
from targetopt.imitation.update import (
    OptimizerFactory,
    SsoUpdate,
    TorchUpdate,
    Update,
    default_data,
    default_inner,
)
from targetopt.inner import Inner
from targetopt.rules import Rule
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, TargetoptError, positive_int


def train(
    env: EnvLike,
    expert: Expert | str | Path,
    *,
    learner: Literal["mlp", "linear", "cnn"] | nn.Module | None = None,
    std: Std | None = None,
    loss: LossName = "kl",
    behaviour: Literal["handover", "online", "cloning", "dagger"] | Mixture | None = None,
    data: Literal["round", "all"] | Replay | None = None,
    lr: float | None = None,
    rule: Rule | None = None,
    inner: Inner | None = None,
    schedule: Schedule | None = None,
    optimizer: OptimizerFactory | None = None,
    steps: int = 1,
    rounds: int = 50,
    states_per_round: int = 1000,
    seed: int = 0,
    copies: int | None = None,
    fast: bool | Literal["auto"] = "auto",
    gather: OverRay | None = None,
    evaluate_every: int = 5,
    evaluation_episodes: int = 10,
    held_out: int = 2000,
    prices: Prices | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    callback: Callable[[Round], None] | None = None,
) -> Result:
    """Imitate an expert: gather states, let the expert label them, learn from all that was labelled, and again.

    Each round is one oracle call. The loss of a state is KL(N(μ_e, std²) ‖ N(μ_θ, std²)) =
    ½‖(μ_θ − μ_e)/std‖², so at std 1 its smoothness is L = 1: ``lr=1`` (1/L) makes the surrogate
    the batch loss itself. The defaults aim at a policy that is as good as the expert: they are DAgger. The paper's
    experiments are ``behaviour="online", data="round"``.

    Args:
        env: a Gymnasium id, an environment, or a function that makes one. Actions are a box of numbers, a choice or
            several choices; observations are numbers, pictures, or a dict of these.
        expert: a function from states to mean actions ``(n, k)``, choices ``(n,)``, or distributions (rows of
            `targetopt.distributions`); ``"sac"`` or ``"ppo"`` for the one that comes with targetopt; or the path of an
            expert file.
        learner: ``"mlp"`` (256, 256, relu; float32), ``"linear"`` (float64), ``"cnn"`` (convolutions, for pictures), or
            a torch module of your own from states to mean actions ``(n, k)`` or logits, which is then trained in
            place. A `GaussianPolicy` keeps its own std; where it has no action box or environment's name, it
            gets the environment's. None: ``"cnn"`` for pictures, else ``"mlp"``.
        std: of the policy, one number or one per action, 1 by default; ``"learned"`` or ``"state"`` make it part of
            what is learned. A `GaussianPolicy` has its own.
        loss: ``"kl"``, KL(π_e ‖ π); ``"reverse-kl"``, KL(π ‖ π_e); ``"cross-entropy"``, −log π of the expert's action;
            or ``"mean-squared"``. With an expert that answers with actions alone, see `GaussianPolicy.loss`.
        behaviour: who drives: ``"handover"`` (the expert in the first round, then the learner with little noise; the
            default), ``"online"`` (the learner, which draws from its distribution), ``"cloning"`` (the expert),
            ``"dagger"`` (from the one to the other), or a `Mixture`. With a `Person` the learner drives.
        data: what is learned from: the states of the ``"round"``, as in the paper; ``"all"`` states so far; the latest
            ones, ``Replay(n)``. Old states keep their labels: the expert is not asked again. By default
            ``Replay("all", batch=250, updates=100, average=True)``: 100 steps a round, each on 250 of all states, and
            the mean of what they came to; ``"all"`` for a linear mean.
        lr: η, the step in target space. By default 1/L where the loss has a finite L, whatever the expert says.
        rule: of `SSO`; by default `GradientStep` where there is an ``lr``, else what fits the answers (`Automatic`).
        inner: of `SSO`; by default 10 steps of Adam in each of several updates a round, 100 in a single one; `Exact`
            for a linear mean.
        schedule: of `SSO`; multiplies lr round by round, e.g. ``to.schedules.inverse_sqrt()``.
        optimizer: a torch optimiser instead of SSO: ``lambda parameters: torch.optim.Adam(parameters)``.
        steps: of that optimiser on each batch.
        rounds: rounds altogether, those of a resumed run included.
        states_per_round: states gathered before each update.
        seed: of the policy's weights and of everything random in gathering.
        copies: simulators that take turns; 20 by default. They are at different stages of their episodes, to which
            the learner drives them before it first has a share in a round. Where the expert drives a round alone, so
            few take turns that they show whole episodes. The expert is thus asked for labels only.
        fast: as for `make_gatherer`.
        gather: where rounds are gathered: here by default, or on a Ray cluster, ``OverRay(workers=4)``, with the same
            numbers. The return is measured here.
        evaluate_every: rounds between two evaluations of the return; the last is always evaluated.
            0 for never.
        evaluation_episodes: episodes of an evaluation.
        held_out: states out of as many episodes of the expert, on which the held-out loss is measured. The
            expert is asked about every state of these episodes. With 0 it is not: there is no held-out
            loss and no return of the expert's, and it is asked for labels alone.
        prices: of a question to the expert and of a step of the environment; rounds, result and progress then
            say what the run costs.
        checkpoint: a file to save the run in after each round. If it is there already, the run goes
            on from it and ends with the same bits as if it had never stopped. `Result.load` reads it.
        progress: show where the training stands, on stderr.
        callback: called with each finished `Round`.

    Whatever is raised once the rounds have begun, Ctrl-C too, has the finished rounds in
    ``error.result``.

    Example:
        >>> import targetopt as to
        >>> result = to.imitation.train(
        ...     env="Swimmer-v5",
        ...     expert=lambda states: 0.5 * np.tanh(states[:, 3:5]),  # any function
        ...     rule=to.GradientStep(),
        ...     inner=to.Armijo(max_steps=10),
        ...     rounds=2,
        ...     states_per_round=100,
        ...     copies=2,
        ...     evaluation_episodes=1,
        ...     progress=False,
        ... )
        >>> result.history[-1].interactions, result.policy.action_size
        (200, 2)
        >>> result.questions["labels"], result.questions["measuring"]  # one episode of 1000 steps
        (200, 1000)
    """
    positive_int("rounds", rounds)
    if evaluate_every < 0:
        raise BadArgument(f"evaluate_every={evaluate_every!r} must be at least 0 (0: never)")
    environment = Environment(env)
    gatherer: Gatherer | None = None
    try:
        teacher = Teacher(_expert(expert, environment), environment)
        driver = _driver(behaviour, teacher, held_out)
        if teacher.wants_frames and fast == "auto":
            fast = False  # the fast path draws nothing
        policy = _policy(learner, std, environment, seed)
        policy.train_by(loss)
        kept = default_data(policy) if data is None else replay(data)
        update = _update(policy, kept, lr, rule, inner, schedule, optimizer, steps)
        gatherer = make_gatherer(environment, copies=copies, seed=seed, fast=fast, over=gather)
        training = Training(
            gatherer,
            teacher,
            policy,
            update,
            behaviour=driver,
            states_per_round=states_per_round,
            measurement=Measurement(
                environment,
                teacher,
                episodes=evaluation_episodes,
                held_out=held_out,
                fast=fast,
            ),
            data=kept,
            prices=FREE if prices is None else prices,
            expert_staggers=False,
        )
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None:
            state = checkpoints.load(path, training.settings)
            if state is not None:
                training.load_state_dict(state)
            _save(training, path)  # or fail before the work
        with display(rounds, training.measurement.expert_return, wanted=progress) as show:
            _run(training, path, rounds, evaluate_every, [show, *([callback] if callback else [])])
    finally:
        if gatherer is not None:
            gatherer.close()
        environment.close()
    _sign(training)
    return training.result


def _expert(expert: Expert | str | Path, environment: Environment) -> Expert:
    if isinstance(expert, str) and expert in FAMILIES:
        return load_expert(environment.name, expert)
    if isinstance(expert, (str, Path)):
        return load_expert(expert)
    if not callable(expert):
        raise BadArgument(
            f"expert={expert!r} must be a function from states to mean actions, {' or '.join(map(repr, FAMILIES))}, "
            "or the path of an expert file; SB3 models go through to.imitation.from_stable_baselines3"
        )
    return expert


def _driver(behaviour: str | Mixture | None, teacher: Teacher, held_out: int) -> Mixture:
    """Who drives; an expert who answers later cannot."""
    if not getattr(teacher.expert, "answers_later", False):
        return mixture("handover" if behaviour is None else behaviour)
    if held_out:
        raise BadArgument(
            f"held_out={held_out}: an expert who answers later plays no episodes of its own. Pass held_out=0."
        )
    driver = mixture(Mixture(0.0, learner_noise="little") if behaviour is None else behaviour)
    if driver.share(1) > 0:
        raise BadArgument(
            f"behaviour={behaviour!r}: an expert who answers later cannot drive. Leave behaviour= out, or pass "
            "behaviour='online': the learner drives."
        )
    return driver


def _policy(
    learner: str | nn.Module | None, std: Std | None, environment: Environment, seed: int
) -> Policy:
    if isinstance(learner, Policy):
        policy = _fitted(learner, std, environment)
    else:
        policy = made_for(environment, _network(learner, environment), std, seed)
    if not policy.is_plain:
        _try_out(policy, environment)
    return policy


def _network(learner: str | nn.Module | None, environment: Environment) -> str | nn.Module:
    """The network by its name; without one, what fits the observations."""
    if learner is not None:
        return learner
    parts = environment.observations.parts
    axes, bytes_ = len(parts[0].shape), environment.observations.dtype == PICTURE
    pictures = axes > 2 or (axes == 2 and bytes_)  # numbers of two axes are a sequence
    return "cnn" if len(parts) == 1 and pictures else "mlp"


def _try_out(policy: Policy, environment: Environment) -> None:
    """Refuse, before anything is asked, a module that cannot be the mean of a policy here."""
    layout = environment.observations
    for count in (1, 3):
        states = np.zeros((count, layout.size), layout.dtype)
        try:
            means = policy.numpy()(states)
        except (RuntimeError, TypeError, ValueError, KeyError) as error:
            if isinstance(error, TargetoptError):
                raise
            raise BadArgument(
                f"learner= cannot take {count} states of env={environment.name!r}, {policy.dtype} tensors of shape "
                f"{[(count, *part.shape) for part in layout.parts]}: {error}"
            ) from error
        if not np.isfinite(means).all():
            raise BadArgument(
                "learner= gives means that are not finite for states of zeros: check its weights"
            )


def _fitted(learner: Policy, std: Std | None, environment: Environment) -> Policy:
    """The user's policy, with the environment's box and name where it has none."""
    sizes = (learner.observation_size, learner.action_size)
    if sizes != (environment.observation_size, environment.action_size):
        raise BadArgument(
            f"learner= takes {sizes[0]} numbers and gives {sizes[1]}; env={environment.name!r} shows "
            f"{environment.observation_size} and takes {environment.action_size}"
        )
    if learner.kind != environment.actions.kind:
        raise BadArgument(
            f"learner= is a {type(learner).__name__}, for {learner.kind}; the actions of env={environment.name!r} are "
            f"{environment.actions.kind}"
        )
    learner.environment = learner.environment or environment.name
    if isinstance(learner, GaussianPolicy):
        _boxed(learner, std, environment)
    return learner


def _boxed(learner: GaussianPolicy, std: Std | None, environment: Environment) -> None:
    if std is not None:
        raise BadArgument(
            f"std={std!r} is for a learner that is made here; learner= is a policy with std {learner.std.tolist()}. "
            "Leave std= out, or make the learner with it: GaussianPolicy(..., std=...)."
        )
    low = np.where(np.isinf(learner.low), environment.low, learner.low)
    high = np.where(np.isinf(learner.high), environment.high, learner.high)
    if not (low < high).all():
        raise BadArgument(
            f"learner= acts outside of env={environment.name!r}: with the environment's ends where it has none, its "
            f"low {low.tolist()} is not below its high {high.tolist()}. Make it with "
            f"low={environment.low.tolist()}, high={environment.high.tolist()}."
        )
    learner.low, learner.high = low, high


def _update(
    policy: Policy,
    data: Replay,
    lr: float | None,
    rule: Rule | None,
    inner: Inner | None,
    schedule: Schedule | None,
    optimizer: OptimizerFactory | None,
    steps: int,
) -> Update:
    if optimizer is None:
        if steps != 1:
            raise BadArgument(
                f"steps={steps} is for optimizer=; the steps of SSO are its inner solver's: "
                f"inner=to.Armijo(max_steps={steps})"
            )
        if lr is None and rule is None:
            lr = policy.natural_step
        inner = default_inner(policy, data) if inner is None else inner
        return SsoUpdate(policy, lr, rule, inner, schedule)
    parts = {"lr": lr, "rule": rule, "inner": inner, "schedule": schedule}
    given = [name for name, part in parts.items() if part is not None]
    if given:
        raise BadArgument(
            f"{', '.join(given)} belong to SSO, which optimizer= replaces; give the optimiser its own options, "
            "e.g. optimizer=lambda p: torch.optim.SGD(p, lr=0.1)"
        )
    return TorchUpdate(policy, optimizer, steps)


def _run(
    training: Training,
    path: Path | None,
    rounds: int,
    evaluate_every: int,
    listeners: list[Callable[[Round], None]],
) -> None:
    """The rounds that are left. Whatever is raised, those that are done are kept."""
    saved = len(training.history)
    try:
        for latest in _rounds(training, rounds, evaluate_every):
            if path is not None:
                _save(training, path)
            saved = len(training.history)
            for tell in listeners:
                tell(latest)
    except BaseException as error:  # Ctrl-C too
        # A failing environment, and questions that wait, leave a round that can go on; anything else may have left
        # half a step, and the round begins again from what was saved before it, unless it was done but for its
        # evaluation.
        whole = isinstance(error, EnvironmentFailed | AwaitingAnswers)
        whole = whole or len(training.history) > saved
        _keep(training, path, error, unsaved=whole)
        raise


def _rounds(training: Training, rounds: int, evaluate_every: int) -> Iterator[Round]:
    def due(t: int) -> bool:
        return evaluate_every > 0 and (t % evaluate_every == 0 or t >= rounds)

    done = len(training.history)
    if done and due(done) and math.isnan(training.history[-1].mean_return):
        yield training.measure(
            returns=True
        )  # the environment failed in it when the run was stopped
    while (done := len(training.history)) < rounds:
        yield training.round(evaluate=due(done + 1))


def _save(training: Training, path: Path) -> None:
    checkpoints.save(path, training.settings, training.state_dict())


def _sign(training: Training) -> None:
    training.policy.provenance = {
        "rounds": len(training.history),
        "settings": training.settings,
    }


def _keep(training: Training, path: Path | None, error: BaseException, *, unsaved: bool) -> None:
    """Save what is not saved, put the run so far into the error, and say where it is."""
    _sign(training)
    with suppress(AttributeError):  # an exception may be frozen
        error.result = training.result  # type: ignore[attr-defined]
    finished = f"{len(training.history)} rounds were finished: error.result has their policy."
    if path is None:
        error.add_note(f"{finished} With checkpoint= the run could go on from here.")
        return
    try:
        if unsaved:
            _save(training, path)
    except BadArgument as failed:  # the error on its way matters more
        error.add_note(f"{finished} {failed}")
        return
    error.add_note(
        f"The run so far is in {str(path)!r}: train again with this checkpoint to go on."
    )
