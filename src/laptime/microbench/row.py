"""What a sweep finds, and its file."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from laptime.estimate.features import work
from laptime.estimate.fit import TimedOperation
from laptime.model import Operation, Phase

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
    workspace: int | None = None  # bytes; None where nobody looked

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
            one = row.operation
            sizes = json.dumps(dict(one.sizes))
            told = (one.name, one.kind, one.dtype, sizes, one.flops, one.read, one.written)
            table.writerow((*told, f"{row.device_us:.3f}", f"{row.host_us:.3f}", row.calls, row.workspace))


def read_rows(path: str | Path) -> Iterator[SweepRow]:
    """What `write_rows` wrote, packed or not."""
    opened = gzip.open if Path(path).suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            yield SweepRow(
                operation=Operation(
                    name=line["op"],
                    kind=line["kind"],
                    phase=Phase.FORWARD,
                    layer="",
                    dtype=line["dtype"],
                    sizes=json.loads(line["sizes"]),
                    flops=int(line["flops"]),
                    read=int(line["read"]),
                    written=int(line["written"]),
                ),
                device_us=float(line["device_us"]),
                host_us=float(line["host_us"]),
                calls=int(line["calls"]),
                workspace=int(line["workspace"]) if line.get("workspace") else None,
            )
