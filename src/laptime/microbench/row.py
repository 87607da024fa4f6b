"""Rows of a sweep, and their CSV file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from laptime.errors import CalibrationError
from laptime.estimate.calibration import TimedOperation, work
from laptime.files.parse import build, parse_json, text
from laptime.files.read import MIB, open_text
from laptime.files.text import first_line, one_line
from laptime.model import Operation, Phase

ROWS_BYTES = 256 * MIB  # a sweep of 30,000 operations has 5 MB
_NUMBERS = ("sizes", "flops", "read", "written", "device_us", "host_us", "calls")
_COLUMNS = ("op", "kind", "dtype", *_NUMBERS, "workspace")


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
            done = row.operation
            sizes, times = json.dumps(dict(done.sizes)), (f"{row.device_us:.3f}", f"{row.host_us:.3f}")
            told = (done.name, done.kind, done.dtype, sizes, done.flops, done.read, done.written)
            table.writerow((*told, *times, row.calls, row.workspace))


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
    cells = [text(line[name]) for name in _NUMBERS]
    numbers = dict(zip(_NUMBERS, parse_json(f"[{','.join(cells)}]"), strict=True))
    texts = {"name": line["op"], "kind": line["kind"], "dtype": line["dtype"]}
    operation = build(Operation, {"phase": Phase.FORWARD, "layer": "", **texts, **numbers})
    workspace = parse_json(line["workspace"]) if line.get("workspace") else None
    return build(SweepRow, {**numbers, "operation": operation, "workspace": workspace})
