"""The files of a run beside its rows: `run.json`, `network.json`, `workload.json` and the CSV files.

Each method that writes returns what went wrong, or None: nothing here may end a training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from laptime.errors import NotARun
from laptime.files.text import first_line
from laptime.files.write import Reserve, locked, replacing, write_json
from laptime.model import Layer
from laptime.runs.directory import RESERVE_FILE
from laptime.runs.exporters import csv_files
from laptime.runs.health import Health, file_name
from laptime.runs.run import NETWORK_FILE, RUN_FILE, WORKLOAD_FILE, Run, read_document
from laptime.runs.schema import SCHEMA_VERSION

CSV_ROWS = 1_000_000  # 100 MB of CSV; a larger table is left to `laptime export`
RESERVE_BYTES = 65_536  # for a last `run.json` on a full disk; such files have 5 to 30 kB


class RunFiles:
    """What one rank writes; all but its health is rank 0's. `update` adds to what `run.json` says."""

    def __init__(self, path: Path, rank: int, update: Callable[..., None]) -> None:
        self.path = path
        self.rank = rank
        self._update = update
        self._network: dict[str, Any] | None = None  # not on disk yet
        self._workload: Callable[[], Mapping[str, Any] | None] | None = None  # not on disk yet
        self._reserve = Reserve(path / RESERVE_FILE, RESERVE_BYTES) if rank == 0 else None

    def network(self, layers: Sequence[Layer]) -> None:
        """Have the layers written, in order."""
        self._network = {"schema_version": SCHEMA_VERSION, "layers": list(layers)}

    def workload(self, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Have what `make` gives written."""
        self._workload = make

    def write_network(self) -> str | None:
        """Write the layers, if they are not on disk."""
        if self._network is None:
            return None
        try:
            write_json(self.path / NETWORK_FILE, self._network)
        except OSError as error:
            return f"{NETWORK_FILE} could not be written: {first_line(error)}"
        self._network = None
        self._update(outputs={"network": NETWORK_FILE})
        return None

    def write_workload(self) -> str | None:
        """Make and write the workload, if it is not on disk."""
        make, self._workload = self._workload, None
        if make is None:
            return None
        try:
            document = make()
            if document is not None:
                with replacing(self.path / WORKLOAD_FILE) as file:  # compact: it has a row for each operation
                    file.write(json.dumps(document).encode())
        except OSError as error:
            self._workload = self._workload or make
            return f"{WORKLOAD_FILE} could not be written: {first_line(error)}"
        except Exception as error:  # a fault of ours must not keep the steps from the disk
            self._update(summary={"workload": {"read": False, "reason": first_line(error)}})
            return None
        if document is not None:
            self._update(outputs={"workload": WORKLOAD_FILE})
        return None

    def write_document(self, document: Mapping[str, Any], health: Health) -> str | None:
        """Write `run.json`, at the price of the reserve where the disk is full; another rank, its health."""
        path = self.path / RUN_FILE
        if self.rank:
            path, document = self.path / file_name(self.rank), health.document()
            if not health.troubled and not path.exists():
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

    def write_csv(self, document: Mapping[str, Any]) -> str | None:
        """Write the CSV files of a run that is about to close; a rank that ends after rank 0, once more."""
        try:
            if self.rank:
                document = read_document(self.path)
                if document["status"] == "running":
                    return None
            with locked(self.path):  # or one that has read fewer rows would write after this one
                written = csv_files.write_csv(Run(self.path, document), most_rows=CSV_ROWS)
        except NotARun:
            return None  # rank 0 has not begun
        except Exception as error:  # the rows are on disk: `laptime export` can make these at any time
            return f"the CSV files could not be written: {first_line(error)}"
        self._update(outputs={f"csv_{path.stem}": path.relative_to(self.path).as_posix() for path in written})
        left_out = {"layers", "iterations"} - {path.stem for path in written}
        if left_out:
            names = [f"csv/{name}.csv" for name in sorted(left_out)]
            self._update(summary={"left_to_export": names})  # listed, so that nobody looks for it in vain
        return None

    def release(self) -> None:
        """Nothing more will be written."""
        if self._reserve is not None:
            self._reserve.release()
