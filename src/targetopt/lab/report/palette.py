"""How a method looks: the same in every figure, in every report, for every pair of eyes.

A look is a function of the method alone, never of which other methods are on the page:

* the *family* (a baseline's name, or the rule of an SSO variant) gives the hue;
* the number of inner steps m gives the lightness (more steps, more contrast with the page) and the marker;
* baselines are dashed and SSO is solid; a step-size schedule breaks the solid line with dots;
* an inner solver other than Armijo's moves the hue a little and leaves gaps in the line, and so does a
  step size of SSO's that is not the theoretical one;
* ``colour`` in the table of a method is the colour of its lines, moved only as far as contrast asks for;
* what has no colour in `targetopt.registry` or in its `MethodSpec` is given one by a hash of its name, and a
  baseline that nobody knows a dash and a marker too.

The main hues follow Okabe and Ito's palette, with lightness moved so that every line keeps a contrast
of at least 3 to the page it is drawn on; dash and marker are the second channel. Colours are written in
OKLCH, where equal lightness looks equally light.

Reference: M. Okabe, K. Ito, "Color Universal Design", 2008. B. Ottosson, "A perceptual color space for
image processing", 2020.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from targetopt import registry
from targetopt.lab.spec.methods import METHODS
from targetopt.lab.spec.panels import COLOUR

Dash = tuple[float, ...]
Json = Mapping[str, Any]

SOLID: Dash = ()
DASHED: Dash = (6.0, 3.0)
DASHES: dict[str, Dash] = {
    "constant": SOLID,
    "inversesqrt": (9.0, 2.5, 1.5, 2.5),
    "exponential": (1.5, 2.5),
}
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross", "star")
DARK_ENOUGH, LIGHT_ENOUGH = 0.65, 0.56
"""The lightest line on a light page and the darkest on a dark one whose contrast is 3, whatever the hue."""


@dataclass(frozen=True)
class Style:
    """Colour on a light page, colour on a dark page, dash pattern (pixels on, off, …) and marker."""

    light: str
    dark: str
    dash: Dash
    marker: str


@dataclass(frozen=True)
class _Family:
    chroma: float
    hue: float
    lightness: float  # of a baseline on a light page
    marker: str = "circle"

    @classmethod
    def of(cls, colour: str, marker: str = "circle") -> _Family:
        lightness, chroma, hue = _read(colour)
        return cls(chroma, hue, lightness, marker)


# Baselines wear the hue of the SSO rule that does the same thing in target space; SGD, which everything
# is compared with, is black on white and white on black.
def _baseline(name: str) -> _Family | None:
    found = {_plain(known): method for known, method in METHODS.items()}.get(name)
    return None if found is None or found.colour is None else _Family.of(found.colour, found.marker)


def _rule(name: str) -> _Family:
    colour = next((e.colour for known, e in registry.rules.items() if _plain(known) == name), None)
    return _hashed(name) if colour is None else _Family.of(colour)


def rule_title(rule: str) -> str:
    """What figures call SSO with a rule, given as :func:`rule_of` gives it.

    >>> rule_title("newton"), rule_title("somebodys")
    ('SSO-Newton', 'SSO somebodys')
    """
    known = (entry.title for name, entry in registry.rules.items() if _plain(name) == rule)
    return next(known, f"SSO {rule}")


_INNER: dict[str, tuple[float, Dash]] = {
    "adam": (45.0, (11.0, 2.0)),
    "lbfgs": (-50.0, (11.0, 2.0, 3.0, 2.0)),
    "gaussnewton": (-90.0, (11.0, 2.0, 3.0, 2.0, 3.0, 2.0)),
}
"""By how much an inner solver moves the hue of a rule, and how it breaks its line."""
_OWN_STEP: tuple[float, Dash] = (-60.0, (7.0, 2.0))
"""The same for a step size that was given, or tuned."""
_FLOOR, _NO_FLOOR = 90.0, 180.0
"""The same for a floor of curvatures that was given, and for one that is too low to do anything."""
_REPEATED: dict[str, tuple[str, Dash]] = {
    "sgdm": ("sgd", (2.0, 2.0)),
    "adamm": ("adam", (4.0, 1.5)),
}
"""Baselines that take m steps on each batch: whose hue they have, and their dots."""
_ALIASES = {
    "sgd": "gradientstep",
    "gd": "gradientstep",
    "sls": "linesearch",
    "armijo": "linesearch",
}


def style(method: Json) -> Style:
    """The look of one method, from its manifest entry ``{name, label, …options}``.

    >>> style({"name": "sgd"}).dash != style({"name": "sso", "m": 10}).dash
    True
    >>> style({"name": "sso", "m": 10}) == style({"name": "sso", "m": 10, "label": "mine"})
    True
    >>> style({"name": "sso", "m": 10, "colour": "#aa3377"}).light
    '#aa3377'
    """
    look = _usual(method)
    given = method.get("colour")
    if not isinstance(given, str) or not COLOUR.fullmatch(given):
        return look
    lightness, chroma, hue = _read(given)
    return replace(
        look,
        light=oklch(min(lightness, DARK_ENOUGH), chroma, hue),
        dark=oklch(max(lightness, LIGHT_ENOUGH), chroma, hue),
    )


def _usual(method: Json) -> Style:
    """The look of a method for which no colour was given."""
    name = _plain(str(method.get("name", "")))
    rule = rule_of(method)
    if rule is not None:
        family = _rule(rule)
        usual = (0.0, SOLID) if method.get("lr", "theory") == "theory" else _OWN_STEP
        shift, dash = _INNER.get(_plain(str(method.get("inner", ""))), usual)
        floor = method.get("floor")
        if isinstance(floor, float | int):
            shift += _FLOOR if floor > sys.float_info.epsilon**2 else _NO_FLOOR
        return _ladder(method, family.chroma, family.hue + shift, _schedule_dash(method) or dash)
    if name in _REPEATED:
        base, dash = _REPEATED[name]
        family = _baseline(base) or _hashed(base)
        return _ladder(method, family.chroma, family.hue, dash)
    known = _baseline(name)
    family = known or _hashed(name)
    neutral = family.chroma == 0.0
    return Style(
        light=oklch(family.lightness, family.chroma, family.hue),
        dark=oklch(
            0.95 if neutral else max(family.lightness + 0.13, 0.6), family.chroma, family.hue
        ),
        dash=DASHED if known else _digest_choice(name, (DASHED, (2.0, 2.0), (10.0, 3.0))),
        marker=family.marker,
    )


def _ladder(method: Json, chroma: float, hue: float, dash: Dash) -> Style:
    """The look of a method with m inner steps: the more, the further from the page's colour."""
    m = inner_steps(method)
    depth = min(math.log10(m), 3.0) / 3.0 if m is not None else 0.5
    step = round(2 * min(math.log10(m), 3.5)) % len(MARKERS) if m is not None else -1
    return Style(
        light=oklch(0.65 - 0.37 * depth, chroma, hue),
        dark=oklch(0.56 + 0.36 * depth, 0.9 * chroma, hue),
        dash=dash,
        marker=MARKERS[step],
    )


def styles(methods: Sequence[Json]) -> list[Style]:
    """Looks of the methods of one report, in order; never two the same.

    Colour and dash are :func:`style`'s always. Where two methods would be drawn identically (say, two learning
    rates of one baseline) the later one takes the next free marker.
    """
    taken: set[Style] = set()
    looks = []
    for method in methods:
        look = style(method)
        start = MARKERS.index(look.marker)
        for offset in range(len(MARKERS)):
            candidate = replace(look, marker=MARKERS[(start + offset) % len(MARKERS)])
            if candidate not in taken:
                look = candidate
                break
        taken.add(look)
        looks.append(look)
    return looks


def rule_of(method: Json) -> str | None:
    """The target-space rule of an SSO variant as a bare lower-case word; ``None`` for a baseline.

    >>> (
    ...     rule_of({"name": "sso", "rule": "LineSearch"}),
    ...     rule_of({"name": "sso-newton"}),
    ...     rule_of({"name": "adam"}),
    ... )
    ('linesearch', 'newton', None)
    """
    name = _plain(str(method.get("name", "")))
    if not name.startswith("sso"):
        return None
    given = method.get("rule")
    if isinstance(given, Mapping):
        given = given.get("name")
    rule = _plain(str(given)) if given else name.removeprefix("sso") or "gradientstep"
    return _ALIASES.get(rule, rule)


def inner_steps(method: Json) -> float | None:
    """m, the inner steps of an SSO variant (``inf`` for an exact inner solve), if its options tell."""
    inner = method.get("inner")
    candidates = [method.get("m"), method.get("max_steps"), method.get("inner_steps")]
    if isinstance(inner, Mapping):
        candidates += [inner.get("max_steps"), inner.get("m")]
        inner = inner.get("name")
    if isinstance(inner, str) and _plain(inner) == "exact":
        return math.inf
    for value in candidates:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1:
            return float(value)
    return None


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """An sRGB hex colour from OKLCH; chroma is lowered until the colour exists on a screen.

    >>> oklch(0.0, 0.0, 0.0), oklch(1.0, 0.0, 0.0)
    ('#000000', '#ffffff')
    """
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        linear = (
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        )
        if all(-1e-4 <= c <= 1.0001 for c in linear) or chroma < 1e-3:
            return "#" + "".join(
                f"{round(255 * _gamma(min(max(c, 0.0), 1.0))):02x}" for c in linear
            )
        chroma *= 0.97


def _read(colour: str) -> tuple[float, float, float]:
    """Lightness, chroma and hue of a colour as CSS writes it.

    >>> _read("oklch(0.5 0.16 322)"), [round(part, 3) for part in _read("#ff0000")]
    ((0.5, 0.16, 322.0), [0.628, 0.258, 29.234])
    """
    if colour.startswith("oklch("):
        lightness, chroma, hue = map(float, colour[len("oklch(") : -1].split())
        return lightness, chroma, hue
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long, medium, short = (
        math.cbrt(a * red + b * green + c * blue)
        for a, b, c in (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        )
    )
    lightness = 0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short
    a = 1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short
    b = 0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short
    return lightness, math.hypot(a, b), math.degrees(math.atan2(b, a)) % 360.0


def _linear(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def _gamma(c: float) -> float:
    return 12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055


def _plain(word: str) -> str:
    return "".join(c for c in word.lower() if c.isalnum())


def _schedule_dash(method: Json) -> Dash:
    schedule = method.get("schedule", "constant")
    if isinstance(schedule, Mapping):
        schedule = schedule.get("name", "constant")
    return DASHES.get(_plain(str(schedule)), SOLID)


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest()[:8], "big")


def _digest_choice(name: str, options: Sequence[Dash]) -> Dash:
    return options[_digest(name) // 4096 % len(options)]


def _hashed(name: str) -> _Family:
    """A look for a family nobody has named here: stable, because it is read off the name's digest."""
    number = _digest(name)
    hues = (20.0, 60.0, 110.0, 150.0, 195.0, 235.0, 285.0, 335.0)
    return _Family(
        0.12, hues[number % 8], (0.42, 0.52, 0.62)[number // 8 % 3], MARKERS[number // 64 % 8]
    )


Page = Literal["light", "dark"]
PAGES: dict[Page, str] = {"light": "#ffffff", "dark": "#14171c"}
