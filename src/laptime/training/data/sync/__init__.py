"""Brings chosen classes of an image folder from elsewhere, and leaves alone what is here already.

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
from functools import partial
from itertools import islice
from pathlib import Path

from laptime.errors import DataError
from laptime.training.data.sync.manifest import holding
from laptime.training.data.sync.plan import Plan, Refused, survey
from laptime.training.data.sync.remote import LocalRemote, Remote, RemoteError, SyncLimits, open_remote
from laptime.training.data.sync.transfer import PART, Brought, Failed, Transfer

__all__ = ["Refused", "SyncLimits", "Synced", "sync"]

Tell = Callable[[str], None]
Bar = Callable[[str, int], AbstractContextManager[Tell]]
Outcome = Brought | Failed | Refused
_AHEAD = 4  # jobs waiting for each thread: a million of them need not exist at once
_HOPELESS = 32  # failures in a row: the server is gone, not the file


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
    pause: Callable[[float], None] = time.sleep,
) -> Synced:
    """Bring `classes`, or all of them, from `remote` into `folder`.

    A `DataError` says in one line what is wrong. What had come by then is kept, and not read again.
    """
    started = time.perf_counter()
    folder = Path(folder).expanduser()
    with open_remote(remote, limits or SyncLimits()) as there, ThreadPoolExecutor(jobs, "sync") as pool:
        _keep_apart(there, folder)
        with waiting(f"looking what is at {there.shown}"):
            plan = _survey(there, classes, pool, pause)
        with holding(folder, there.shown) as manifest:
            _make_room(plan, folder)
            stop = threading.Event()
            transfers = (
                Transfer(
                    remote=there, wanted=wanted, folder=folder, manifest=manifest, stop=stop, pause=pause
                )
                for wanted in plan.wanted
            )
            with bar("synchronising", len(plan.wanted)) as tell:
                done = list(_outcomes(there, transfers, stop, pool, jobs, tell))
            _judge(done, plan, there)
            _sweep(plan, folder)
    brought = [outcome for outcome in done if isinstance(outcome, Brought)]
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


def _keep_apart(remote: Remote, folder: Path) -> None:
    if not isinstance(remote, LocalRemote):
        return
    here, there = folder.resolve(), Path(remote.root).resolve()
    if here == there or here in there.parents or there in here.parents:
        raise DataError(f"{folder} and {remote.shown} hold each other; give a folder outside the other one")


def _survey(
    remote: Remote, classes: Sequence[str], pool: ThreadPoolExecutor, pause: Callable[[float], None]
) -> Plan:
    look = partial(survey, remote, classes, pool)
    try:
        try:
            return look()
        except RemoteError as error:
            if not error.passing:
                raise
            pause(1.0)
            return look()
    except RemoteError as error:
        raise DataError(str(error)) from error


def _make_room(plan: Plan, folder: Path) -> None:
    """Raise where the disk is too small, before anything is transferred."""
    needed = sum(file.entry.size or 0 for file in plan.wanted if not (folder / file.name).exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder} needs {needed / 1e9:.1f} GB and has {free / 1e9:.1f} GB free;"
            " choose fewer classes or make room"
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
        wait(under_way)  # a minute where a server sends nothing


def _judge(done: Sequence[Outcome], plan: Plan, remote: Remote) -> None:
    failed = [outcome for outcome in done if isinstance(outcome, Failed)]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise DataError(f"{len(failed)} of {len(done)} files did not come: {failed[0].reason}{more}")
    if plan.missing:
        raise DataError(
            f"{len(plan.missing)} files that SHA256SUMS names are not at {remote.shown},"
            f" such as {plan.missing[0]}; restore them there, or correct SHA256SUMS"
        )


def _sweep(plan: Plan, folder: Path) -> None:
    """Delete leftover part files once everything has been transferred."""
    for above in {(folder / file.name).parent for file in plan.wanted}:
        if not above.is_symlink() and above.is_dir():
            for part in above.glob(PART.format("?" * 16)):
                part.unlink(missing_ok=True)
