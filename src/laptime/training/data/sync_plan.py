"""What to bring: the class folders of a remote place, walked, with every name judged before it is used."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from laptime.errors import DataError
from laptime.training.data.sync_places import Entry, Place, Trouble

__all__ = ["SUMS", "Plan", "Refused", "Wanted", "refusal", "survey"]

SUMS = "SHA256SUMS"
"""Checksums as `sha256sum` writes them, in any folder on the way; names are relative to that folder."""

_PARTS = ("train", "val", "validation")  # ImageNet's own layout: the classes are in each of these
_DEEPEST = 16
_LONGEST = 240  # bytes in a name; file systems take 255, and some of them less
_HIDDEN = "it is hidden"
_LINE = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A file to bring, and the name it gets below the target folder."""

    name: str
    entry: Entry
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A name that is not brought, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that will be brought."""

    classes: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    refused: tuple[Refused, ...] = ()
    empty: tuple[str, ...] = ()  # classes without a single file
    missing: tuple[str, ...] = ()  # named in SHA256SUMS, and not there


def refusal(name: str) -> str | None:
    """Why a name from a remote place must not be used for a file here; None: it may be."""
    if name in ("", ".", ".."):
        return "it names no file, or a folder further up"
    if "/" in name or "\\" in name:
        return "it is a path, not a name"
    if re.match(r"[A-Za-z]:", name):
        return "it begins with a drive letter"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        return "it has control characters or is not text"
    if name.startswith("."):
        return _HIDDEN
    if len(name.encode()) > _LONGEST:
        return f"it is longer than {_LONGEST} bytes"
    return None


def survey(place: Place, classes: Sequence[str], pool: Executor) -> Plan:
    """What `classes` hold, or all of the classes; listed side by side, since a listing is mostly waiting."""
    sums: dict[str, str] = {}
    refused: list[Refused] = []
    found = _class_folders(place, sums, refused)
    if not found:
        raise DataError(f"{place.shown} holds no class folders; give the folder that is above them")
    chosen = _choose(place, sorted({name.rpartition("/")[2] for name in found}), classes)
    folders = {name: entry for name, entry in found.items() if name.rpartition("/")[2] in chosen}
    walked: list[Wanted | Refused] = []
    full: set[str] = set()
    for name, (inside, more_sums) in zip(
        folders, pool.map(lambda item: _walk(place, *item), folders.items()), strict=True
    ):
        walked += inside
        sums |= more_sums
        if inside:
            full.add(name.rpartition("/")[2])
    refused += (one for one in walked if isinstance(one, Refused))
    files = [one for one in walked if isinstance(one, Wanted)]
    empty = tuple(name for name in chosen if name not in full)
    if empty and classes:
        raise DataError(f"class {empty[0]!r} holds no files at {place.shown}; leave it out, or fill it there")
    names = {one.name for one in walked}
    return Plan(
        classes=tuple(chosen),
        wanted=tuple(Wanted(name=one.name, entry=one.entry, sha256=sums.get(one.name)) for one in files),
        refused=tuple(refused),
        empty=empty,
        missing=tuple(name for name in sums if name not in names and _within(name, folders)),
    )


def _class_folders(place: Place, sums: dict[str, str], refused: list[Refused]) -> dict[str, Entry]:
    """Class folders by their name below the target: `cat`, or `train/cat` and `val/cat`."""
    top = dict(_folders(place, place.root, "", sums, refused))
    parts = [name for name in _PARTS if name in top]
    if "train" not in parts:
        return top
    found: dict[str, Entry] = {}
    for part in parts:
        found |= _folders(place, top[part].path, f"{part}/", sums, refused)
    return found


def _folders(
    place: Place, path: str, prefix: str, sums: dict[str, str], refused: list[Refused]
) -> Iterator[tuple[str, Entry]]:
    for entry in place.entries(path):
        if entry.kind == "link":
            entry = _followed(place, entry)
        if entry.kind == "file" and entry.name == SUMS:
            sums |= _read_sums(place, entry, prefix)
        elif entry.kind == "folder":
            reason = refusal(entry.name)
            if reason is None:
                yield prefix + entry.name, entry
            elif reason != _HIDDEN:  # .git and its like are nobody's classes
                refused.append(Refused(name=prefix + entry.name, reason=reason))


def _choose(place: Place, known: Sequence[str], classes: Sequence[str]) -> list[str]:
    for name in classes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {_a_few(known)}"
            raise DataError(f"there is no class {name!r} at {place.shown}; {hint}")
    return list(dict.fromkeys(classes)) or list(known)


def _a_few(names: Sequence[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more" if more > 0 else "")


def _walk(place: Place, name: str, folder: Entry) -> tuple[list[Wanted | Refused], dict[str, str]]:
    """Every file below a class folder, and every name that was refused on the way."""
    found: list[Wanted | Refused] = []
    sums: dict[str, str] = {}
    ahead = [(name, folder, 0)]
    while ahead:
        above, folder, depth = ahead.pop()
        for entry in place.entries(folder.path):
            below = f"{above}/{entry.name}"
            is_link = entry.kind == "link"
            if is_link:
                entry = _followed(place, entry)
            reason = refusal(entry.name) or _refused_kind(entry, is_link, depth)
            if entry.kind == "file" and entry.name == SUMS:
                sums |= _read_sums(place, entry, f"{above}/")
            elif reason is not None:
                found.append(Refused(name=below, reason=reason))
            elif entry.kind == "folder":
                ahead.append((below, entry, depth + 1))
            else:
                found.append(Wanted(name=below, entry=entry))
    return found, sums


def _refused_kind(entry: Entry, is_link: bool, depth: int) -> str | None:
    if entry.kind == "folder" and is_link:
        return "it is a link to a folder, which may lead round in circles"
    if entry.kind == "folder" and depth >= _DEEPEST:
        return "it is too deep"
    return None if entry.kind in ("file", "folder") else "it is neither a file nor a folder"


def _followed(place: Place, link: Entry) -> Entry:
    try:
        target = place.facts(link)
    except Trouble as trouble:
        if trouble.passing:
            raise
        return link  # it leads nowhere
    return Entry(name=link.name, path=link.path, kind=target.kind, size=target.size, version=target.version)


def _read_sums(place: Place, entry: Entry, prefix: str) -> dict[str, str]:
    with place.reading(entry, 0) as (_, read):
        text = b"".join(iter(read, b"")).decode("utf-8", "replace")
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return {prefix + line[2].removeprefix("./"): line[1].lower() for line in lines if line}


def _within(name: str, folders: Iterable[str]) -> bool:
    above = name.split("/")
    return any("/".join(above[:depth]) in folders for depth in (1, 2))
