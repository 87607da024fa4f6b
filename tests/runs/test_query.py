import os
import random
import shutil

import pyarrow.parquet as pq
import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_layer_time, add_steps, start

from laptime.errors import QueryError
from laptime.runs import TABLES, find_runs, load, query, schema

ODD_FOLDERS = [
    "plain",
    "it's",
    'double "quoted"',
    "with space",
    "brackets[ab]",
    "star*",
    "question?",
    "braces{a,b}",
    "lr=0.1",
    "percent%20",
    "ünï层",
    "semi;--",
    "back\\slash",
    "new\nline",
]


def values(sql, runs):
    answer = query(sql, runs)
    assert answer.warnings == ()
    return [tuple(row.values()) for row in answer.table.to_pylist()]


def test_an_empty_folder_has_empty_views_with_the_right_columns(tmp_path):
    for name, table in TABLES.items():
        answer = query(f"SELECT * FROM {name}", tmp_path)
        assert answer.table.column_names == ["run", *table.arrow.names]
        assert answer.table.num_rows == 0
    answer = query("SELECT * FROM runs", tmp_path)
    assert answer.table.column_names == [
        "id",
        "path",
        "status",
        "created",
        "config",
        "environment",
        "summary",
    ]


def test_views_have_the_same_columns_with_and_without_rows(tmp_path):
    (tmp_path / "none").mkdir()
    a_finished_run(tmp_path / "some" / "run", ["conv"])
    for name in ("runs", *TABLES):
        empty = query(f"SELECT * FROM {name}", tmp_path / "none").table.schema
        full = query(f"SELECT * FROM {name}", tmp_path / "some").table.schema
        assert full.names == empty.names
        assert full.types == empty.types


def test_one_query_reads_many_runs(tmp_path):
    for number in range(5):
        writer = start(tmp_path / "sweep" / f"lr={number}" / "1", lr=number / 10, model={"name": "zener"})
        add_steps(writer, range(number + 1))
        writer.close("finished", {"score": number})
    found = values(
        "SELECT (config->>'lr')::DOUBLE AS lr, config->>'$.model.name', count(*), sum(wall_s) "
        "FROM steps JOIN runs ON steps.run = runs.id GROUP BY ALL ORDER BY lr",
        tmp_path,
    )
    assert [(lr, name, count) for lr, name, count, _ in found] == [(n / 10, "zener", n + 1) for n in range(5)]
    columns = query("SELECT * FROM steps", tmp_path).table.column_names
    assert columns == ["run", *TABLES["steps"].arrow.names]  # the folder lr=… is no column
    assert [wall for *_, wall in found] == pytest.approx([0.1 * (n + 1) for n in range(5)])


def test_runs_being_written_are_read_too(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(3))
    writer.flush()
    assert values("SELECT count(*), any_value(status) FROM steps JOIN runs ON run = id", tmp_path) == [
        (3, "running")
    ]
    add_steps(writer, range(3, 5))
    writer.flush()
    (tmp_path / "run" / "steps" / ".part-r0-000002-000002.1.tmp").write_bytes(b"half a part")
    assert values("SELECT count(*) FROM steps", tmp_path) == [(5,)]
    assert values("SELECT count(*) FROM layers", tmp_path) == [(0,)]


def test_odd_folder_names_are_read_and_only_they(tmp_path):
    for place, name in enumerate(ODD_FOLDERS):
        writer = start(tmp_path / name / "run")
        add_steps(writer, range(place + 1))
        writer.close("finished", {})
    for decoy in ("bracketsa", "starfish", "questions", "bracesa"):  # what a pattern would match as well
        a_finished_run(tmp_path / decoy / "run", ["conv"], steps=50)
    for place, name in enumerate(ODD_FOLDERS):
        assert values("SELECT count(*), count(DISTINCT run) FROM steps", [tmp_path / name / "run"]) == [
            (place + 1, 1)
        ]
        assert values("SELECT count(*) FROM steps", tmp_path / name) == [(place + 1,)]
    everything = values("SELECT run, count(*) FROM steps GROUP BY run", tmp_path)
    assert len(everything) == len(ODD_FOLDERS) + 4


def test_a_folder_that_duckdb_cannot_open_is_named(tmp_path):
    names = ["both\\and*", os.fsdecode(b"\xff\xfe")]
    for name in names:
        add_steps(writer := start(tmp_path / name), range(2))
        writer.close("finished", {})
        assert len(load(tmp_path / name).steps) == 2
    answer = query("SELECT count(*) AS n FROM steps", tmp_path)
    assert answer.table["n"].to_pylist() == [0]
    assert len(answer.warnings) == 2
    assert all("rename the folder" in line for line in answer.warnings)


def test_damaged_runs_are_left_out_and_named(tmp_path):
    a_finished_run(tmp_path / "good", ["conv"])
    for name in ("cut", "altered", "json", "newer"):
        a_finished_run(tmp_path / name, ["conv"])
    (part,) = (tmp_path / "cut" / "steps").iterdir()
    part.write_bytes(part.read_bytes()[:-20])
    (part,) = (tmp_path / "altered" / "steps").iterdir()
    content = bytearray(part.read_bytes())
    content[4:1200] = random.Random(1).randbytes(1196)
    part.write_bytes(content)
    (tmp_path / "json" / "run.json").write_text("{")
    document = (tmp_path / "newer" / "run.json").read_text()
    (tmp_path / "newer" / "run.json").write_text(
        document.replace('"schema_version": 2', '"schema_version": 9')
    )
    answer = query("SELECT count(*) AS n, sum(wall_s), any_value(device) FROM steps", tmp_path)
    assert answer.table["n"].to_pylist() == [9]
    assert len(answer.warnings) == 4
    for name in ("cut", "altered", "json", "newer"):
        assert sum(str(tmp_path / name) in line for line in answer.warnings) == 1


def test_a_page_that_does_not_decompress_is_left_out_and_named(tmp_path):
    for name in ("good", "bad"):
        a_finished_run(tmp_path / name, ["conv"])
    (part,) = (tmp_path / "bad" / "layers").iterdir()
    column = pq.read_metadata(part).row_group(0).column(schema.layers.arrow.names.index("seconds"))
    content = bytearray(part.read_bytes())
    end = column.data_page_offset + column.total_compressed_size
    content[end - 24 : end] = bytes([255]) * 24
    part.write_bytes(content)
    answer = query("SELECT count(*) AS n, sum(seconds) AS s FROM layers", tmp_path)
    assert answer.table["n"].to_pylist() == [72]
    assert [str(part) in line for line in answer.warnings] == [True]


def test_what_is_no_run_is_named_when_it_was_given_by_name(tmp_path):
    path = a_finished_run(tmp_path / "run", ["conv"])
    answer = query("SELECT count(*) AS n FROM runs", [path, tmp_path / "nowhere", str(tmp_path)])
    assert answer.table["n"].to_pylist() == [1]
    assert [line.split(";")[0].removeprefix(str(tmp_path)) for line in answer.warnings] == [
        "/nowhere does not exist",
        " holds no run.json",
    ]


def test_a_copied_run_is_not_counted_twice(tmp_path):
    a_finished_run(tmp_path / "run", ["conv"])
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    answer = query("SELECT count(*) AS n FROM steps JOIN runs ON run = id", tmp_path)
    assert answer.table["n"].to_pylist() == [9]
    assert "is a copy of" in answer.warnings[0]


def test_hostile_layer_names_survive_a_query(tmp_path):
    writer = start(tmp_path / "run", note=HOSTILE)
    writer.append("layers", schema.layers.table([a_layer_time(0, name) for name in HOSTILE]))
    writer.close("finished", {})
    assert [name for (name,) in values("SELECT layer FROM layers", tmp_path)] == HOSTILE
    for place, name in enumerate(HOSTILE):
        assert values(f"SELECT config->>'$.note[{place}]' FROM runs", tmp_path) == [(name,)]


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELCT 1", 'Parser Error: syntax error at or near "SELCT"'),
        ("SELECT * FROM stepz", "Table with name stepz does not exist"),
        ("SELECT walls FROM steps", 'column "walls" not found .* "wall_s"'),
        ("SELECT 'x'::INT", "Could not convert string 'x' to INT32"),
        ("SELECT * FROM tmp_path", "Table with name tmp_path does not exist"),
        ("SELECT * FROM read_parquet('/nowhere.parquet')", "a query reads the views only, unless --unsafe"),
    ],
)
def test_sql_that_does_not_work_is_one_line(tmp_path, sql, line):
    a_finished_run(tmp_path / "run", ["conv"])
    with pytest.raises(QueryError, match=line) as caught:
        query(sql, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_sql_that_says_nothing_gives_nothing(tmp_path):
    assert query("", tmp_path).table.num_rows == 0
    assert query("-- only a remark", tmp_path).table.num_rows == 0


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(QueryError, match="is not a folder; give one that holds runs"):
        query("SELECT 1", tmp_path / "nowhere")


def test_runs_are_found_at_any_depth_and_not_inside_runs_or_hidden_folders(tmp_path):
    for place in ("a", "b/c/d", ".hidden/e"):
        start(tmp_path / place)
    (tmp_path / "a" / "checkpoint").mkdir()
    (tmp_path / "a" / "checkpoint" / "run.json").write_text("{}")
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b/c/d"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]
