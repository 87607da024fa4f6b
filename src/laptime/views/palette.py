"""The colours: one for each account, phase, verdict, status and noise level, in figures, pages and terminals.

Colour never says anything alone. The hex colours of accounts are Okabe and Ito's (2008), which the
colour-blind can tell apart, darkened where they would vanish on white; they stand out on dark pages too. Of
the sixteen ANSI colours only those are used that can be read on black and on white: no black, no white, none
of the light yellow, green and cyan. A terminal's own theme adapts the others to its background.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Colour:
    """A word's colour on light and on dark pages and in a terminal, and the character that fills its bars."""

    light: str = ""  # hex; empty: the colour of the text
    dark: str = ""  # the same as `light` where it is empty
    ansi: str = ""  # a style of rich; empty: the colour of the text
    fill: str = "█"  # phases differ, so that they are told apart without colour


# In the terminal work is blue, green, magenta and cyan; waiting and moving is red and yellow; our own cost
# stays in the background. The host has the colour of the text: it is in every step and seldom the matter.
ACCOUNTS: Mapping[str, Colour] = {
    "data_wait": Colour(light="#149a73", ansi="red"),
    "copy": Colour(light="#56a7d8", ansi="bright_red"),
    "forward": Colour(light="#2a7fc1", ansi="bright_blue"),
    "loss": Colour(light="#a88f00", ansi="green"),
    "backward": Colour(light="#d9601a", ansi="magenta", fill="▒"),
    "update": Colour(light="#b3609a", ansi="cyan", fill="░"),
    "communication": Colour(light="#8c6239", ansi="yellow"),
    "idle": Colour(light="#9aa3ad", ansi="blue"),
    "host": Colour(light="#6f7d8c"),
    "instrument": Colour(light="#e0a526", ansi="dim"),
    "unexplained": Colour(light="#d02f4b", ansi="bright_magenta"),
}
TONES: Mapping[str, Colour] = {
    "accent": Colour(light="#1f6fb2", dark="#6cb4ee", ansi="bright_blue"),
    "good": Colour(light="#17795a", dark="#4cc79a", ansi="green"),
    "fair": Colour(light="#8a6100", dark="#e3b341", ansi="yellow"),
    "bad": Colour(light="#b3233d", dark="#ff7b8b", ansi="red"),
}
NOISE: Mapping[str, Colour] = {
    "steady": TONES["good"],
    "noisy": TONES["fair"],
    "unreliable": TONES["bad"],
    "too few": TONES["bad"],
}
STATUS: Mapping[str, Colour] = {
    "finished": TONES["good"],
    "running": TONES["accent"],
    "interrupted": TONES["fair"],
    "failed": TONES["bad"],
    "damaged": TONES["bad"],
}
VERDICTS: Mapping[str, Colour] = {
    "faster": ACCOUNTS["data_wait"],
    "slower": ACCOUNTS["unexplained"],
    "no difference": ACCOUNTS["host"],
    "cannot tell": ACCOUNTS["instrument"],
}
# How loud a number is. Numbers are never yellow: on a white background that is hard to read.
EMPHASIS: Mapping[str, Colour] = {
    "large": Colour(ansi="bold red"),
    "medium": Colour(ansi="bold"),
    "small": Colour(ansi="dim"),
}
PALETTE: Mapping[str, Colour] = {**ACCOUNTS, **TONES, **NOISE, **STATUS, **VERDICTS, **EMPHASIS}

MANY = (
    "#2a7fc1", "#d9601a", "#149a73", "#b3609a", "#e0a526", "#56a7d8", "#8c6239", "#d02f4b", "#6a5acd",
    "#7a9e1f", "#00838f", "#c2185b",
)  # fmt: skip
"""For things that have no colour of their own, such as layers and runs, in this order."""

_NO_COLOUR = Colour()
_PAINTED = [word for group in (ACCOUNTS, NOISE, STATUS) for word, colour in group.items() if colour.ansi]
# A word by itself: not the `loss` of `loss.item`, nor the `update` of `pre-update`.
_ALONE = re.compile(rf"(?<![\w.\-])(?:{'|'.join(map(re.escape, _PAINTED))})(?![\w\-]|\.\w)")

_LARGE, _MEDIUM, _SMALL = 0.25, 0.10, 0.01


def of(word: str) -> str:
    """A word's style in a terminal; empty where it has none."""
    return PALETTE.get(word, _NO_COLOUR).ansi


def fill(word: str) -> str:
    """The character that a word's bars are made of."""
    return PALETTE.get(word, _NO_COLOUR).fill


def colour(word: str) -> str:
    """A word's colour in figures, as hex; a word that the palette does not know takes one of the many."""
    known = PALETTE.get(word, _NO_COLOUR).light
    return known or nth_colour(sum(word.encode()))


def nth_colour(place: int) -> str:
    """The colour of the n-th of many things."""
    return MANY[place % len(MANY)]


def painted(line: Text) -> Text:
    """The line with every word that has a colour in it, as strong in a faint line as in any other."""
    line.highlight_regex(_ALONE, lambda word: of(word) if of(word) == "dim" else f"not dim {of(word)}")
    return line


def word_of_layer_share(share: float | None) -> str:
    """How loud a layer's share is: red from a quarter of the compute, bold from a tenth, faint below 1 %."""
    return "large" if (share or 0.0) >= _LARGE else word_of_share(share)


def word_of_share(share: float | None) -> str:
    """How loud an account's share is, by size alone: a large forward share is nothing to be warned of."""
    return "medium" if (share or 0.0) >= _MEDIUM else "small" if (share or 0.0) < _SMALL else ""


def css() -> str:
    """The variables of the style sheet, light and dark: `--forward`, `--good`, …"""
    words = {**ACCOUNTS, **TONES, **STATUS}
    light = "".join(f"--{word}:{colour.light};" for word, colour in words.items())
    dark = "".join(f"--{word}:{colour.dark};" for word, colour in words.items() if colour.dark)
    used = "".join(f".bar .{word}{{background:var(--{word})}}" for word in ACCOUNTS)
    used += "".join(f".status.{word}{{color:var(--{word})}}" for word in STATUS)
    return (
        f":root{{{light}}}\n"
        f'@media (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{{dark}}}}}\n'
        f':root[data-theme="dark"]{{{dark}}}\n{used}\n'
    )
