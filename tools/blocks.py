"""Markdown pages as their fenced blocks, each with the remark above it: `<!-- file: train.py -->`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"```(\S*)\s*$")
_REMARK = re.compile(r"<!--\s*(.*?)\s*-->\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences."""

    language: str
    lines: tuple[str, ...]
    line: int  # of the page, where its text begins, from 0
    remark: str  # of the comment right above the fence

    @property
    def text(self) -> str:
        """As it stands there."""
        return "".join(f"{line}\n" for line in self.lines)

    def after(self, word: str) -> str | None:
        """What the remark says after `word:`; None where it says something else."""
        found = self.remark.partition(":")
        return found[2].strip() if found[0] == word and found[1] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One `$ ` line of a console block, and the output below it."""

    text: str
    output: tuple[str, ...]
    line: int  # of the page, where its output begins, from 0


def blocks(page: Path | str) -> list[Block]:
    """Every fenced block of a page, in order. A page is a path, or its text."""
    text = page.read_text("utf-8") if isinstance(page, Path) else page
    lines = text.splitlines()
    found, place = [], 0
    while place < len(lines):
        if fence := _FENCE.match(lines[place]):
            end = next(at for at in range(place + 1, len(lines)) if lines[at].rstrip() == "```")
            remark = _REMARK.match(lines[place - 1]) if place else None
            found.append(
                Block(
                    language=fence[1],
                    lines=tuple(lines[place + 1 : end]),
                    line=place + 1,
                    remark=remark[1] if remark else "",
                )
            )
            place = end
        place += 1
    return found


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block. What stands before the first one is an error: it would go unseen."""
    starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise ValueError(f"line {block.line + 1}: a console block begins with `$ ` and a command")
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        output = block.lines[start + 1 : end]
        yield Command(text=block.lines[start][2:], output=output, line=block.line + start + 1)
