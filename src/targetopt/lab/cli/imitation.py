"""``targetopt expert`` and ``targetopt film``: train experts, measure them, and look at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from targetopt.errors import BadArgument
from targetopt.lab.cli.shared import clear_errors, console, errors, group, interruptible

if TYPE_CHECKING:
    from targetopt.imitation.expert import NetworkExpert
    from targetopt.imitation.policies.base import Policy

app = group("expert", help="The experts that are imitated: those that come along, and new ones.")

Algorithm = Literal["sac", "ppo"]
Family = Annotated[Algorithm, typer.Option(help="Which of the shipped experts.")]


@app.command("list")
def list_experts() -> None:
    """Show the experts that come with targetopt.

    Examples:

        targetopt expert list
    """
    from targetopt.imitation.expert import SHIPPED, load_expert

    table = Table("environment", "family", "return", "±", "episodes", "steps", "seed", box=None)
    for path in sorted(SHIPPED.glob("*.safetensors")):
        with clear_errors():
            expert = load_expert(path)
        report = expert.card["report"]
        table.add_row(
            expert.environment,
            expert.family,
            f"{report['mean_return']:.0f}",
            f"{report['std_return']:.0f}",
            str(report["episodes"]),
            f"{expert.card['steps']:,}",
            str(expert.card["seed"]),
        )
    console.print(table)


@app.command("train")
def train(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id.")],
    algorithm: Annotated[
        Algorithm, typer.Option(help="SAC: an hour or more a million steps; PPO: minutes.")
    ] = "sac",
    seed: Annotated[int, typer.Option(min=0, help="Of networks, environment and noise.")] = 0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Environment steps. [default: those of the shipped expert]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory. [default: results/experts/ENV-ALGORITHM-SEED]"),
    ] = None,
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Steps between two evaluations, each with a checkpoint.")
    ] = 20_000,
    note: Annotated[str, typer.Option(help="A sentence for the model card.")] = "",
) -> None:
    """Train an expert; the defaults train the shipped ones again.

    Stopped in any way, it goes on from its last checkpoint: give the same command again. SAC may be
    prolonged with a larger --steps. The best policy on the way is chosen, measured over 100 fresh
    episodes, and written with a model card. Needs the extra [expert].

    Examples:

        targetopt expert train Hopper-v5 --algorithm ppo

        targetopt expert train Walker2d-v5

        targetopt expert train HalfCheetah-v5 --seed 3 --steps 500000 --out cheetah
    """
    with clear_errors():
        from targetopt.display import Progress
        from targetopt.imitation.experts.training import train_expert

        directory = out or Path(f"results/experts/{environment}-{algorithm}-{seed}")
        with Progress(f"{environment} {algorithm}") as shown, interruptible():

            def watch(doing: str, done: int, total: int, note: str) -> None:
                shown.show(done, total, note, part=doing)

            expert = train_expert(
                environment,
                algorithm=algorithm,
                seed=seed,
                steps=steps,
                out=directory,
                evaluate_every=evaluate_every,
                note=note,
                watch=watch,
            )
        path = directory / f"{environment}-{algorithm}.safetensors"
        _say_returns(expert.card["report"])
        typer.echo(f"expert: {path}\ncard:   {path.with_suffix('.md')}")


@app.command("evaluate")
def evaluate(
    source: Annotated[
        str, typer.Argument(metavar="ENV|FILE", help="A shipped expert's environment, or a file.")
    ],
    family: Family = "sac",
    episodes: Annotated[int, typer.Option(min=1, help="Whole episodes.")] = 100,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the episodes; the default's are those on the cards.")
    ] = 3,
    environment: Annotated[
        str | None, typer.Option(help="Another environment than the file names.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play whole Gymnasium episodes with the mean action: mean, deviation, lengths.

    FILE is an expert's, or a policy that imitation training saved.

    Examples:

        targetopt expert evaluate Hopper-v5

        targetopt expert evaluate Walker2d-v5 --family ppo --episodes 20 --seed 7

        targetopt expert evaluate my-expert.safetensors --json
    """
    with clear_errors():
        from targetopt.imitation.experts.measure import summary
        from targetopt.imitation.measuring.evaluate import evaluate as play

        policy = _policy(source, family)
        where = environment or policy.environment
        if not where:
            raise BadArgument(f"{source} does not say its environment. Name it with --environment.")
        with errors.status(f"{where}: {episodes} episodes"):
            result = summary(play(policy, where, episodes=episodes, seed=seed, fast=False))
        if as_json:
            print(json.dumps({"environment": where, "policy": source, "seed": seed, **result}))
        else:
            _say_returns(result)


def film(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id.")],
    expert: Annotated[
        str, typer.Option(help="Family of a shipped expert (sac, ppo), or an expert's file.")
    ] = "sac",
    policy: Annotated[
        list[Path] | None,
        typer.Option(help="A learner's file, shown beside the expert; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="A .gif or .mp4 file.")] = Path("rollout.gif"),
    seconds: Annotated[float, typer.Option(min=0.1, help="Simulated time, at most.")] = 8.0,
    fps: Annotated[int, typer.Option(min=1, max=50, help="Pictures a second.")] = 25,
    size: Annotated[int, typer.Option(min=32, help="Height of a picture, in pixels.")] = 240,
    seed: Annotated[int, typer.Option(min=0, help="Of the initial state.")] = 0,
) -> None:
    """Film an expert and its learners side by side, from the same initial state.

    Works without a display through EGL (MUJOCO_GL=egl). Needs the extra [rl].

    Examples:

        targetopt film Hopper-v5 --out hopper.gif

        targetopt film Walker2d-v5 --expert ppo --policy learner.safetensors --out walker.mp4
    """
    with clear_errors():
        from targetopt.imitation.expert import load_expert
        from targetopt.imitation.measuring.film import film as shoot

        shown: dict[str, NetworkExpert | Policy] = {
            "expert": _policy(expert) if "." in expert else load_expert(environment, expert)
        }
        for path in policy or []:
            name = "learner" if len(policy or []) == 1 else path.stem
            if name in shown:  # policies of several runs tend to have one file name
                name = str(path.with_suffix(""))
            if name in shown:
                raise BadArgument(f"--policy {path} is given twice. Name each file once.")
            shown[name] = _policy(str(path))
        with errors.status(f"filming {environment}"):
            made = shoot(environment, shown, out, seconds=seconds, fps=fps, size=size, seed=seed)
        for name, value in made.returns.items():
            typer.echo(f"{name}: return {value:.0f} in {made.lengths[name]} steps")
        typer.echo(f"{made.path}: {made.path.stat().st_size / 1e6:.1f} MB")


def _policy(source: str, family: str = "sac") -> NetworkExpert | Policy:
    """A shipped expert, an expert's file, or a learner's."""
    from targetopt.imitation.expert import load_expert
    from targetopt.imitation.policies.files import load_policy

    try:
        return load_expert(source, family)
    except BadArgument as error:
        if not Path(source).is_file():
            raise
        try:
            return load_policy(source)
        except BadArgument:
            raise error from None


def _say_returns(result: dict[str, Any]) -> None:
    typer.echo(
        f"return  {result['mean_return']:.1f} ± {result['std_return']:.1f}  "
        f"({result['min_return']:.1f} to {result['max_return']:.1f}, {result['episodes']} episodes)\n"
        f"length  {result['mean_length']:.1f}  ({result['min_length']} to {result['max_length']})"
    )
