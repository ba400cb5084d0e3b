"""Model cards: how an expert was made and what it is worth, in its file and as a page beside it."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.experts.recipes import Recipe, settings

_PACKAGES = {
    "sac": ("sbx-rl", "stable-baselines3", "jax", "flax", "optax"),
    "ppo": ("stable-baselines3", "torch"),
}
_SIMULATION = ("gymnasium", "mujoco", "numpy")
_NAMES = {
    "sac": "Soft actor-critic (SAC; Haarnoja et al. 2018, arXiv:1812.05905)",
    "ppo": "Proximal policy optimisation (PPO; Schulman et al. 2017, arXiv:1707.06347)",
}


def make(
    *,
    recipe: Recipe,
    seed: int,
    steps: int,
    trained_steps: int,
    command: str,
    note: str,
    selection: dict[str, Any],
    report: dict[str, Any],
) -> dict[str, Any]:
    """The card as an expert's file keeps it; versions are those of the packages installed now."""
    packages = (*_PACKAGES[recipe.family], *_SIMULATION)
    return {
        "algorithm": _NAMES[recipe.family],
        "versions": {name: metadata.version(name) for name in packages},
        "seed": seed,
        "steps": steps,
        "trained_steps": trained_steps,
        "settings": settings(recipe),
        "selection": selection,
        "report": report,
        "command": command,
        "note": note,
    }


def text(expert: NetworkExpert) -> str:
    """The card as a page. It says what the file says, nothing else."""
    card = expert.card
    report, selection = card["report"], card["selection"]
    hidden = " × ".join(str(width) for width in card["settings"]["hidden"])
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    action = {
        "tanh": "tanh of the network's output, scaled to the action box",
        "clip": "the network's output, clipped to the action box",
        "logits": "the likeliest choice",
    }[expert.output]
    states = "" if expert.observation_mean is None else " of normalised observations"
    chooses = expert.output == "logits"
    policy = "categorical; the logits are" if chooses else "Gaussian; the mean is"
    act = "likeliest choice" if chooses else "mean action"
    lines = [
        f"# {expert.environment}, {expert.family.upper()} expert",
        "",
        f"**Return {report['mean_return']:.0f} ± {report['std_return']:.0f}** (mean and standard deviation of "
        f"{report['episodes']} episodes with the {act}; smallest {report['min_return']:.0f}, largest "
        f"{report['max_return']:.0f}).",
        "",
        "| | |",
        "|---|---|",
        f"| environment | {expert.environment} (Gymnasium) |",
        f"| policy | {policy} a {hidden} {expert.network.activation} network{states} |",
        f"| {'action' if chooses else act} | {action} |",
        f"| {'odds' if chooses else 'deviation'} | {_deviation(expert)} |",
        f"| algorithm | {card['algorithm']} |",
        f"| packages | {versions} |",
        f"| seed | {card['seed']} |",
        f"| environment steps | {card['steps']:,} of {card['trained_steps']:,} that were trained |",
        f"| episode lengths | mean {report['mean_length']:.0f}, {report['min_length']} to "
        f"{report['max_length']} |",
        "",
        "## How it was chosen and measured",
        "",
        f"Every {selection['evaluate_every']:,} steps the {act} was evaluated over "
        f"{selection['watched_episodes']} episodes and the policy kept. The {selection['candidates']} best were "
        f"evaluated again over {selection['chosen_episodes']} others, and the best of these, at "
        f"{selection['chosen_mean_return']:.0f}, is this expert. The return above is over {report['episodes']} "
        "fresh episodes, with seeds that no choice has seen.",
        "",
        *([card["note"], ""] if card["note"] else []),
        "Measure it again:",
        "",
        f"    targetopt expert evaluate {expert.environment} --family {expert.family} "
        f"--episodes {report['episodes']} --seed {report['seed']}",
        "",
        "Train it again:",
        "",
        f"    {card['command']}",
        "",
        "## Settings",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name} | {_plain(value)} |" for name, value in card["settings"].items()),
        "",
    ]
    return "\n".join(lines)


def _deviation(expert: NetworkExpert) -> str:
    if expert.output == "logits":
        return "in the file: the logits"
    if expert.noise is None:
        return "not kept in the file"
    return (
        "in the file, the same in every state"
        if expert.noise.weight is None
        else "in the file, depends on the state"
    )


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
