"""Writes a run directory: rows are buffered, flushed as parts, and merged when the run closes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from laptime.errors import RunError, RunExists
from laptime.files.text import first_line, one_line
from laptime.files.write import plain, write_json
from laptime.model import Layer
from laptime.runs import heartbeat
from laptime.runs.directory import new_id, refuse_if_taken, remove_leftovers
from laptime.runs.disk_trouble import DiskTrouble
from laptime.runs.health import Health, lost_sentence, warn
from laptime.runs.lost_rows import settled
from laptime.runs.parts import PartWriter
from laptime.runs.row_buffer import RowBuffer
from laptime.runs.run import RUN_FILE, STATUSES, Run, read_document
from laptime.runs.run_files import RunFiles
from laptime.runs.schema import SCHEMA_VERSION, TABLES

BUFFERED_ROWS = 500_000  # per table, some 65 MB of layer rows: what a full disk may cost in memory


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
        self._files = RunFiles(path, rank, self.update)
        self._closed = False

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
            "heartbeat": heartbeat.beat(),
            "created": heartbeat.timestamp(),
            "config": plain(dict(config)),
            "environment": plain(dict(environment)),
            "summary": {},
            "outputs": {},
            "health": {},
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(directory, rank)
            if not (rank and joins):
                refuse_if_taken(directory, rank)
            if rank == 0:
                write_json(directory / RUN_FILE, document, exclusive=True)
        except FileExistsError:
            raise RunExists(f"{one_line(directory)} is taken already; give another directory") from None
        except OSError as error:
            raise RunError(f"no run can be written to {one_line(directory)}: {first_line(error)}") from error
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
        document |= {"status": "running", "heartbeat": heartbeat.beat()}
        document["environment"] = plain(dict(environment)) if environment else document["environment"]
        document["health"] = settled(run, rank).document()
        writer = cls(directory, rank, document, tell)
        for parts in writer._parts.values():
            parts.go_on()
        try:
            if rank == 0:
                write_json(directory / RUN_FILE, document)
        except OSError as error:
            raise RunError(f"no run can be written to {one_line(directory)}: {first_line(error)}") from error
        return writer

    @property
    def id(self) -> str:
        """The run's name: sorts by time, and no two runs share one. Rank 0 chooses it."""
        return str(self._document["id"] if self.rank == 0 else read_document(self.path)["id"])

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this is a fork of the process that opened the run."""
        return os.getpid() != self._process

    @property
    def health(self) -> Health:
        """How the writing goes, attempts before this one included."""
        with self._memory:
            return self._health()

    def _health(self) -> Health:
        before, buffers = self._before, self._buffers
        return self._trouble.health(
            written_rows={
                name: before.written_rows.get(name, 0) + buffer.written for name, buffer in buffers.items()
            },
            waiting_rows={name: buffer.waiting for name, buffer in buffers.items()},
            lost_rows={name: before.lost_rows.get(name, 0) + buffer.lost for name, buffer in buffers.items()},
            last_step=self._last_step,
            problem=self.problem,
            before=before,
        )

    def append(self, table_name: str, rows: Any) -> None:
        """Buffer rows, as `schema.TABLES[table_name]` makes them. Costs microseconds and writes nothing."""
        schema = TABLES[table_name].arrow
        if not rows.schema.equals(schema):
            rows = rows.select(schema.names).cast(schema)
        if self.foreign:
            return
        if self._closed:
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

    def flush(self, *, patient: bool = False) -> None:
        """Write what is buffered, one part per table, and the heartbeat. Never raises for a disk.

        `patient` leaves a disk that refused rows in peace until the next attempt is due.
        """
        if self.foreign:
            return
        with self._disk:
            if not patient or self._trouble.attempt_due:
                problems = [self._write(name) for name in TABLES]
                self._trouble.rows = next((problem for problem in problems if problem), None)
                self._trouble.plan_attempt(any(buffer.waiting for buffer in self._buffers.values()))
            problems = [self._trouble.rows, self._files.write_network(), self._files.write_workload()]
            self.problem = next((problem for problem in problems if problem), None)
            refused = self._write_document()
            self.problem = self.problem or refused
            if self.problem is not None and not self._trouble.told:
                self._trouble.told = True
                self._tell(
                    f"{one_line(self.path)}: {self.problem}; the training goes on, writing is tried again"
                )

    def network(self, layers: Sequence[Layer]) -> None:
        """Write the layers, in order; on a disk that refuses them, with the next flush."""
        if self.rank != 0 or self.foreign:
            return
        with self._disk:
            self._files.network(layers)
            self.problem = self._files.write_network() or self.problem

    def workload(self, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Have the next flush write what a step asks of a machine; made there, off the training thread."""
        if self.rank == 0 and not self.foreign:
            self._files.workload(make)

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

    def close(self, status: str = "finished", summary: Mapping[str, Any] | None = None) -> None:
        """Flush, merge the parts into one per table, write the CSV files.

        A second call does nothing, unless the disk was full at the first: then it tries again.
        """
        if status not in STATUSES or status == "running":
            raise ValueError(f"a run closes as {', '.join(STATUSES[1:])}, not {status!r}")
        if self.foreign:
            return
        with self._disk:
            if self._closed:
                return
            self.update(summary=summary)
            with self._memory:
                self._document["status"] = status
            self._trouble.told = True  # what follows is told below, with the rows that it cost
            self.flush()  # the status first: a kill while merging does not make a finished run interrupted
            self._compact_all()
            with self._memory:
                document = dict(self._document)
            self.problem = self._files.write_csv(document) or self.problem
            self.problem = self._write_document() or self.problem
            self._files.release()
            self._closed = self.problem is None
            self._tell_end()

    def _tell_end(self) -> None:
        """Report lost rows. Waiting rows count as lost: the process that closes a run is about to end."""
        counts = {
            name: (buffer.lost + buffer.waiting, buffer.written) for name, buffer in self._buffers.items()
        }
        for name, (lost, written) in counts.items():
            if lost:
                sentence = lost_sentence(name, lost, lost + written, self._trouble.reason)
                self._tell(f"{one_line(self.path)}: {sentence}")
                return
        if self.problem is not None:
            self._tell(f"{one_line(self.path)}: {self.problem}")

    def _write(self, name: str) -> str | None:
        """Write one table's buffered rows. What went wrong, or None."""
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
                self._trouble.refuse(first_line(error))
                return f"{rows.num_rows} rows of {name} are not on disk yet: {first_line(error)}"
            with self._memory:
                buffer.wrote(rows.num_rows)
            self.update(outputs={name: name})
        try:
            self._parts[name].compact()
        except Exception as error:
            return f"the parts of {name} could not be merged: {first_line(error)}"
        return None

    def _write_document(self) -> str | None:
        with self._memory:
            health = self._health()
            self._document |= {"heartbeat": heartbeat.beat(), "health": health.document()}
            document = dict(self._document)
        return self._files.write_document(document, health)

    def _compact_all(self) -> None:
        for name, parts in self._parts.items():
            try:
                parts.compact_all()
            except Exception as error:
                self.problem = f"the parts of {name} could not be merged: {first_line(error)}"
