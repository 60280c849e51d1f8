"""The colours of the dashboard in its style sheet: contrast, and states that are distinguishable by everyone."""

from __future__ import annotations

import gzip
import itertools
import math
import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parent.parent.parent / "static"
CSS = (STATIC / "app.css").read_text()
THEMES = ("light", "dark")
STATES = ("good", "busy", "warn", "bad", "rest")
GROUNDS = ("ground", "card", "sunk")
MIN_TEXT_CONTRAST, MIN_DIFFERENCE = 4.5, 12.0
MAX_CSS_BYTES, MAX_SPRITE_BYTES, MAX_ICONS = 14 * 1024, 6 * 1024, 40
VISION = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""How full colour blindness changes linear RGB (Machado, Oliveira, Fernandes 2009)."""

Colour = tuple[float, ...]


def token(name: str, theme: str) -> Colour:
    """A colour token in linear RGB."""
    found = re.search(rf"--{name}: light-dark\(#(\w{{6}}), #(\w{{6}})\)", CSS)
    assert found, f"--{name} is not in the style sheet"
    text = found[1 + THEMES.index(theme)]
    parts = [int(text[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def contrast(one: Colour, other: Colour) -> float:
    """The contrast of WCAG."""
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (one, other))
    return (high + 0.05) / (low + 0.05)


def perceived(colour: Colour, vision: str) -> tuple[float, float, float]:
    """A colour in CIELAB as perceived with this colour vision."""
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True)))) for row in VISION[vision]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """CIEDE2000 (Sharma, Wu, Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = math.hypot(a1 * stretch, b1), math.hypot(a2 * stretch, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1 * stretch)) % 360, math.degrees(math.atan2(b2, a2 * stretch)) % 360
    turn = (h2 - h1 + 180) % 360 - 180
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = (h1 + h2) / 2 + (180 if abs(h1 - h2) > 180 else 0)
    weight = 1 - 0.17 * math.cos(math.radians(hue - 30)) + 0.24 * math.cos(math.radians(2 * hue))
    weight += 0.32 * math.cos(math.radians(3 * hue + 6)) - 0.2 * math.cos(math.radians(4 * hue - 63))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    blues = math.exp(-(((hue % 360 - 275) / 25) ** 2))
    rotation = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(math.radians(60 * blues))
    return math.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + rotation * by_chroma * by_hue)


def test_the_formula_of_the_difference_gives_the_published_values() -> None:
    pairs = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ]
    for one, other, published in pairs:
        assert difference(one, other) == pytest.approx(published, abs=1e-4)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_any_two_states_differ_for_every_kind_of_colour_vision(theme: str, vision: str) -> None:
    colours = {state: perceived(token(state, theme), vision) for state in STATES}
    near = {(one, other): difference(colours[one], colours[other]) for one, other in itertools.combinations(STATES, 2)}
    assert {pair: found for pair, found in near.items() if found < MIN_DIFFERENCE} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_enough_contrast_on_every_background(theme: str) -> None:
    pairs = [(ink, ground) for ink in ("ink", "faint", "accent", *STATES) for ground in GROUNDS]
    pairs += [(state, f"{state}-wash") for state in STATES] + [("on-accent", "accent")]
    pairs += [("ink", f"{state}-wash") for state in STATES]
    low = {pair: contrast(token(pair[0], theme), token(pair[1], theme)) for pair in pairs}
    assert {pair: found for pair, found in low.items() if found < MIN_TEXT_CONTRAST} == {}


def test_the_style_sheet_and_the_icons_keep_their_budgets() -> None:
    sprite = (STATIC / "icons.svg").read_bytes()
    assert len(gzip.compress(CSS.encode())) <= MAX_CSS_BYTES
    assert len(gzip.compress(sprite)) <= MAX_SPRITE_BYTES
    assert sprite.count(b"<symbol") <= MAX_ICONS
    assert sprite.count(b'viewBox="0 0 20 20"') == sprite.count(b"<symbol")


def test_every_icon_that_a_template_names_is_in_the_sprite() -> None:
    templates = STATIC.parent / "handlers" / "templates"
    named = {name for file in templates.rglob("*.html") for name in re.findall(r'icon\("([a-z]+)"\)', file.read_text())}
    assert named <= set(re.findall(r'<symbol id="([a-z]+)"', (STATIC / "icons.svg").read_text()))
