"""What to bring: the class folders of a remote folder, walked, with every name judged before it is used."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from laptime.errors import DataError
from laptime.training.data.sync.remote import Remote, RemoteEntry, RemoteError

SUMS = "SHA256SUMS"
"""Checksums as `sha256sum` writes them, in any folder on the way; names are relative to that folder."""

_PARTS = ("train", "val", "validation")  # ImageNet's own layout: the classes are in each of these
_DEEPEST = 16
_LONGEST = 240  # bytes in a name; file systems take 255, and some of them less
_HIDDEN = "it is hidden"
_LINE = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFile:
    """A file to bring, and the name it gets below the target folder."""

    name: str
    entry: RemoteEntry
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
    wanted: tuple[WantedFile, ...]
    refused: tuple[Refused, ...] = ()
    empty: tuple[str, ...] = ()  # classes without a single file
    missing: tuple[str, ...] = ()  # named in SHA256SUMS, and not there


def refusal(name: str) -> str | None:
    """Why a name from elsewhere must not be used for a file here; None: it may be."""
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
    return f"it is longer than {_LONGEST} bytes" if len(name.encode()) > _LONGEST else None


@dataclass(slots=True, kw_only=True)
class _Walk:
    """What was found below one folder."""

    remote: Remote
    wanted: list[WantedFile] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    sums: dict[str, str] = field(default_factory=dict)

    def listed(self, path: str, above: str) -> Iterator[tuple[str, RemoteEntry, bool]]:
        """Each name below the target, its entry and whether it is a link; SHA256SUMS are read."""
        for entry in self.remote.entries(path):
            is_link = entry.kind == "link"
            if is_link:
                entry = self._followed(entry)
            if entry.kind == "file" and entry.name == SUMS:
                self._read_sums(entry, above)
            else:
                yield above + entry.name, entry, is_link

    def folders(self, path: str, above: str) -> dict[str, RemoteEntry]:
        """The folders directly in a folder, by their name below the target."""
        folders = {}
        for name, entry, _ in self.listed(path, above):
            reason = refusal(entry.name) if entry.kind == "folder" else _HIDDEN
            if reason is None:
                folders[name] = entry
            elif reason != _HIDDEN:  # .git and its like are nobody's classes
                self.refused.append(Refused(name=name, reason=reason))
        return folders

    def everything(self, name: str, folder: RemoteEntry) -> None:
        """Every file below a class folder."""
        ahead = [(name, folder.path, 0)]
        while ahead:
            above, path, depth = ahead.pop()
            for below, entry, is_link in self.listed(path, f"{above}/"):
                reason = refusal(entry.name)
                if entry.kind == "folder" and is_link:
                    reason = reason or "it is a link to a folder, which may lead round in circles"
                elif entry.kind == "folder" and depth >= _DEEPEST:
                    reason = reason or "it is too deep"
                elif entry.kind not in ("file", "folder"):
                    reason = reason or "it is neither a file nor a folder"
                if reason is not None:
                    self.refused.append(Refused(name=below, reason=reason))
                elif entry.kind == "folder":
                    ahead.append((below, entry.path, depth + 1))
                else:
                    self.wanted.append(WantedFile(name=below, entry=entry))

    def _followed(self, link: RemoteEntry) -> RemoteEntry:
        try:
            return replace(self.remote.facts(link), name=link.name, path=link.path)
        except RemoteError as error:
            if error.passing:
                raise
            return link  # it leads nowhere

    def _read_sums(self, entry: RemoteEntry, above: str) -> None:
        with self.remote.reading(entry, 0) as (_, read):
            text = self.remote.budget.page(read).decode("utf-8", "replace")
        lines = (_LINE.fullmatch(line) for line in text.splitlines())
        self.sums |= {above + line[2].removeprefix("./"): line[1].lower() for line in lines if line}


def survey(remote: Remote, classes: Sequence[str], pool: Executor) -> Plan:
    """What `classes` hold, or all of the classes; listed side by side, since a listing is mostly waiting."""
    top = _Walk(remote=remote)
    folders = top.folders(remote.root, "")
    if "train" in folders:
        parts = [(part, folders[part]) for part in _PARTS if part in folders]
        folders = {}
        for part, entry in parts:
            folders |= top.folders(entry.path, f"{part}/")
    if not folders:
        raise DataError(f"{remote.shown} holds no class folders; give the folder that is above them")
    chosen = _choose(remote, sorted({_class_of(name) for name in folders}), classes)
    folders = {name: entry for name, entry in folders.items() if _class_of(name) in chosen}

    def walk(item: tuple[str, RemoteEntry]) -> _Walk:
        below = _Walk(remote=remote)
        below.everything(*item)
        return below

    full: set[str] = set()
    for name, below in zip(folders, pool.map(walk, folders.items()), strict=True):
        top.wanted += below.wanted
        top.refused += below.refused
        top.sums |= below.sums
        if below.wanted or below.refused:
            full.add(_class_of(name))
    empty = tuple(name for name in chosen if name not in full)
    if empty and classes:
        raise DataError(
            f"class {empty[0]!r} holds no files at {remote.shown}; leave it out, or fill it there"
        )
    remote.budget.allow("bytes", sum(file.entry.size or 0 for file in top.wanted))
    names = {file.name for file in top.wanted} | {file.name for file in top.refused}
    return Plan(
        classes=tuple(chosen),
        wanted=tuple(replace(file, sha256=top.sums.get(file.name)) for file in top.wanted),
        refused=tuple(top.refused),
        empty=empty,
        missing=tuple(name for name in top.sums if name not in names and _is_within(name, folders)),
    )


def _class_of(name: str) -> str:
    return name.rpartition("/")[2]


def _choose(remote: Remote, known: Sequence[str], classes: Sequence[str]) -> list[str]:
    for name in classes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known[:5])}{more}"
            raise DataError(f"there is no class {name!r} at {remote.shown}; {hint}")
    return list(dict.fromkeys(classes)) or list(known)


def _is_within(name: str, folders: dict[str, RemoteEntry]) -> bool:
    above = name.split("/")
    return any("/".join(above[:depth]) in folders for depth in (1, 2))
