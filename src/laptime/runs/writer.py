"""Writes a run directory: rows are buffered, flushed as parts, and merged when the run closes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from laptime.errors import NotARun, RunError, RunExists
from laptime.files.text import first_line, one_line
from laptime.files.write import Reserve, locked, plain, replacing, write_json
from laptime.model import Layer
from laptime.model.exchanges import RankExchanges
from laptime.runs.directory import RESERVE_FILE, beat, new_id, refuse_if_taken, remove_leftovers, timestamp
from laptime.runs.document import NETWORK_FILE, RUN_FILE, STATUSES, WORKLOAD_FILE, Health, read_document
from laptime.runs.exchanges import exchanges_path
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.health import lost_sentence, settled, warn
from laptime.runs.parts import PartWriter
from laptime.runs.run import Run
from laptime.runs.schema import SCHEMA_VERSION, TABLES

BUFFERED_ROWS = 500_000  # per table, some 65 MB of layer rows: what a full disk may cost in memory
CSV_ROWS = 1_000_000  # 100 MB of CSV; a larger table is left to `laptime export`
RESERVE_BYTES = 65_536  # for a last `run.json` on a full disk; such files have 5 to 30 kB
FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 30.0  # each attempt encodes all waiting rows, up to a second of a core that trains


class RowBuffer:
    """Rows of a table that are not on disk yet, and what became of those before. Its owner locks it."""

    def __init__(self) -> None:
        self._pieces: deque[Any] = deque()
        self.rows = 0  # in memory
        self.waiting = 0  # of these, refused by the disk once
        self.written = 0
        self.lost = 0

    def append(self, piece: Any) -> None:
        self._pieces.append(piece)
        self.rows += piece.num_rows

    def take(self) -> list[Any]:
        """All rows, to be written; the caller then adds to `written`, or calls `give_back`."""
        pieces = list(self._pieces)
        self._pieces.clear()
        self.rows = self.waiting = 0
        return pieces

    def give_back(self, pieces: list[Any]) -> None:
        """The disk refused what was taken: it comes before whatever was appended meanwhile."""
        self._pieces.extendleft(reversed(pieces))
        self.waiting = sum(piece.num_rows for piece in pieces)
        self.rows += self.waiting

    def trim(self, most: int) -> None:
        """Drop the oldest rows past `most`, and count them: no training runs out of memory for us."""
        while self.rows > most and self._pieces:
            dropped = self._pieces.popleft().num_rows
            self.rows -= dropped
            self.waiting = max(0, self.waiting - dropped)
            self.lost += dropped


class DiskTrouble:
    """A writer's record of failed writes: since when, why, and when to try again."""

    def __init__(self) -> None:
        self.rows: str | None = None  # what happened to rows at the last attempt
        self.reason: str | None = None
        self.since: str | None = None
        self.told = False
        self.failed_checkpoints = 0
        self.checkpoint_reason: str | None = None
        self._retry_s = FIRST_RETRY_S
        self._next_s: float | None = None  # on the monotonic clock

    @property
    def attempt_due(self) -> bool:
        """Whether rows should be written now: always, but right after they were refused."""
        return self._next_s is None or time.monotonic() >= self._next_s

    @property
    def next_attempt(self) -> str | None:
        """The time of day of the next attempt, where rows wait for it."""
        if self._next_s is None:
            return None
        when = datetime.now(UTC) + timedelta(seconds=self._next_s - time.monotonic())
        return when.isoformat(timespec="milliseconds")

    def plan_attempt(self, waiting: bool) -> None:
        """After an attempt: when to make the next, twice as far away each time."""
        if not waiting:
            self._next_s, self._retry_s = None, FIRST_RETRY_S
            return
        self._next_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)


class RunWriter:
    """One rank's writer of a run directory. Rank 0 alone writes `run.json` and `network.json`.

    `append` and `update` only touch memory, so a training loop may call them while another thread flushes.
    A flush that fails keeps its rows, says so in `problem` and once by `tell` (otherwise by a warning), and
    the next one tries again.
    Only the process that opened the run writes to it: in a fork of it every call does nothing.
    """

    def __init__(
        self, path: Path, rank: int, document: dict[str, Any], tell: Callable[[str], None] | None = None
    ) -> None:
        self.path = path
        self.rank = rank
        self.problem: str | None = None
        self.closed = False
        self._tell = tell or warn
        self._process = os.getpid()
        self._document = document
        self._before = Health.of(document["health"])  # of earlier attempts
        self._trouble = DiskTrouble()
        self._parts = {name: PartWriter(path / name, table, rank) for name, table in TABLES.items()}
        self._buffers = {name: RowBuffer() for name in TABLES}
        self._last_step = self._before.last_step
        self._memory = threading.Lock()  # the buffers and the document; held for moments
        self._disk = threading.RLock()  # one flush at a time; held while writing
        self._network: dict[str, Any] | None = None  # not on disk yet
        self._workload: Callable[[], Mapping[str, Any] | None] | None = None  # not on disk yet
        self._exchanges: Callable[[], RankExchanges | None] = lambda: None
        self._reserve = Reserve(path / RESERVE_FILE, RESERVE_BYTES) if rank == 0 else None

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        rank: int = 0,
        joins: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> RunWriter:
        """Start a run at `path`, a directory that is new or empty. Nothing is ever overwritten.

        The other ranks of a run join the same directory, in whichever order they come. `joins`: whoever asks
        knows that the run there is theirs, so they may come after rank 0 has closed it.
        """
        directory = Path(path)
        document = {
            "schema_version": SCHEMA_VERSION,
            "id": new_id(),
            "status": "running",
            "heartbeat": beat(),
            "created": timestamp(),
            "config": plain(dict(config)),
            "environment": plain(dict(environment)),
            "summary": {},
            "outputs": {},
            "health": {},
        }
        with _started(directory):
            directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(directory, rank)
            if not (rank and joins):
                refuse_if_taken(directory, rank)
            if rank == 0:
                write_json(directory / RUN_FILE, document, exclusive=True)
        return cls(directory, rank, document, tell)

    @classmethod
    def resume(
        cls,
        path: Path | str,
        *,
        environment: Mapping[str, Any] | None = None,
        rank: int = 0,
        tell: Callable[[str], None] | None = None,
    ) -> RunWriter:
        """Go on writing a run that has ended, or whose process is gone: its rows stay, new ones follow."""
        directory = Path(path)
        run = Run.load(directory)
        if rank == 0 and run.status == "running":
            raise RunError(
                f"{one_line(directory)} is written by process {run.heartbeat.get('pid')}; end that first"
            )
        remove_leftovers(directory, rank)
        document = read_document(directory)
        document |= {"status": "running", "heartbeat": beat()}
        document["environment"] = plain(dict(environment)) if environment else document["environment"]
        document["health"] = asdict(settled(run, rank))
        writer = cls(directory, rank, document, tell)
        for parts in writer._parts.values():
            parts.go_on()
        if rank == 0:
            with _started(directory):
                write_json(directory / RUN_FILE, document)
        return writer

    @property
    def id(self) -> str:
        """The run's name: sorts by time, and no two runs share one. Rank 0 chooses it."""
        return str(self._document["id"] if self.rank == 0 else read_document(self.path)["id"])

    @property
    def foreign(self) -> bool:
        """Whether this is a fork of the process that opened the run."""
        return os.getpid() != self._process

    @property
    def health(self) -> Health:
        """How the writing goes, attempts before this one included."""
        before, trouble, buffers = self._before, self._trouble, self._buffers.items()
        with self._memory:
            return Health(
                written_rows={
                    name: before.written_rows.get(name, 0) + rows.written for name, rows in buffers
                },
                waiting_rows={name: rows.waiting for name, rows in buffers},
                lost_rows={name: before.lost_rows.get(name, 0) + rows.lost for name, rows in buffers},
                last_step=self._last_step,
                problem=self.problem,
                reason=trouble.reason or before.reason,
                since=trouble.since or before.since,
                next_attempt=trouble.next_attempt,
                failed_checkpoints=before.failed_checkpoints + trouble.failed_checkpoints,
                checkpoint_reason=trouble.checkpoint_reason or before.checkpoint_reason,
            )

    def append(self, table_name: str, rows: Any) -> None:
        """Buffer rows, as `schema.TABLES[table_name]` makes them. Costs microseconds and writes nothing."""
        schema = TABLES[table_name].arrow
        if not rows.schema.equals(schema):
            rows = rows.select(schema.names).cast(schema)
        if self.foreign:
            return
        if self.closed:
            raise RunError(f"the run at {one_line(self.path)} is closed; no rows can be added")
        buffer = self._buffers[table_name]
        with self._memory:
            buffer.append(rows)
            full = buffer.rows > BUFFERED_ROWS
        if full and self.problem is None:
            self.flush()
        if full:
            with self._memory:
                buffer.trim(BUFFERED_ROWS)

    def network(self, layers: Sequence[Layer]) -> None:
        """Write the layers, in order; on a disk that refuses them, with the next flush."""
        if self.rank != 0 or self.foreign:
            return
        with self._disk:
            self._network = {"schema_version": SCHEMA_VERSION, "layers": list(layers)}
            self.problem = self._write_network() or self.problem

    def workload(self, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Have the next flush write what a step asks of a machine; made there, off the training thread."""
        if self.rank == 0 and not self.foreign:
            self._workload = make

    def exchanges(self, make: Callable[[], RankExchanges | None]) -> None:
        """Have every flush but the patient ones write what this rank has exchanged so far."""
        self._exchanges = make

    def checkpoint_failed(self, reason: str) -> None:
        """Count a checkpoint that could not be written."""
        if not self.foreign:
            self._trouble.failed_checkpoints += 1
            self._trouble.checkpoint_reason = reason

    def update(
        self,
        *,
        summary: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to what `run.json` says; the next flush writes it. `outputs` are paths relative to the run."""
        if self.foreign:
            return
        given = {"summary": summary, "config": config, "environment": environment, "outputs": outputs}
        # Copied now: the caller may go on changing what it handed over.
        copies = {key: plain(dict(value)) for key, value in given.items() if value}
        with self._memory:
            for key, value in copies.items():
                self._document[key] = self._document[key] | value

    def flush(self, *, patient: bool = False) -> None:
        """Write what is buffered, one part per table, and the heartbeat. Never raises for a disk.

        `patient` leaves a disk that refused rows in peace until the next attempt is due.
        """
        if self.foreign:
            return
        with self._disk:
            if not patient or self._trouble.attempt_due:
                problems = [self._write(name) for name in TABLES]
                self._trouble.rows = next(filter(None, problems), None)
                self._trouble.plan_attempt(any(buffer.waiting for buffer in self._buffers.values()))
            network, workload = self._write_network(), self._write_workload()
            exchanges = None if patient else self._write_exchanges()
            self.problem = self._trouble.rows or network or workload or exchanges
            refused = self._write_document()
            self.problem = self.problem or refused
            if self.problem is not None and not self._trouble.told:
                self._trouble.told = True
                self._tell(
                    f"{one_line(self.path)}: {self.problem}; the training goes on, writing is tried again"
                )

    def close(self, status: str = "finished", summary: Mapping[str, Any] | None = None) -> None:
        """Flush, merge the parts into one per table, write the CSV files.

        A second call does nothing, unless the disk was full at the first: then it tries again.
        """
        if status not in STATUSES or status == "running":
            raise ValueError(f"a run closes as {', '.join(STATUSES[1:])}, not {status!r}")
        if self.foreign:
            return
        with self._disk:
            if self.closed:
                return
            self.update(summary=summary)
            with self._memory:
                self._document["status"] = status
            self._trouble.told = True  # what follows is told below, with the rows that it cost
            self.flush()  # the status first: a kill while merging does not make a finished run interrupted
            for name, parts in self._parts.items():
                self.problem = self._merge(name, parts.compact_all) or self.problem
            # Arrow keeps what it freed: a million steps would leave 110 MiB with a process that goes on.
            pa.default_memory_pool().release_unused()
            self.problem = self._write_csv() or self.problem
            pa.default_memory_pool().release_unused()
            self.problem = self._write_document() or self.problem
            if self._reserve is not None:
                self._reserve.release()
            self.closed = self.problem is None
            told = self.problem
            for name, buffer in reversed(self._buffers.items()):  # of the first table that lost rows
                # Waiting rows count as lost: the process that closes a run is about to end.
                if lost := buffer.lost + buffer.waiting:
                    told = lost_sentence(name, lost, lost + buffer.written, self._trouble.reason)
            if told is not None:
                self._tell(f"{one_line(self.path)}: {told}")

    # -- what is written, each with what went wrong or None: nothing here may end a training --------

    def _write(self, name: str) -> str | None:
        """One table's buffered rows."""
        buffer = self._buffers[name]
        with self._memory:
            pieces = buffer.take()
        if pieces:
            rows = pa.concat_tables(pieces).combine_chunks()
            if name == "steps":
                self._last_step = max(self._last_step or 0, pc.max(rows["step"]).as_py() or 0)
            try:
                self._parts[name].write(rows)
            except Exception as error:  # mostly a disk; whatever it is, the rows are kept
                with self._memory:
                    buffer.give_back(pieces)
                    buffer.trim(BUFFERED_ROWS)
                self._trouble.reason = first_line(error)
                self._trouble.since = self._trouble.since or timestamp()
                return f"{rows.num_rows} rows of {name} are not on disk yet: {first_line(error)}"
            with self._memory:
                buffer.written += rows.num_rows
            self.update(outputs={name: name})
        return self._merge(name, self._parts[name].compact)

    def _merge(self, name: str, merge: Callable[[], None]) -> str | None:
        try:
            merge()
        except Exception as error:
            return f"the parts of {name} could not be merged: {first_line(error)}"
        return None

    def _write_network(self) -> str | None:
        if self._network is not None:
            try:
                write_json(self.path / NETWORK_FILE, self._network)
            except OSError as error:
                return f"{NETWORK_FILE} could not be written: {first_line(error)}"
            self._network = None
            self.update(outputs={"network": NETWORK_FILE})
        return None

    def _write_workload(self) -> str | None:
        make, self._workload = self._workload, None
        if make is None:
            return None
        try:
            document = make()
            if document is not None:
                with replacing(self.path / WORKLOAD_FILE) as file:  # compact: it has a row for each operation
                    file.write(json.dumps(document).encode())
                self.update(outputs={"workload": WORKLOAD_FILE})
        except OSError as error:
            self._workload = self._workload or make
            return f"{WORKLOAD_FILE} could not be written: {first_line(error)}"
        except Exception as error:  # a fault of ours must not keep the steps from the disk
            self.update(summary={"workload": {"read": False, "reason": first_line(error)}})
        return None

    def _write_exchanges(self) -> str | None:
        path = exchanges_path(self.path, self.rank)
        try:
            exchanged = self._exchanges()
            if exchanged is not None:
                write_json(path, asdict(exchanged))
        except Exception as error:
            return f"{path.name} could not be written: {first_line(error)}"
        return None

    def _write_document(self) -> str | None:
        """`run.json`, at the price of the reserve where the disk is full; another rank, its health."""
        health = self.health
        path, document = self.path / f"health-r{self.rank}.json", asdict(health)
        if self.rank == 0:
            with self._memory:
                self._document |= {"heartbeat": beat(), "health": document}
                path, document = self.path / RUN_FILE, dict(self._document)
        elif not health.troubled and not path.exists():
            return None
        try:
            try:
                write_json(path, document)
            except OSError:
                if self._reserve is None or not self._reserve.release():
                    raise
                write_json(path, document)
        except OSError as error:
            return f"{path.name} could not be written: {first_line(error)}"
        if self._reserve is not None:
            self._reserve.take()
        return None

    def _write_csv(self) -> str | None:
        """The CSV files of a run that is about to close; a rank that ends after rank 0, once more."""
        try:
            with self._memory:
                document = dict(self._document)
            if self.rank:
                document = read_document(self.path)
                if document["status"] == "running":
                    return None
            with locked(self.path):  # or one that has read fewer rows would write after this one
                written = write_csv(Run(self.path, document), most_rows=CSV_ROWS)
        except NotARun:
            return None  # rank 0 has not begun
        except Exception as error:  # the rows are on disk: `laptime export` can make these at any time
            return f"the CSV files could not be written: {first_line(error)}"
        self.update(outputs={f"csv_{path.stem}": path.relative_to(self.path).as_posix() for path in written})
        left_out = {"layers", "iterations"} - {path.stem for path in written}
        if left_out:
            names = [f"csv/{name}.csv" for name in sorted(left_out)]
            self.update(summary={"left_to_export": names})  # listed, so that nobody looks for it in vain
        return None


@contextmanager
def _started(directory: Path) -> Iterator[None]:
    """Turns what keeps a run from starting into one line."""
    try:
        yield
    except FileExistsError:
        raise RunExists(f"{one_line(directory)} is taken already; give another directory") from None
    except OSError as error:
        raise RunError(f"no run can be written to {one_line(directory)}: {first_line(error)}") from error


def set_status(path: Path, status: str, *, instead_of: str) -> None:
    """Correct the status of a run that nobody writes any more: who started its ranks knows how they ended."""
    with suppress(RunError):  # there is none
        document = read_document(path)
        if document["status"] == instead_of:
            write_json(path / RUN_FILE, document | {"status": status})


def add_notes(path: Path, notes: Sequence[str]) -> None:
    """Add remarks to a run that nobody writes any more: what its launcher knows and its ranks do not."""
    if not notes:
        return
    with suppress(RunError):  # there is none
        document = read_document(path)
        summary = document["summary"]
        summary["notes"] = [*(summary.get("notes") or ()), *notes]
        write_json(path / RUN_FILE, document)
