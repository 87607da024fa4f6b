"""CSV files for spreadsheets: layer times, iterations, and the experiment at each quarter of its way.

`layers.csv` and `iterations.csv` have the columns of the Parquet tables, null as an empty cell. Text is
written as it is: a layer called `=1+1` reads back as `=1+1`. Guarding against spreadsheets that would
evaluate it (a leading apostrophe) would break the round trip, and the names are those of the user's own
network on the user's own machine; whoever opens a stranger's CSV imports the name columns as text.
"""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from laptime.files.write import replacing
from laptime.model import Stage
from laptime.runs.document import as_text, settings
from laptime.runs.exporters import exporter
from laptime.runs.run import Run
from laptime.runs.select import Columns

CSV_DIRECTORY = "csv"
PERCENTS = (25, 50, 75, 100)
DUST_S = 1e-12  # no clock tells less; a sum of float64 does


def write_csv(run: Run, *, most_rows: int | None = None) -> list[Path]:
    """Write `csv/layers.csv`, `iterations.csv` and `experiment.csv`; return those written.

    A table of more than `most_rows` rows is left out; one without rows becomes a header.
    """
    directory = run.path / CSV_DIRECTORY
    directory.mkdir(exist_ok=True)
    written = []
    for path, table in ((directory / "layers.csv", "layers"), (directory / "iterations.csv", "steps")):
        stored = run.stored(table)
        if most_rows is None or stored.check() <= most_rows:
            with replacing(path) as file, pacsv.CSVWriter(file, stored.schema.arrow) as writer:
                for rows in stored.row_groups():  # one in memory at a time
                    writer.write_table(_without_dust(rows))
                    del rows  # or it would be in memory while the next is read
            written.append(path)
    pa.default_memory_pool().release_unused()  # before whole columns are read
    written.append(directory / "experiment.csv")
    _write_experiment(run, written)
    return written


@exporter("csv")
def export_csv(run: Run, out: Path | None = None) -> list[Path]:
    """The CSV files of a run, and copies of them in the folder `out`."""
    files = write_csv(run)
    if out is None:
        return files
    out.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(file, out / file.name)) for file in files]


def _without_dust(table: Any) -> Any:
    """The rows with 0 where rounding has left -8.67e-19 s: what is left of a wall time less its accounts."""
    for place, name in enumerate(table.column_names):
        if name.endswith("_s") or name == "seconds":
            column = table.column(name)
            dust = pc.and_(pc.less(pc.abs(column), DUST_S), pc.not_equal(column, 0.0))
            if pc.any(dust).as_py():
                table = table.set_column(place, table.schema.field(name), pc.if_else(dust, 0.0, column))
    return table


def _write_experiment(run: Run, written: list[Path]) -> None:
    """Four rows, each complete in itself, so that the files of many runs can be put under one another."""
    outputs = run.outputs | {f"csv_{path.stem}": path.relative_to(run.path).as_posix() for path in written}
    about = {
        "run": run.id,
        "status": run.status,
        "created": run.created.isoformat(),
        **{name: as_text(value) for name, value in settings(run.config, "config")},
        **{name: as_text(value) for name, value in settings(outputs, "output")},
    }
    rows = [quarter | about for quarter in _quarters(run)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing(written[-1]) as file:
        file.write(text.getvalue().encode())


def _quarters(run: Run) -> list[dict[str, Any]]:
    """Training, validation and missing seconds when 25, 50, 75 and 100 % of the training steps were done.

    Of the lowest rank, since ranks run side by side. A validation step counts once the training step before
    it does; what follows the last training step counts at 100 %. Missing is what no account explains.
    """
    columns = Columns.read(
        run.stored("steps"), ("stage", "attempt", "rank", "start_s", "wall_s", "unexplained_s")
    )
    pa.default_memory_pool().release_unused()  # the row groups that they were read from
    if columns.rows:
        columns = columns.where(columns["rank"] == columns["rank"].min())
    order = np.lexsort((columns["start_s"], columns["attempt"]))
    training = columns.equals("stage", Stage.TRAIN)[order]
    wall, missing = columns["wall_s"][order], columns["unexplained_s"][order]
    ends = np.flatnonzero(training)
    rows = []
    for percent in PERCENTS:
        done = -(-len(ends) * percent // 100)
        # the steps up to the next training step: the validation that follows belongs to this quarter
        upto = int(ends[done]) if done < len(ends) else len(order)
        part = slice(0, upto)
        rows.append(
            {
                "percent": percent,
                "iterations": done,
                "training_s": float(wall[part][training[part]].sum()),
                "validation_s": float(wall[part][~training[part]].sum()),
                "missing_s": total if abs(total := float(missing[part].sum())) >= DUST_S else 0.0,
            }
        )
    return rows
