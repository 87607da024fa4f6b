"""Whether an output is what a page shows, but for its numbers.

Compared word by word, since numbers of other widths break lines elsewhere. A number is any number, a bar any
bar, a verdict on noise any such verdict. A line `…` on the page stands for what was left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "…"

_BARS = re.compile("[█▉▊▋▌▍▎▏▒░▁▂▃▄▅▆▇·]+")
_NUMBER = re.compile(r"[-+±<>]*\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_WORDS = (
    # Under load the budget leaves layer marks out of some steps, and the tables say which they are of.
    (re.compile(r"(?<=in ms), in the # steps with layer times(?=, largest first)"), ""),
    (re.compile(r"layer times are means over (?:the same # steps as the accounts|.*)$"), "LAYER STEPS"),
    (re.compile(r"^\s*# ms in these, # ms in all$"), ""),
    (re.compile(r"\b(?:steady|noisy|unreliable)\b"), "VERDICT"),
    (re.compile(r"\b(?:cannot tell|faster|slower|no difference)(?=\n|$)"), "VERDICT"),
    (re.compile(r"(?<=# )(?:s|ms|µs)\b"), "UNIT"),
    (re.compile(r"# UNIT on average,?"), ""),  # said only where it is far from the median
)


class Unlike(AssertionError):
    """An output is not what the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    words: tuple[str, ...]
    lines: tuple[int, ...]  # where each stands


def compare(shown: Sequence[str], output: Sequence[str]) -> list[str]:
    """The page's lines as this output has them, gaps where they were; Unlike where they are not the same."""
    there = _words(output)
    renewed: list[str] = []
    place, line = 0, 0
    segments = _segments(shown)
    for number, segment in enumerate(segments):
        words = _words(segment).words
        last = number == len(segments) - 1
        start = _found(words, there.words, place, anchored=number == 0, to_the_end=last)
        if start is None:
            raise Unlike(_message(segment, output))
        place = start + len(words)
        line = there.lines[start] if words else line
        end = there.lines[place - 1] + 1 if words else line
        renewed += output[line:end] if words else ()
        renewed += () if last else (GAP,)
        line = end
    return renewed


def _segments(shown: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == GAP:
            found.append([])
        else:
            found[-1].append(line)
    return found


def _found(
    words: Sequence[str], there: Sequence[str], place: int, *, anchored: bool, to_the_end: bool
) -> int | None:
    """Where the words stand: at the start if nothing was left out before, at the end if nothing was after."""
    if to_the_end and words:
        start = len(there) - len(words)
        fits = start >= place and (not anchored or start == place)
        return start if fits and tuple(there[start:]) == tuple(words) else None
    if to_the_end:
        return len(there) if not anchored or not there else None
    last = place if anchored else len(there) - len(words)
    for start in range(place, last + 1):
        if tuple(there[start : start + len(words)]) == tuple(words):
            return start
    return None


def _words(lines: Sequence[str]) -> _Words:
    words: list[str] = []
    places: list[int] = []
    for place, line in enumerate(lines):
        text = _NUMBER.sub("#", _BARS.sub(" ", line))
        for pattern, word in _WORDS:
            text = pattern.sub(word, text)
        found = text.split()
        words += found
        places += [place] * len(found)
    return _Words(words=tuple(words), lines=tuple(places))


def _message(segment: Sequence[str], output: Sequence[str]) -> str:
    shown = "\n".join(segment)
    return f"the page shows\n{shown}\n--- which is not in what the command printed:\n" + "\n".join(output)
