"""Runs of every schema version are read: those in `data` were written by the code of their time."""

import dataclasses
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laptime.errors import DamagedRun
from laptime.runs import RunWriter, load, query, schema
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.parts import live_parts

RUNS = sorted((Path(__file__).parent / "data").glob("run-v*"))
VERSIONS = range(1, schema.SCHEMA_VERSION + 1)


@pytest.fixture(params=RUNS, ids=[run.name for run in RUNS])
def older(request, tmp_path):
    """A copy of an older run."""
    return Path(shutil.copytree(request.param, tmp_path / "run"))


def rewrite(run, table, change):
    """Have a part hold other columns."""
    (part,) = live_parts(run / table)
    pq.write_table(change(pq.read_table(part)), part)


def test_a_run_of_every_schema_version_is_kept():
    kept = [json.loads((run / "run.json").read_text())["schema_version"] for run in RUNS]
    assert kept == list(VERSIONS)


def test_an_older_run_is_read_whole(older):
    run = load(older)
    assert [step.step for step in run.steps] == [0, 1, 2, 3, 4]
    assert [layer.name for layer in run.network] == ["0", "2"]
    assert [layer.layer for layer in run.layers()] == ["0", "2", "(loss)"]
    assert run.kernel_table.num_rows
    assert len(run.accounts()) == len(schema.ACCOUNTS)


@pytest.mark.parametrize("column", ["topn", "samples", "loss"])
def test_a_column_that_a_part_is_older_than_is_null(older, column):
    rewrite(older, "steps", lambda table: table.drop_columns([column]))
    run = load(older)
    assert run.steps.table.schema.equals(schema.steps.arrow)
    assert run.steps.table[column].null_count == 5
    assert all(getattr(step, column) is None for step in run.steps)
    assert run.stored("steps").read([column, "step"], coded=True)["step"].to_pylist() == [0, 1, 2, 3, 4]
    header = write_csv(run)[1].read_text().splitlines()[0]
    assert column in header


def test_an_account_that_a_part_is_older_than_has_no_seconds(older):
    def without_copy(table):
        host = pa.compute.add(table["host_s"], table["copy_s"])
        place = table.column_names.index("host_s")
        return table.set_column(place, "host_s", host).drop_columns(["copy_s"])

    rewrite(older, "steps", without_copy)
    assert {step.copy_s for step in load(older).steps} == {0.0}
    assert load(older).accounts()["copy"].total_s == 0.0


def test_a_column_of_a_newer_laptime_is_passed_over(older):
    rewrite(older, "steps", lambda table: table.append_column("later", pa.array([1.5] * 5)))
    assert load(older).steps.table.schema.equals(schema.steps.arrow)


def test_a_part_without_what_every_row_needs_is_damaged(older):
    rewrite(older, "steps", lambda table: table.drop_columns(["wall_s"]))
    with pytest.raises(DamagedRun, match="its columns are not those of the table steps"):
        load(older).steps.table  # noqa: B018


def test_a_string_column_that_a_part_is_older_than_is_null_in_codes_too(older):
    text = schema.StoredColumn(
        name="place", type=str, bits=64, nullable=True, default=None, meaning="where", logged=False
    )
    newer = dataclasses.replace(
        schema.steps,
        columns=(*schema.steps.columns, text),
        arrow=schema.steps.arrow.append(pa.field("place", pa.string())),
        defaults={**schema.steps.defaults, "place": None},
    )
    stored = dataclasses.replace(load(older).stored("steps"), schema=newer)
    assert stored.read(["place"], coded=True)["place"].null_count == 5


def test_an_older_run_that_is_resumed_merges_its_parts_with_the_new_ones(older):
    rewrite(older, "steps", lambda table: table.drop_columns(["topn"]))
    last = load(older).steps[-1]
    writer = RunWriter.resume(older)
    writer.append("steps", schema.steps.table([dataclasses.replace(last, step=5, topn=0.5)]))
    writer.close("finished", {})
    assert load(older).steps.table["topn"].to_pylist() == [None] * 5 + [0.5]
    assert len(live_parts(older / "steps")) == 1


def test_a_query_has_columns_that_some_runs_are_older_than(older, tmp_path):
    rewrite(older, "steps", lambda table: table.drop_columns(["topn"]))
    both = [older, RUNS[-1]] if load(older).id != load(RUNS[-1]).id else [older]
    answer = query("SELECT count(*) AS rows, count(topn) AS known FROM steps", both)
    assert answer.table.to_pylist() == [{"rows": 5 * len(both), "known": 0}]
