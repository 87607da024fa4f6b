"""Brings chosen classes of an image folder from elsewhere, and leaves alone what is here already.

Three things hold whatever goes wrong: a file has its name only when it is complete and checked; what was read
is not read again; nothing is written outside the folder.
"""

from __future__ import annotations

import difflib
import re
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from laptime.errors import DataError
from laptime.training.data.sync.remote import LocalRemote, Remote, RemoteEntry, RemoteError, SyncLimits
from laptime.training.data.sync.servers import open_remote
from laptime.training.data.sync.transfer import PART, Refused, Transfer, holding

__all__ = ["Refused", "SyncLimits", "Synced", "sync"]

Tell = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Tell]]
Pause = Callable[[float], None]
Outcome = Transfer | Refused | RemoteError
_AHEAD = 4  # jobs waiting for each thread: a million of them need not exist at once
_HOPELESS = 32  # failures in a row: the server is gone, not the file

SUMS = "SHA256SUMS"
"""Checksums as `sha256sum` writes them, in any folder on the way; names are relative to that folder."""
_SUM = re.compile(r"\\?([0-9a-fA-F]{64}) [ *](.+)")
_PARTS = ("train", "val", "validation")  # ImageNet's own layout: the classes are in each of these
_DEEPEST = 16
_LONGEST = 240  # bytes in a name; file systems take 255, and some of them less
_HIDDEN = "it is hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a synchronisation did."""

    remote: str  # without a password
    folder: Path
    classes: tuple[str, ...]
    files: int  # brought
    bytes: int  # read from the remote folder
    skipped: int  # here already
    verified: int  # of all files here, those that agree with a checksum from the remote folder
    refused: tuple[Refused, ...]
    empty: tuple[str, ...]  # classes that hold no files
    seconds: float


def sync(
    remote: str,
    folder: Path | str,
    *,
    classes: Sequence[str] = (),
    jobs: int = 8,
    limits: SyncLimits | None = None,
    bar: Bar = lambda title, total: nullcontext(lambda words: None),
    waiting: Callable[[str], AbstractContextManager[None]] = lambda title: nullcontext(),
    pause: Pause = time.sleep,
) -> Synced:
    """Bring `classes`, or all of them, from `remote` into `folder`.

    A `DataError` says in one line what is wrong. What had come by then is kept, and not read again.
    """
    started = time.perf_counter()
    folder = Path(folder).expanduser()
    with open_remote(remote, limits or SyncLimits()) as there, ThreadPoolExecutor(jobs, "sync") as pool:
        if isinstance(there, LocalRemote):
            ours, theirs = folder.resolve(), Path(there.root).resolve()
            if ours == theirs or ours in theirs.parents or theirs in ours.parents:
                raise DataError(
                    f"{folder} and {there.shown} hold each other; give a folder outside the other one"
                )
        with waiting(f"looking what is at {there.shown}"):
            plan = _survey(there, classes, pool, pause)
        with holding(folder, there.shown) as manifest:
            missing = [entry for name, entry in plan.wanted.items() if not (folder / name).exists()]
            needed = sum(entry.size or 0 for entry in missing)
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise DataError(
                    f"{folder} needs {needed / 1e9:.1f} GB and has {free / 1e9:.1f} GB free;"
                    " choose fewer classes or make room"
                )
            stop = threading.Event()
            transfer = partial(
                Transfer, remote=there, folder=folder, manifest=manifest, stop=stop, pause=pause
            )
            transfers = (
                transfer(name=name, entry=entry, sha256=plan.sums.get(name))
                for name, entry in plan.wanted.items()
            )
            with bar("synchronising", len(plan.wanted)) as tell:
                done = list(_outcomes(there, transfers, stop, pool, jobs, tell))
            _check_complete(done, plan, there)
            for above in {(folder / name).parent for name in plan.wanted}:
                if not above.is_symlink() and above.is_dir():
                    for part in above.glob(PART.format("?" * 16)):  # of versions that are there no longer
                        part.unlink(missing_ok=True)
    brought = [outcome for outcome in done if isinstance(outcome, Transfer)]
    return Synced(
        remote=there.shown,
        folder=folder,
        classes=plan.classes,
        files=sum(not file.was_here for file in brought),
        bytes=sum(file.read_bytes for file in brought),
        skipped=sum(file.was_here for file in brought),
        verified=sum(file.checked for file in brought),
        refused=(*plan.refused, *(outcome for outcome in done if isinstance(outcome, Refused))),
        empty=plan.empty,
        seconds=time.perf_counter() - started,
    )


def _outcomes(
    remote: Remote,
    transfers: Iterator[Transfer],
    stop: threading.Event,
    pool: ThreadPoolExecutor,
    jobs: int,
    tell: Tell,
) -> Iterator[Outcome]:
    """Every file's outcome as it comes. The first error that is not one file's own stops the others."""
    under_way: set[Future[Outcome]] = set()
    read_bytes, in_a_row, started = 0, 0, time.perf_counter()
    try:
        while True:
            room = jobs * _AHEAD - len(under_way)
            under_way |= {pool.submit(transfer.run) for transfer in islice(transfers, room)}
            if not under_way:
                return
            finished, under_way = wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED)
            remote.budget.allow("bytes", 0)  # the time is also over where nothing comes
            for outcome in (future.result() for future in finished):
                if isinstance(outcome, Transfer):
                    read_bytes += outcome.read_bytes
                in_a_row = in_a_row + 1 if isinstance(outcome, RemoteError) else 0
                if in_a_row >= _HOPELESS:
                    raise DataError(f"{in_a_row} files in a row did not come: {outcome}")
                tell(f"{read_bytes / 1e6 / max(time.perf_counter() - started, 1e-3):.1f} MB/s")
                yield outcome
    finally:
        stop.set()
        for future in under_way:
            future.cancel()
        wait(under_way)  # a minute where a server sends nothing


def _check_complete(done: Sequence[Outcome], plan: SyncPlan, remote: Remote) -> None:
    failed = [outcome for outcome in done if isinstance(outcome, RemoteError)]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise DataError(f"{len(failed)} of {len(done)} files did not come: {failed[0]}{more}")
    if plan.missing:
        raise DataError(
            f"{len(plan.missing)} files that SHA256SUMS names are not at {remote.shown},"
            f" such as {plan.missing[0]}; restore them there, or correct SHA256SUMS"
        )


# -- what to bring: every name is judged before it is used ------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SyncPlan:
    """What is below some folders of the remote one; names are those that files get below the target."""

    remote: Remote
    classes: tuple[str, ...] = ()
    wanted: dict[str, RemoteEntry] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    sums: dict[str, str] = field(default_factory=dict)  # SHA-256 of names
    empty: tuple[str, ...] = ()  # classes without a single file
    missing: list[str] = field(default_factory=list)  # named in SHA256SUMS, and not there

    def listed(self, path: str, above: str) -> Iterator[tuple[str, RemoteEntry, bool]]:
        """Each name below the target, its entry and whether it is a link; SHA256SUMS are read."""
        for entry in self.remote.entries(path):
            is_link = entry.kind == "link"
            if is_link:
                try:
                    entry = replace(self.remote.facts(entry), name=entry.name, path=entry.path)
                except RemoteError as error:
                    if error.passing:
                        raise  # else it leads nowhere
            if entry.kind == "file" and entry.name == SUMS:
                for line in self.remote.page(entry).splitlines():
                    if told := _SUM.fullmatch(line):
                        self.sums[above + told[2].removeprefix("./")] = told[1].lower()
            else:
                yield above + entry.name, entry, is_link

    def folders(self, path: str, above: str = "") -> dict[str, RemoteEntry]:
        """The folders directly in a folder, by their name below the target."""
        folders = {}
        for name, entry, _ in self.listed(path, above):
            reason = refusal(entry.name) if entry.kind == "folder" else _HIDDEN
            if reason is None:
                folders[name] = entry
            elif reason != _HIDDEN:  # .git and its like are nobody's classes
                self.refused.append(Refused(name=name, reason=reason))
        return folders

    def walk(self, name: str, folder: RemoteEntry) -> bool:
        """Take in every file below a class folder; whether there are any. Threads walk side by side."""
        holds_files = False
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
                if reason is None and entry.kind == "folder":
                    ahead.append((below, entry.path, depth + 1))
                    continue
                holds_files = True
                if reason is None:
                    self.wanted[below] = entry
                else:
                    self.refused.append(Refused(name=below, reason=reason))
        return holds_files


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


def _survey(
    remote: Remote, classes: Sequence[str], pool: ThreadPoolExecutor, pause: Pause, *, again: bool = True
) -> SyncPlan:
    """What `classes` hold, or all of the classes; a failure that may pass is tried a second time."""
    try:
        return _plan(remote, classes, pool)
    except RemoteError as error:
        if not error.passing or not again:
            raise DataError(str(error)) from error
        pause(1.0)
        return _survey(remote, classes, pool, pause, again=False)


def _plan(remote: Remote, classes: Sequence[str], pool: ThreadPoolExecutor) -> SyncPlan:
    """Classes are listed side by side, since a listing is mostly waiting."""
    plan = SyncPlan(remote=remote)
    folders = plan.folders(remote.root)
    if "train" in folders:
        parts = [(part, folders[part].path) for part in _PARTS if part in folders]
        folders = {
            name: entry for part, path in parts for name, entry in plan.folders(path, f"{part}/").items()
        }
    if not folders:
        raise DataError(f"{remote.shown} holds no class folders; give the folder that is above them")

    def class_of(folder: str) -> str:
        return folder.rpartition("/")[2]

    known = sorted(set(map(class_of, folders)))
    for name in classes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known[:5])}{more}"
            raise DataError(f"there is no class {name!r} at {remote.shown}; {hint}")
    plan.classes = tuple(dict.fromkeys(classes or known))
    folders = {name: entry for name, entry in folders.items() if class_of(name) in plan.classes}
    holding_files = pool.map(plan.walk, folders, folders.values())
    full = {class_of(name) for name, holds in zip(folders, holding_files, strict=True) if holds}
    plan.wanted = dict(sorted(plan.wanted.items()))
    plan.refused.sort(key=lambda file: file.name)
    plan.empty = tuple(name for name in plan.classes if name not in full)
    if plan.empty and classes:
        raise DataError(
            f"class {plan.empty[0]!r} holds no files at {remote.shown}; leave it out, or fill it there"
        )
    remote.budget.allow("bytes", sum(entry.size or 0 for entry in plan.wanted.values()))
    absent = plan.sums.keys() - plan.wanted.keys() - {file.name for file in plan.refused}
    tops = {name: name.split("/", 2) for name in sorted(absent)}
    plan.missing = [name for name, top in tops.items() if top[0] in folders or "/".join(top[:2]) in folders]
    return plan
