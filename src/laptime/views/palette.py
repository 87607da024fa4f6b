"""The colour of every word that has one: an account, a phase, a verdict, a status.

Colour never says anything alone. Of the sixteen ANSI colours these are the ones that can be read on black and
on white: no black, no white, none of the light yellow, green and cyan. The six dark ones and three light ones
remain, and a terminal's own theme adapts them to its background.
"""

from __future__ import annotations

import re

from rich.text import Text

# Work is blue, green, magenta and cyan; waiting and moving is red and yellow; our own cost stays in the
# background. The host has the colour of the text: it is in every step and seldom the matter.
ACCOUNTS: dict[str, str] = {
    "data_wait": "red",
    "copy": "bright_red",
    "forward": "bright_blue",
    "loss": "green",
    "backward": "magenta",
    "update": "cyan",
    "communication": "yellow",
    "idle": "blue",
    "host": "",
    "instrument": "dim",
    "unexplained": "bright_magenta",
}
NOISE: dict[str, str] = {"steady": "green", "noisy": "yellow", "unreliable": "red", "too few": "red"}
STATUS: dict[str, str] = {
    "finished": "green",
    "running": "bright_blue",
    "interrupted": "yellow",
    "failed": "red",
}
_WORDS = {word: style for word, style in (ACCOUNTS | NOISE | STATUS).items() if style}
# A word by itself: not the `loss` of `loss.item`, nor the `update` of `pre-update`.
_ALONE = re.compile(rf"(?<![\w.\-])(?:{'|'.join(map(re.escape, _WORDS))})(?![\w\-]|\.\w)")

_LARGE = 0.25
_MIDDLING = 0.10
_SMALL = 0.01


def of(word: str) -> str:
    """The style of a word; none where it has no colour."""
    return _WORDS.get(word, "")


def painted(line: Text) -> Text:
    """The line with every word that has a colour in it, as strong in a faint line as in any other."""
    line.highlight_regex(_ALONE, lambda word: of(word) if of(word) == "dim" else f"not dim {of(word)}")
    return line


def by_size(share: float | None) -> str:
    """The style of a layer's share: red from a quarter of the compute on, bold from a tenth, faint below 1 %.

    Numbers are never yellow: on a white background that is hard to read.
    """
    if (share or 0.0) >= _LARGE:
        return "bold red"
    return weight(share)


def weight(share: float | None) -> str:
    """The style of an account's share, by size alone: a large forward share is nothing to be warned of."""
    if (share or 0.0) >= _MIDDLING:
        return "bold"
    return "dim" if (share or 0.0) < _SMALL else ""
