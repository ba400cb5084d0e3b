"""Rollouts as pictures that move: policies side by side, from the same initial state, with their returns."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import nn

from targetopt.files import write_atomically
from targetopt.imitation.expert import Expert
from targetopt.imitation.measuring.evaluate import labelling
from targetopt.imitation.needs import package
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.simulation.environment import Environment
from targetopt.types import BadArgument, TargetoptError, positive_int

Frame = NDArray[np.uint8]

HOLD = 1.0
"""Seconds for which the end of the last episode stays in sight."""

COLOURS = 64
"""Of a GIF: enough for a simulator's scenes."""


class NoPicture(TargetoptError, RuntimeError):
    """The environment cannot be drawn on this machine."""


@dataclass(frozen=True)
class Film:
    """What was written.

    Attributes:
        path: the file.
        frames: how many.
        returns: of each policy, by its name, up to where the film ends.
        lengths: steps each of them took.
    """

    path: Path
    frames: int
    returns: dict[str, float]
    lengths: dict[str, int]


@dataclass(frozen=True)
class Take:
    """One policy's episode: a picture every few steps, and the return when it was taken."""

    pictures: list[Frame]
    returns: list[float]
    steps: int
    fell: bool


def film(
    env: str,
    policies: Mapping[str, Policy | nn.Module | Expert],
    out: str | Path,
    *,
    seconds: float = 8.0,
    fps: int = 25,
    size: int = 240,
    seed: int = 0,
) -> Film:
    """Film policies side by side: each plays an episode from ``reset(seed=seed)`` by its mean action.

    Time runs as in the simulation. Every picture says whose it is and the return so far; who falls
    stays where it fell. Pictures are drawn by OpenGL; without a display EGL is used.

    Args:
        env: id of a Gymnasium environment that can be drawn (``render_mode="rgb_array"``).
        policies: what to show, by the name that is to stand under it.
        out: file to write, ``.gif`` or ``.mp4``.
        seconds: of simulated time, at most; episodes may end before.
        fps: pictures a second; fewer where the environment makes fewer steps, or a gif cannot say it.
        size: height of a picture, in pixels; mujoco's are square.
        seed: of the initial state, the same for all.

    Example:
        ``to.imitation.film("Hopper-v5", {"expert": expert, "learner": result.policy}, "hopper.gif")``
    """
    path = Path(out)
    if path.suffix not in {".gif", ".mp4"}:
        raise BadArgument(f"out={str(out)!r} must end in .gif or .mp4")
    if not policies:
        raise BadArgument("policies={} must name at least one policy to film")
    if not 0 < seconds < np.inf:
        raise BadArgument(f"seconds={seconds!r} must be positive and finite")
    positive_int("fps", fps)
    positive_int("size", size)
    package("PIL", "Filming")
    encode = _gif if path.suffix == ".gif" else _mp4()
    rate = _possible(fps, env, gif=path.suffix == ".gif")
    with _offscreen():
        takes = {
            name: _play(env, policy, seconds=seconds, fps=rate, size=size, seed=seed)
            for name, policy in policies.items()
        }
    frames = [_compose(takes, number, size) for number in range(_length(takes, rate))]
    write_atomically(path, partial(encode, frames, rate))
    return Film(
        path,
        len(frames),
        {name: take.returns[-1] for name, take in takes.items()},
        {name: take.steps for name, take in takes.items()},
    )


def _possible(fps: float, env: str, *, gif: bool) -> float:
    """The rate at which time runs as in the simulation.

    No step is drawn twice, so there are no more pictures than steps; and a gif counts in hundredths
    of a second.
    """
    checked = Environment(env)
    steps = checked.prototype.metadata.get("render_fps") or fps
    checked.close()
    rate = min(fps, float(steps))
    return 100.0 / math.ceil(100.0 / rate) if gif else rate


def _play(
    env: str,
    policy: Policy | nn.Module | Expert,
    *,
    seconds: float,
    fps: float,
    size: int,
    seed: int,
) -> Take:
    checked = Environment(env)
    checked.prototype.close()
    label, space = labelling(policy, checked), checked.actions
    simulation = _drawn(env, size)
    try:
        rate = float(simulation.metadata.get("render_fps") or fps)
        state, _ = simulation.reset(seed=seed)
        take: tuple[list[Frame], list[float]] = ([_picture(simulation, env)], [0.0])
        total, step, fell, over = 0.0, 0, False, False
        while not over and step < seconds * rate:
            row = checked.observations.row(state)[None]
            action = checked.clipped(space.acts(label(row)))[0]
            state, reward, fell, cut, _ = simulation.step(action)
            total += float(reward)
            step += 1
            over = fell or cut
            if over or step * fps // rate > (step - 1) * fps // rate:
                take[0].append(_picture(simulation, env))
                take[1].append(total)
        return Take(*take, step, bool(fell))
    finally:
        simulation.close()


def _drawn(env: str, size: int) -> Any:
    gymnasium = package("gymnasium", "Filming")
    spec = gymnasium.spec(env)
    options: dict[str, Any] = {}
    if "envs.mujoco" in str(spec.entry_point):  # square, and the camera runs along
        options = {"width": size, "height": size, "camera_name": "track"}
        _try_opengl(env)
    try:
        return gymnasium.make(env, render_mode="rgb_array", **options)
    except gymnasium.error.Error as error:
        raise NoPicture(f"env={env!r} cannot be drawn: {error}") from error


def _try_opengl(env: str) -> None:
    """Fail here, where it can be explained: a viewer that fails is not even deleted in silence."""
    backend = os.environ.get("MUJOCO_GL")
    if backend is None:
        return
    try:
        importlib.import_module(f"mujoco.{backend}").GLContext(16, 16).free()
    except Exception as error:  # of drivers and libraries, in as many kinds as there are of them
        raise _no_opengl(env, error) from error


def _no_opengl(env: str, error: Exception) -> NoPicture:
    backend = os.environ.get("MUJOCO_GL", "not set")
    return NoPicture(
        f"env={env!r} cannot be drawn on this machine (MUJOCO_GL is {backend}): {error}. Films need OpenGL: "
        "on a machine without a display install EGL (libegl1) and set MUJOCO_GL=egl, or Mesa's software "
        "rendering (libosmesa6) and set MUJOCO_GL=osmesa."
    )


def _picture(simulation: Any, env: str) -> Frame:
    try:
        picture = np.asarray(simulation.render())
    except Exception as error:  # see above
        raise _no_opengl(env, error) from error
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise NoPicture(
            f"env={env!r} draws arrays of shape {picture.shape}, not pictures (h, w, 3)"
        )
    return np.ascontiguousarray(picture, dtype=np.uint8)


@contextmanager
def _offscreen() -> Iterator[None]:
    """Where no display is, and nobody chose otherwise, MuJoCo is to draw through EGL."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    choose = sys.platform == "linux" and not any(os.environ.get(name) for name in displays)
    if not choose or "MUJOCO_GL" in os.environ:
        yield
        return
    os.environ["MUJOCO_GL"] = "egl"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]


def _length(takes: Mapping[str, Take], fps: float) -> int:
    longest = max(len(take.pictures) for take in takes.values())
    ended = any(take.fell for take in takes.values() if len(take.pictures) == longest)
    return longest + (round(HOLD * fps) if ended else 0)


def _compose(takes: Mapping[str, Take], number: int, size: int) -> Any:
    """Pictures side by side, each over a line with the name and the return so far."""
    from PIL import Image, ImageDraw, ImageEnhance, ImageFont

    band = 2 * max(6, round(size * 0.05))
    font = ImageFont.load_default(size=band * 0.62)
    panels = []
    for name, take in takes.items():
        at = min(number, len(take.pictures) - 1)
        picture = Image.fromarray(take.pictures[at])
        width = 2 * round(picture.width * size / picture.height / 2)
        picture = picture.resize((width, size)) if picture.size != (width, size) else picture
        if take.fell and number >= at + 1:
            picture = ImageEnhance.Brightness(picture).enhance(0.45)
        panel = Image.new("RGB", (width, size + band), "white")
        panel.paste(picture, (0, 0))
        draw = ImageDraw.Draw(panel)
        middle = size + band / 2
        draw.text((band / 3, middle), name, "black", font, anchor="lm")
        told = f"return {take.returns[at]:.0f}"
        draw.text((width - band / 3, middle), told, "black", font, anchor="rm")
        panels.append(panel)
    gap = 4
    total = sum(panel.width for panel in panels) + gap * (len(panels) - 1)
    frame = Image.new("RGB", (total, size + band), "white")
    left = 0
    for panel in panels:
        frame.paste(panel, (left, 0))
        left += panel.width + gap
    return frame


def _gif(frames: list[Any], fps: float, file: BinaryIO) -> None:
    """One palette for all pictures and no dithering: what stands still then costs no bytes."""
    from PIL import Image

    shown = frames[:: max(1, len(frames) // 8)]
    sample = Image.new("RGB", (frames[0].width, frames[0].height * len(shown)))
    for row, frame in enumerate(shown):
        sample.paste(frame, (0, row * frame.height))
    palette = sample.quantize(COLOURS, method=Image.Quantize.FASTOCTREE)  # rare colours count, too
    first, *rest = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    first.save(file, "GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)


def _mp4() -> Any:
    """The encoder, asked for before anything is played."""
    package("imageio_ffmpeg", "Writing an .mp4 (a .gif needs nothing more)")
    imageio = package("imageio.v3", "Writing an .mp4")

    def encode(frames: list[Any], fps: float, file: BinaryIO) -> None:
        pictures = np.stack([np.asarray(frame) for frame in frames])
        even = pictures[:, : pictures.shape[1] // 2 * 2, : pictures.shape[2] // 2 * 2]
        film = imageio.imwrite(
            "<bytes>", even, extension=".mp4", plugin="FFMPEG", fps=fps, macro_block_size=2
        )
        file.write(film)

    return encode
