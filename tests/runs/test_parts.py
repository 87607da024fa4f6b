"""Part files under every crash: each row is read exactly once."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.samples import a_step

from laptime.runs import live_parts, parts, schema
from laptime.runs.parts import PartWriter, part_name
from laptime.runs.table_reader import StoredTable


def stored(directory: Path) -> StoredTable:
    return StoredTable(directory=directory, schema=schema.steps)


def step_numbers(directory: Path) -> list[int]:
    return stored(directory).read(["step"])["step"].to_pylist()


def fill(writer: PartWriter, flushes: range, rows: int = 2) -> None:
    for flush in flushes:
        numbers = range(flush * rows, (flush + 1) * rows)
        writer.write(schema.steps.table([a_step(number) for number in numbers]))
        writer.compact()


@pytest.fixture
def writer(tmp_path):
    return PartWriter(tmp_path / "steps", schema.steps, rank=0)


def test_a_thousand_flushes_leave_few_parts_and_every_row_in_order(writer, monkeypatch):
    monkeypatch.setattr(parts, "FAN", 4)
    fill(writer, range(300))
    assert len(live_parts(writer.directory)) <= 4 * 5
    assert step_numbers(writer.directory) == list(range(600))
    writer.compact_all()
    assert [path.name for path in writer.directory.iterdir()] == [part_name(0, 0, 299)]
    assert step_numbers(writer.directory) == list(range(600))


def test_a_row_is_rewritten_once_per_level_and_large_parts_are_left_alone(writer, monkeypatch):
    monkeypatch.setattr(parts, "FAN", 4)
    monkeypatch.setattr(parts, "LARGE_ROWS", 40)
    written = 0
    save = writer._save

    def counting(path, tables):
        nonlocal written
        tables = list(tables)
        written += sum(table.num_rows for table in tables)
        save(path, tables)

    monkeypatch.setattr(writer, "_save", counting)
    fill(writer, range(256))
    assert written <= 512 * 3  # the flush, 4 -> 8 rows, 16 -> 32 rows; 64 flushes would be 128 rows
    assert step_numbers(writer.directory) == list(range(512))


def test_merged_rows_are_regrouped_so_that_memory_stays_bounded(writer, monkeypatch):
    monkeypatch.setattr(parts, "GROUP_ROWS", 10)
    fill(writer, range(20), rows=3)
    writer.compact_all()
    (path,) = live_parts(writer.directory)
    with parts.open_part(path) as parquet:
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    assert groups == [9, 9, 9, 9, 9, 9, 6]


def test_hidden_files_and_covered_parts_are_left_out(tmp_path):
    for name in (
        part_name(0, 0, 3),
        part_name(0, 2, 2),
        part_name(0, 3, 3),
        part_name(0, 4, 4),
        part_name(1, 3, 3),
        part_name(12, 0, 0),
        ".part-r0-000005-000005.77.tmp",
        ".part-r0-000005-000005.parquet",
        "notes.txt",
    ):
        (tmp_path / name).touch()
    expected = [part_name(0, 0, 3), part_name(0, 4, 4), part_name(1, 3, 3), part_name(12, 0, 0)]
    assert [path.name for path in live_parts(tmp_path)] == expected


def test_a_parquet_file_of_another_name_is_read_too(writer):
    fill(writer, range(2))
    (path, _) = live_parts(writer.directory)
    path.rename(path.with_name("mine.parquet"))
    assert sorted(step_numbers(writer.directory)) == [0, 1, 2, 3]


def test_a_folder_that_is_not_there_has_no_parts(tmp_path):
    assert live_parts(tmp_path / "kernels") == []


class Killed(BaseException):
    """The process is gone: nothing after this may touch the disk."""


def kill_after(monkeypatch: pytest.MonkeyPatch, operations: int) -> None:
    """Stop every change to the disk after so many of them, as a kill would: no clean-up runs either."""
    left = operations

    def counted(function):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*args, **kwargs)

        return call

    for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


@pytest.mark.parametrize("closing", [False, True])
def test_a_kill_at_any_operation_of_merging_neither_loses_nor_doubles_a_row(tmp_path, closing):
    survived = False
    for operations in range(60):
        writer = PartWriter(tmp_path / str(operations), schema.steps, rank=0)
        done = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "FAN", 3)
            kill_after(patch, operations)
            try:
                for flush in range(9):
                    fill(writer, range(flush, flush + 1))
                    done = flush + 1
                if closing:
                    fill(writer, range(9, 10))
                    done = 10
                    writer.compact_all()
                survived = True
            except Killed:
                pass
        found = step_numbers(writer.directory)
        assert found == list(range(len(found)))
        assert done * 2 <= len(found) <= (done + 1) * 2
    assert survived  # the range of operations reached the end


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_half_done_merge_leaves_every_flush_covered_once(data):
    """Random histories of merges, each stopped after deleting any of the parts that it covers."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spans = [(n, n) for n in range(data.draw(st.integers(1, 20)))]
        for first, last in spans:
            (directory / part_name(0, first, last)).touch()
        for _ in range(data.draw(st.integers(0, 4))):
            low = data.draw(st.integers(0, len(spans) - 1))
            high = data.draw(st.integers(low, len(spans) - 1))
            if low == high:
                continue
            covered, merged = spans[low : high + 1], (spans[low][0], spans[high][1])
            (directory / part_name(0, *merged)).touch()
            for span in covered:
                if data.draw(st.booleans()):
                    (directory / part_name(0, *span)).unlink()
            spans[low : high + 1] = [merged]
        assert [path.name for path in live_parts(directory)] == [part_name(0, *span) for span in spans]


def test_a_reader_sees_each_row_once_while_parts_are_merged_under_it(writer):
    fill(writer, range(20))
    reader = stored(writer.directory).row_groups(["step"])
    seen = next(reader)["step"].to_pylist()
    writer.compact_all()  # every part that the reader had listed is gone now
    fill(writer, range(20, 22))
    for table in reader:
        seen += table["step"].to_pylist()
    assert seen == list(range(44))
