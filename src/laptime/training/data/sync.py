"""Brings chosen classes of an image folder from a remote place, and leaves alone what is here already.

Three things hold whatever goes wrong: a file has its name only when it is complete and checked; what was read
is not read again; nothing is written outside the folder.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from laptime.errors import DataError
from laptime.training.data.sync_manifest import Manifest, holding
from laptime.training.data.sync_places import LocalPlace, Place, Trouble, open_place
from laptime.training.data.sync_plan import Plan, Refused, survey
from laptime.training.data.sync_transfer import PART, Brought, Failed, bring

__all__ = ["Refused", "Synced", "sync"]

Tell = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Tell]]
_AHEAD = 4  # jobs waiting for each thread: a million of them need not exist at once
_HOPELESS = 32  # failures in a row: the place is gone, not the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a synchronisation did."""

    remote: str  # without a password
    folder: Path
    classes: tuple[str, ...]
    files: int  # brought
    bytes: int  # read from the remote place
    skipped: int  # here already
    verified: int  # of all files here, those that agree with a checksum from the remote place
    refused: tuple[Refused, ...]
    empty: tuple[str, ...]  # classes that hold no files
    seconds: float


def sync(
    remote: str,
    folder: Path | str,
    *,
    classes: Sequence[str] = (),
    jobs: int = 8,
    bar: Bar = lambda title, total: nullcontext(lambda words: None),
    waiting: Callable[[str], AbstractContextManager[None]] = lambda title: nullcontext(),
    pause: Callable[[float], None] = time.sleep,
) -> Synced:
    """Bring `classes`, or all of them, from `remote` into `folder`.

    A `DataError` says in one line what is wrong. What had come by then is kept, and not read again.
    """
    started = time.perf_counter()
    folder = Path(folder).expanduser()
    with open_place(remote) as place, ThreadPoolExecutor(jobs, "sync") as pool:
        _keep_apart(place, folder)
        with waiting(f"looking what is at {place.shown}"):
            plan = _survey(place, classes, pool, pause)
        with holding(folder, place.shown) as manifest:
            _make_room(plan, folder)
            with bar("synchronising", len(plan.wanted)) as tell:
                done = list(_all(place, plan, folder, manifest, pool, jobs, pause, tell))
            _judge(done, plan, place)
            _sweep(plan, folder)
    brought = [one for one in done if isinstance(one, Brought)]
    return Synced(
        remote=place.shown,
        folder=folder,
        classes=plan.classes,
        files=sum(not one.was_here for one in brought),
        bytes=sum(one.read_bytes for one in brought),
        skipped=sum(one.was_here for one in brought),
        verified=sum(one.checked for one in brought),
        refused=(*plan.refused, *(one for one in done if isinstance(one, Refused))),
        empty=plan.empty,
        seconds=time.perf_counter() - started,
    )


def _keep_apart(place: Place, folder: Path) -> None:
    if not isinstance(place, LocalPlace):
        return
    here, there = folder.resolve(), Path(place.root).resolve()
    if here == there or here in there.parents or there in here.parents:
        raise DataError(f"{folder} and {place.shown} hold each other; give a folder outside the other one")


def _survey(
    place: Place, classes: Sequence[str], pool: ThreadPoolExecutor, pause: Callable[[float], None]
) -> Plan:
    try:
        try:
            return survey(place, classes, pool)
        except Trouble as trouble:
            if not trouble.passing:
                raise
            pause(1.0)
            return survey(place, classes, pool)
    except Trouble as trouble:
        raise DataError(str(trouble)) from trouble


def _make_room(plan: Plan, folder: Path) -> None:
    """Hours of waiting for a disk that was too small from the start are worth one question."""
    needed = sum(one.entry.size or 0 for one in plan.wanted if not (folder / one.name).exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder} needs {needed / 1e9:.1f} GB and has {free / 1e9:.1f} GB free;"
            " choose fewer classes or make room"
        )


def _all(
    place: Place,
    plan: Plan,
    folder: Path,
    manifest: Manifest,
    pool: ThreadPoolExecutor,
    jobs: int,
    pause: Callable[[float], None],
    tell: Tell,
) -> Iterator[Brought | Failed | Refused]:
    """Every file's outcome as it comes. The first error that is not one file's own stops the others."""
    stop = threading.Event()
    ahead = iter(plan.wanted)
    under_way: set[Future[Brought | Failed | Refused]] = set()
    read_bytes, in_a_row, started = 0, 0, time.perf_counter()
    try:
        while True:
            room = jobs * _AHEAD - len(under_way)
            under_way |= {
                pool.submit(bring, place, one, folder, manifest, stop, pause) for one in islice(ahead, room)
            }
            if not under_way:
                return
            finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for outcome in (future.result() for future in finished):
                if isinstance(outcome, Brought):
                    read_bytes += outcome.read_bytes
                in_a_row = in_a_row + 1 if isinstance(outcome, Failed) else 0
                if isinstance(outcome, Failed) and in_a_row >= _HOPELESS:
                    raise DataError(f"{in_a_row} files in a row did not come: {outcome.reason}")
                tell(f"{read_bytes / 1e6 / max(time.perf_counter() - started, 1e-3):.1f} MB/s")
                yield outcome
    finally:
        stop.set()
        for future in under_way:
            future.cancel()
        wait(under_way)


def _judge(done: Sequence[Brought | Failed | Refused], plan: Plan, place: Place) -> None:
    failed = [one for one in done if isinstance(one, Failed)]
    if failed:
        raise DataError(
            f"{len(failed)} of {len(done)} files did not come: {failed[0].reason}"
            + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        )
    if plan.missing:
        raise DataError(
            f"{len(plan.missing)} files that SHA256SUMS names are not at {place.shown},"
            f" such as {plan.missing[0]}; restore them there, or correct SHA256SUMS"
        )


def _sweep(plan: Plan, folder: Path) -> None:
    """Everything has come: parts of files that have changed or gone meanwhile are of no use any more."""
    for above in {(folder / one.name).parent for one in plan.wanted}:
        if not above.is_symlink() and above.is_dir():
            for part in above.glob(PART.format("?" * 16)):
                part.unlink(missing_ok=True)
