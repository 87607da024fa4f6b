"""A query reads the runs' tables, and nothing else on this machine."""

import hashlib
import os
import sys

import pytest
from tests.runs.samples import a_finished_run

from laptime.errors import QueryError
from laptime.runs import query

LIMITS = sys.modules[query.__module__]
# {part}: a part file of the run. {out}: a file that must not appear. {secret}: a file that must not be read.
HOSTILE = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_ndjson_objects('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM read_parquet('{part}/../../../../secret.csv')",
    "SELECT * FROM read_parquet('{folder}/**')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM query('SELECT * FROM read_csv(''{secret}'')')",
    "SELECT (SELECT count(*) FROM read_text('{secret}')) FROM steps",
    "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "COPY (SELECT 1) TO '{out}'",
    "COPY (SELECT 1 AS a) TO '{part}' (FORMAT parquet, USE_TMP_FILE false)",
    "COPY steps TO '{out}' (FORMAT csv)",
    "COPY (PIVOT steps ON stage USING count(*)) TO '{part}' (USE_TMP_FILE false)",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{part}' (USE_TMP_FILE false)",
    "EXPLAIN (ANALYZE) COPY (SELECT 1 AS a) TO '{part}' (USE_TMP_FILE false)",
    "EXPLAIN /**/ ANALYZE COPY (SELECT 1 AS a) TO '{part}' (USE_TMP_FILE false)",
    "PREPARE p AS COPY (SELECT 1 AS a) TO '{part}' (USE_TMP_FILE false); EXECUTE p",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{out}' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH memory",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM 'http://127.0.0.1:1'",
    "LOAD httpfs",
    "LOAD '{secret}'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET allowed_paths = ['/etc/passwd']",
    "SET memory_limit = '1TB'",
    "SET temp_directory = '{folder}'",
    "SET GLOBAL threads = 1000",
    "RESET enable_external_access",
    "RESET memory_limit",
    "PRAGMA enable_profiling; PRAGMA profiling_output = '{out}'",
    "PRAGMA database_list",
    "CALL enable_logging(storage = 'file', storage_path = '{out}')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{out}')",
    "CREATE SECRET (TYPE s3)",
    "CREATE PERSISTENT SECRET (TYPE s3)",
    "CREATE TABLE t AS SELECT * FROM steps",
    "INSERT INTO steps SELECT * FROM steps",
    "DELETE FROM steps",
    "DROP VIEW steps",
    "UPDATE steps SET wall_s = 0",
    "CHECKPOINT",
    "VACUUM",
    "USE memory",
]


def state(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with a run, and a file beside it that is no run's."""
    folder = tmp_path_factory.mktemp("recorded")
    a_finished_run(folder / "run", ["conv"])
    (folder / "secret.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.mark.parametrize("sql", HOSTILE)
def test_a_query_reaches_nothing_but_the_views(recorded, sql, monkeypatch):
    monkeypatch.chdir(recorded)
    (part,) = (recorded / "run" / "steps").iterdir()
    before = state(recorded)
    text = sql.format(part=part, out=recorded / "out", secret=recorded / "secret.csv", folder=recorded)
    with pytest.raises(QueryError) as caught:
        query(text, recorded)
    assert len(str(caught.value).splitlines()) == 1
    assert state(recorded) == before


@pytest.mark.parametrize(
    "sql",
    [
        "FROM steps",
        "TABLE steps",
        "DESCRIBE steps",
        "SUMMARIZE steps",
        "SHOW TABLES",
        "EXPLAIN SELECT * FROM steps",
        "EXPLAIN ANALYZE SELECT count(*) FROM steps",
        "PIVOT steps ON stage USING count(*)",
        "WITH x AS (SELECT * FROM steps) SELECT * FROM x",
        "VALUES (1)",
        "/* a remark */ SELECT TIMESTAMPTZ '2020-01-01' + INTERVAL 1 DAY",
        "SELECT config->>'$.x', created::TIMESTAMP FROM runs; SELECT 1",
    ],
)
def test_a_query_that_reads_is_answered(recorded, sql):
    assert query(sql, recorded).table.num_rows > 0


def test_a_query_without_limits_reads_and_writes_any_file(recorded, tmp_path):
    secret, out = recorded / "secret.csv", tmp_path / "out.csv"
    assert query(f"SELECT a FROM read_csv('{secret}')", recorded, unsafe=True).table.to_pylist() == [{"a": 1}]
    query(f"COPY (SELECT 1 AS a) TO '{out}'", recorded, unsafe=True)
    assert out.exists()


def test_a_query_that_takes_too_long_is_ended(recorded, monkeypatch):
    monkeypatch.setattr(LIMITS, "MOST_S", 0.2)
    forever = "SELECT sum(a.range * b.range) FROM range(10000000) AS a, range(10000000) AS b"
    with pytest.raises(QueryError, match=r"took more than 0\.2 s; ask for less"):
        query(forever, recorded)


def test_a_query_that_needs_too_much_memory_is_ended_and_writes_nothing(recorded, monkeypatch):
    monkeypatch.chdir(recorded)
    monkeypatch.setattr(LIMITS, "MEMORY_BYTES", 100 << 20)
    before = state(recorded)
    large = "SELECT a.range AS x, random() AS y FROM range(20000000) AS a ORDER BY y"
    with pytest.raises(QueryError, match=r"needs more than 0\.\d GB; ask for less"):
        query(large, recorded)
    assert state(recorded) == before
    assert not os.path.exists(".tmp")


def test_an_answer_that_is_too_large_is_refused(recorded, monkeypatch):
    monkeypatch.setattr(LIMITS, "ANSWER_BYTES", 10_000_000)
    with pytest.raises(QueryError, match=r"the answer has more than 0\.0 GB; aggregate, add LIMIT"):
        query("SELECT * FROM range(100000000)", recorded)
