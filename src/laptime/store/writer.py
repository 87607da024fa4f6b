"""Writes a run directory: rows are buffered, flushed as parts, and merged when the run closes."""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from laptime.errors import RunError, RunExists
from laptime.record import Layer
from laptime.store import heartbeat, tables
from laptime.store.files import first_line, locked, one_line, plain, replacing, write_json
from laptime.store.parts import PartWriter, live
from laptime.store.run import NETWORK_FILE, RUN_FILE, STATUSES, WORKLOAD_FILE, Run, read_document
from laptime.store.schema import SCHEMA_VERSION, TABLES

BUFFERED_ROWS = 500_000  # per table, some 65 MB of layer rows: what a full disk may cost in memory
CSV_ROWS = 1_000_000  # 100 MB of CSV; a larger table is left to `laptime export`

_WRITING = (OSError, pa.ArrowException)  # what a full or failing disk raises; never let into a training loop


class RunWriter:
    """One rank's writer of a run directory. Rank 0 alone writes `run.json` and `network.json`.

    `append` and `update` only touch memory, so a training loop may call them while another thread flushes.
    A flush that fails keeps its rows, says so in `problem`, and is tried again by the next one.
    """

    def __init__(self, path: Path, rank: int, document: dict[str, Any]) -> None:
        self.path = path
        self.rank = rank
        self.problem: str | None = None
        self.dropped = dict.fromkeys(TABLES, 0)  # rows lost to a disk that stayed full
        self._document = document
        self._parts = {name: PartWriter(path / name, table, rank) for name, table in TABLES.items()}
        self._buffers: dict[str, deque[Any]] = {name: deque() for name in TABLES}
        self._buffered = dict.fromkeys(TABLES, 0)
        self._memory = threading.Lock()  # the buffers and the document; held for moments
        self._disk = threading.RLock()  # one flush at a time; held while writing
        self._workload: Callable[[], Mapping[str, Any] | None] | None = None  # not on disk yet
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
        }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not (rank and joins):
                _refuse_if_taken(directory, rank)
            if rank == 0:
                write_json(directory / RUN_FILE, document, exclusive=True)
        except FileExistsError:
            raise RunExists(f"{one_line(directory)} is taken already; give another directory") from None
        except OSError as error:
            raise RunError(f"no run can be written to {one_line(directory)}: {first_line(error)}") from error
        return cls(directory, rank, document)

    @classmethod
    def resume(
        cls, path: Path | str, *, environment: Mapping[str, Any] | None = None, rank: int = 0
    ) -> RunWriter:
        """Go on writing a run that has ended, or whose process is gone: its rows stay, new ones follow."""
        directory = Path(path)
        run = Run.load(directory)
        if rank == 0 and run.status == "running":
            raise RunError(
                f"{one_line(directory)} is written by process {run.heartbeat.get('pid')}; end that first"
            )
        document = read_document(directory)
        document |= {"status": "running", "heartbeat": heartbeat.beat()}
        document["environment"] = plain(dict(environment)) if environment else document["environment"]
        writer = cls(directory, rank, document)
        for parts in writer._parts.values():
            parts.go_on()
        if rank == 0:
            write_json(directory / RUN_FILE, document)
        return writer

    @property
    def id(self) -> str:
        """The run's name: sorts by time, and no two runs share one. Rank 0 chooses it."""
        return str(self._document["id"] if self.rank == 0 else read_document(self.path)["id"])

    @property
    def closed(self) -> bool:
        return self._closed

    def append(self, table_name: str, rows: Any) -> None:
        """Buffer rows, as `schema.TABLES[table_name]` makes them. Costs microseconds and writes nothing."""
        schema = TABLES[table_name].arrow
        if not rows.schema.equals(schema):
            rows = rows.select(schema.names).cast(schema)
        if self._closed:
            raise RunError(f"the run at {one_line(self.path)} is closed; no rows can be added")
        with self._memory:
            self._buffers[table_name].append(rows)
            self._buffered[table_name] += rows.num_rows
            full = self._buffered[table_name] > BUFFERED_ROWS
        if full and self.problem is None:
            self.flush()
        if full:
            self._trim(table_name)

    def flush(self) -> None:
        """Write what is buffered, one part per table, and the heartbeat. Never raises for a disk."""
        with self._disk:
            problems = [self._write(name) for name in TABLES]
            problems.append(self._write_workload())
            problems.append(self._write_document())
            self.problem = next((problem for problem in problems if problem), None)

    def network(self, layers: Sequence[Layer]) -> None:
        """Write the layers, in order."""
        if self.rank != 0:
            return
        with self._disk:
            try:
                document = {"schema_version": SCHEMA_VERSION, "layers": list(layers)}
                write_json(self.path / NETWORK_FILE, document)
            except OSError as error:
                self.problem = f"{NETWORK_FILE} could not be written: {first_line(error)}"
                return
        self.update(outputs={"network": NETWORK_FILE})

    def workload(self, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Have the next flush write what a step asks of a machine; made there, off the training thread."""
        if self.rank == 0:
            self._workload = make

    def update(
        self,
        *,
        summary: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to what `run.json` says; the next flush writes it. `outputs` are paths relative to the run."""
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
        with self._disk:
            if self._closed:
                return
            self.update(summary=summary)
            with self._memory:
                self._document["status"] = status
            self.flush()  # the status first: a kill while merging does not make a finished run interrupted
            self._compact_all()
            if self.rank == 0 or self._others_are_done():
                with locked(self.path):  # or a rank that has read fewer rows would write after this one
                    self._write_csv()
            if self.rank == 0:
                self.problem = self._write_document() or self.problem
            self._closed = self.problem is None

    def _write(self, name: str) -> str | None:
        """Write one table's buffered rows. What went wrong, or None."""
        with self._memory:
            pieces, rows = self._buffers[name], self._buffered[name]
            self._buffers[name], self._buffered[name] = deque(), 0
        if rows:
            try:
                self._parts[name].write(pa.concat_tables(pieces).combine_chunks())
            except _WRITING as error:
                self._give_back(name, pieces, rows)
                return f"{rows} rows of {name} are not on disk yet: {first_line(error)}"
            self.update(outputs={name: name})
        try:
            self._parts[name].compact()
        except _WRITING as error:
            return f"the parts of {name} could not be merged: {first_line(error)}"
        return None

    def _give_back(self, name: str, pieces: deque[Any], rows: int) -> None:
        with self._memory:
            pieces.extend(self._buffers[name])
            self._buffers[name] = pieces
            self._buffered[name] += rows
        self._trim(name)

    def _trim(self, name: str) -> None:
        """Drop the oldest rows past the bound, and count them: no training runs out of memory for us."""
        with self._memory:
            while self._buffered[name] > BUFFERED_ROWS and self._buffers[name]:
                lost = self._buffers[name].popleft().num_rows
                self._buffered[name] -= lost
                self.dropped[name] += lost
            if self.dropped[name]:
                lost_rows = {table: lost for table, lost in self.dropped.items() if lost}
                self._document["summary"] = self._document["summary"] | {"dropped_rows": lost_rows}

    def _write_workload(self) -> str | None:
        make, self._workload = self._workload, None
        if make is None:
            return None
        try:
            document = make()
            if document is not None:
                with replacing(self.path / WORKLOAD_FILE) as file:  # compact: it has a row for each operation
                    file.write(json.dumps(document).encode())
        except OSError as error:
            return f"{WORKLOAD_FILE} could not be written: {first_line(error)}"
        except Exception as error:  # a fault of ours must not keep the steps from the disk
            self.update(summary={"workload": {"read": False, "reason": first_line(error)}})
            return None
        if document is not None:
            self.update(outputs={"workload": WORKLOAD_FILE})
        return None

    def _write_document(self) -> str | None:
        if self.rank != 0:
            return None
        with self._memory:
            self._document["heartbeat"] = heartbeat.beat()
            document = dict(self._document)
        try:
            write_json(self.path / RUN_FILE, document)
        except OSError as error:
            return f"{RUN_FILE} could not be written: {first_line(error)}"
        return None

    def _compact_all(self) -> None:
        for name, parts in self._parts.items():
            try:
                parts.compact_all()
            except _WRITING as error:
                self.problem = f"the parts of {name} could not be merged: {first_line(error)}"

    def _others_are_done(self) -> bool:
        """Whether rank 0 has closed the run: then the CSV files lack what came after."""
        with suppress(RunError):
            return bool(read_document(self.path)["status"] != "running")
        return False

    def _write_csv(self) -> None:
        document = self._document
        try:
            if self.rank:
                document = read_document(self.path)
            written = tables.write_csv(Run(self.path, document), most_rows=CSV_ROWS)
        except (*_WRITING, RunError) as error:
            self.problem = f"the CSV files could not be written: {first_line(error)}"
            return
        self.update(outputs={f"csv_{path.stem}": path.relative_to(self.path).as_posix() for path in written})
        left_out = {"layers", "iterations"} - {path.stem for path in written}
        if left_out:
            names = [f"csv/{name}.csv" for name in sorted(left_out)]
            self.update(summary={"left_to_export": names})  # listed, so that nobody looks for it in vain


def new_id() -> str:
    """A run id: the time in UTC, so that ids sort, and six random digits, so that none comes twice."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _refuse_if_taken(directory: Path, rank: int) -> None:
    """Raise RunExists unless this rank may start a run here."""
    shown = one_line(directory)
    if (directory / RUN_FILE).exists():
        run = Run.load(directory) if rank else None
        if run is None or run.status != "running":
            raise RunExists(f"{shown} already holds a run; give another directory")
    if any(part.rank == rank for name in TABLES for part in live(directory / name)):
        raise RunExists(f"{shown} already holds rows of rank {rank}; give another directory")
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in TABLES)
    if rank == 0 and foreign:
        raise RunExists(f"{shown} is not empty (it holds {one_line(foreign[0])}); give another directory")


def discard(path: Path) -> bool:
    """Delete a run that was a false start; False, with nothing deleted, if its folder holds anything else."""
    folders = {"csv", *TABLES}
    mine = [path / RUN_FILE, path / NETWORK_FILE, path / WORKLOAD_FILE]
    for folder in folders:
        mine += [file for file in (path / folder).glob("*") if file.suffix in (".parquet", ".csv", ".tmp")]
    found = {
        file
        for file in path.rglob("*")
        if not (file.is_dir() and file.parent == path and file.name in folders)
    }
    if not found <= set(mine):
        return False
    for file in found:
        file.unlink(missing_ok=True)
    for folder in sorted(folders):
        if (path / folder).is_dir():
            (path / folder).rmdir()
    path.rmdir()
    return True
