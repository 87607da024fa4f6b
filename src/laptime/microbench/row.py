"""Rows of a sweep, and their CSV file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import CalibrationError
from laptime.estimate.features import work
from laptime.estimate.fit import TimedOperation
from laptime.files.parse import parse_json
from laptime.files.read import MIB, open_text
from laptime.files.text import first_line, one_line
from laptime.files.typed import count, number, text
from laptime.model import Operation, Phase

ROWS_BYTES = 256 * MIB  # a sweep of 30,000 operations has 5 MB
_COLUMNS = (
    "op",
    "kind",
    "dtype",
    "sizes",
    "flops",
    "read",
    "written",
    "device_us",
    "host_us",
    "calls",
    "workspace",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """An operation, the median of its times, of how many calls, and the memory it took beside its results."""

    operation: Operation
    device_us: float
    host_us: float
    calls: int
    workspace: int | None = None  # bytes; None if not measured

    def timed(self) -> TimedOperation:
        """As a model is fitted to it."""
        return TimedOperation(
            name=self.operation.name,
            work=work(self.operation),
            device_us=self.device_us,
            host_us=self.host_us,
            workspace=self.workspace,
        )


def write_rows(rows: Iterable[SweepRow], path: str | Path) -> None:
    """One line for each; sizes as JSON."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(_COLUMNS)
        for row in rows:
            operation = row.operation
            sizes = json.dumps(dict(operation.sizes))
            told = (
                operation.name,
                operation.kind,
                operation.dtype,
                sizes,
                operation.flops,
                operation.read,
                operation.written,
            )
            table.writerow((*told, f"{row.device_us:.3f}", f"{row.host_us:.3f}", row.calls, row.workspace))


def read_rows(path: str | Path) -> Iterator[SweepRow]:
    """Read a file of `write_rows`, compressed or not."""
    try:
        with open_text(Path(path), most=ROWS_BYTES) as file:
            yield from map(_row, csv.DictReader(file))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, csv.Error) as error:
        raise CalibrationError(
            f"{one_line(path)} holds no rows of a sweep ({first_line(error)}); sweep anew"
        ) from None


def _row(line: Mapping[str, str]) -> SweepRow:
    given = {
        name: count(int(line[name]))
        for name in ("flops", "read", "written", "calls", "workspace")
        if line.get(name)
    }
    return SweepRow(
        operation=Operation(
            name=text(line["op"]),
            kind=text(line["kind"]),
            phase=Phase.FORWARD,
            layer="",
            dtype=text(line["dtype"]),
            sizes={text(name): count(size) for name, size in dict(parse_json(text(line["sizes"]))).items()},
            flops=given["flops"],
            read=given["read"],
            written=given["written"],
        ),
        device_us=number(float(line["device_us"])),
        host_us=number(float(line["host_us"])),
        calls=given["calls"],
        workspace=given.get("workspace"),
    )
