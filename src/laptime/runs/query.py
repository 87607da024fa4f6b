"""SQL over many runs: DuckDB reads their part files in place."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from laptime.errors import QueryError, RunError
from laptime.files.text import one_line, text_of
from laptime.runs.document import RUN_FILE
from laptime.runs.parts import live_parts
from laptime.runs.run import Run, load
from laptime.runs.schema import TABLES, TableSchema
from laptime.runs.table_reader import KEY

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What one query may take, unless it is unsafe. Beyond it, the query ends with one line.
MOST_S = 300.0
MEMORY_BYTES = 4 << 30  # nothing is moved to disk
ANSWER_BYTES = 1 << 30  # Arrow's memory, which DuckDB does not count
THREADS = 8
_RETRIES = 20  # a part can be merged away between listing and reading, again and again on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """What a query gave, and one line for each run that was left out of it."""

    table: Any
    warnings: tuple[str, ...] = ()


def query(sql: str, runs: Path | str | Sequence[Path | str], *, unsafe: bool = False) -> QueryResult:
    """Run `sql` over the views `runs`, `steps`, `layers` and `kernels`.

    `runs` is a folder that is searched for runs, or a list of run directories. Every table has a column
    `run`, the id in the view `runs`; of a step that was taken again after a resume it has the last attempt.
    Runs that cannot be read are left out and named in `warnings`.

    Only statements that read are taken, and only the runs' own part files are opened. `unsafe` gives DuckDB
    everything that this process may do, without limits.
    """
    import duckdb  # 0.2 s, and only a query needs it

    paths = find_runs(Path(runs)) if isinstance(runs, (str, Path)) else [Path(run) for run in runs]
    # Not InvalidInputException: that is what a page that does not decompress raises.
    wrong_sql = (
        duckdb.ParserException,
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.DataError,
        duckdb.PermissionException,
        duckdb.InterruptException,
        duckdb.OutOfMemoryException,
    )
    damaged: dict[Path, str] = {}
    retries = _RETRIES
    while True:
        loaded, warnings = _loaded(paths, damaged)
        files: Sequence[str] = ()
        # Python variables are not tables here, and nothing is ever downloaded.
        with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
            connection.execute("SET python_enable_replacements = false")
            try:
                files = _create_views(connection, loaded)
                with nullcontext() if unsafe else _restricted(connection, files):
                    table = _answer(connection, sql, unsafe=unsafe)
                return QueryResult(table=table, warnings=(*warnings, *damaged.values()))
            except duckdb.Error as error:
                # A part may have been merged away since it was listed: DuckDB then takes its name for a
                # folder's, which it may not look into.
                gone = isinstance(error, duckdb.PermissionException) and not all(map(os.path.exists, files))
                if (gone or isinstance(error, duckdb.IOException)) and retries:
                    retries -= 1
                    time.sleep(0.01)
                    continue
                # Otherwise the SQL is wrong, or a part is damaged where its footer does not show it.
                unreadable = {} if isinstance(error, wrong_sql) else _damaged(loaded)
                if not unreadable:
                    raise QueryError(_message(error, unsafe=unsafe)) from error
                damaged |= unreadable


_READS = ("SELECT", "EXPLAIN", "MULTI")  # MULTI: PIVOT makes a type first
# EXPLAIN and MULTI may have a COPY inside, which their type does not show.
_READING = re.compile(
    r"\s*(?:EXPLAIN\s+(?:ANALYZE\s+)?)?(?:SELECT|WITH|FROM|PIVOT|UNPIVOT|VALUES|SUMMARIZE|DESCRIBE)\b", re.I
)


def _answer(connection: DuckDBPyConnection, sql: str, *, unsafe: bool) -> Any:
    """What the SQL gives. Unless it is unsafe, only statements that read are taken, and so much of an answer.

    COPY, ATTACH and their like: a path that may be read may be written too, so the statement decides.
    """
    for statement in () if unsafe else connection.extract_statements(sql):
        kind = statement.type.name
        if kind not in _READS or (kind != "SELECT" and not _READING.match(statement.query)):
            raise QueryError(
                f"a query only reads, and this is a statement of the kind {kind}; "
                "use SELECT, or --unsafe if you trust the SQL"
            )
    relation = connection.sql(sql)
    if relation is None:
        return pa.table({})
    reader = relation.to_arrow_reader()
    batches, taken = [], 0
    for batch in reader:
        taken += batch.nbytes
        if not unsafe and taken > ANSWER_BYTES:
            most = f"{ANSWER_BYTES / 1e9:.1f} GB"
            raise QueryError(f"the answer has more than {most}; aggregate, add LIMIT, or use --unsafe")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


@contextmanager
def _restricted(connection: DuckDBPyConnection, files: Sequence[str]) -> Iterator[None]:
    """No file but `files`, no extension, no other setting; ended when its time is over."""
    connection.execute("SET allowed_paths = $1", [list(files)])
    for setting in (
        f"threads = {min(THREADS, os.cpu_count() or 1)}",
        f"memory_limit = '{_memory()}B'",
        "temp_directory = ''",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    done = threading.Event()

    def watch() -> None:
        if not done.wait(MOST_S):
            while not done.wait(0.1):  # again for each statement
                connection.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _memory() -> int:
    """At most half of the machine's memory."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return MEMORY_BYTES
    return min(MEMORY_BYTES, machine // 2)


def find_runs(root: Path) -> list[Path]:
    """Every run directory at or below `root`, sorted. Links are not followed; hidden folders are left out."""
    if not root.is_dir():
        raise QueryError(f"{one_line(root)} is not a folder; give one that holds runs")
    directories = []
    for directory, folders, files in os.walk(root):
        if RUN_FILE in files:
            directories.append(Path(directory))
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(directories)


def _loaded(paths: Iterable[Path], damaged: Collection[Path]) -> tuple[list[Run], list[str]]:
    runs: dict[str, Run] = {}
    warnings = []
    for path in paths:
        if path in damaged:
            continue
        try:
            run = load(path)
            _pattern(run.path.resolve())
            for name in TABLES:
                run.stored(name).check_pages()
        except RunError as error:
            warnings.append(str(error))
            continue
        if run.id in runs:
            # A copied directory: counting it again would double every sum.
            warnings.append(f"{one_line(path)} is a copy of {one_line(runs[run.id].path)}; left out")
        else:
            runs[run.id] = run
    return list(runs.values()), warnings


def _damaged(runs: Iterable[Run]) -> dict[Path, str]:
    """Runs whose rows, not only their footers, cannot be read."""
    problems = {}
    for run in runs:
        try:
            for name in TABLES:
                for _ in run.stored(name).row_groups():
                    pass
        except RunError as error:
            problems[run.path] = str(error)
    return problems


def _create_views(connection: DuckDBPyConnection, runs: Sequence[Run]) -> list[str]:
    """Make the views; the names of the files that they read, as DuckDB asks for them."""
    documents = ("config", "environment", "summary")
    columns: dict[str, Any] = {
        "id": [run.id for run in runs],
        "path": [text_of(run.path) for run in runs],
        "status": [run.status for run in runs],
        "created": [run.created.isoformat() for run in runs],
        **{name: [json.dumps(getattr(run, name)) for run in runs] for name in documents},
    }
    schema = pa.schema([(name, pa.string()) for name in columns])
    connection.register("_runs", pa.table(columns, schema=schema))
    as_json = ", ".join(f"{name}::JSON AS {name}" for name in documents)
    connection.execute(f"CREATE VIEW runs AS SELECT * REPLACE ({as_json}) FROM _runs")
    repeated = [(run.id, *key) for run in runs for key in run.stored("steps").repeats()]
    if repeated:
        keys = dict(zip(("run", *KEY), map(list, zip(*repeated, strict=True)), strict=True))
        connection.register("_repeated", pa.table(keys))
    files: list[str] = []
    for table in TABLES.values():
        files += _create_view(connection, table, runs, repeats=bool(repeated))
    return files


def _create_view(
    connection: DuckDBPyConnection, table: TableSchema[Any], runs: Sequence[Run], *, repeats: bool
) -> list[str]:
    parts = [(part.resolve(), run.id) for run in runs for part in live_parts(run.path / table.name)]
    files, patterns = [str(part) for part, _ in parts], [_pattern(part) for part, _ in parts]
    # Older parts lack the newest columns, all of them perhaps: the schema's own are there in any case.
    connection.register(f"_{table.name}_columns", table.arrow.empty_table())
    rows = f"SELECT NULL::VARCHAR AS run, * FROM _{table.name}_columns"
    if files:
        connection.register(f"_{table.name}", pa.table({"file": files, "run": [run for _, run in parts]}))
        listed = ", ".join("'" + pattern.replace("'", "''") + "'" for pattern in patterns)
        # Without hive_partitioning=false a folder called lr=0.1, as a sweep makes, would become a column.
        source = f"read_parquet([{listed}], filename = true, hive_partitioning = false, union_by_name = true)"
        rows += (
            f" UNION ALL BY NAME SELECT owner.run, part.* EXCLUDE (filename) "
            f"FROM {source} AS part JOIN _{table.name} AS owner ON part.filename = owner.file"
        )
    if repeats:  # steps that a later attempt took again
        rows = f"SELECT * FROM ({rows}) ANTI JOIN _repeated USING (run, {', '.join(KEY)})"
    connection.execute(f"CREATE VIEW {table.name} AS {rows}")
    return [*patterns, *files]


def _pattern(path: Path) -> str:
    """`path` as a DuckDB file pattern that matches only itself."""
    text = str(path)
    pattern = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
    utf8 = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == text
    if not utf8 or ("\\" in text and pattern != text):
        raise RunError(f"{one_line(path)} is a name that DuckDB cannot open; rename the folder to query it")
    return pattern


def _message(error: Exception, *, unsafe: bool) -> str:
    """DuckDB's message without the part that draws an arrow under the SQL, on one line."""
    import duckdb

    lines = [line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines()]
    text = " ".join(one_line(line) for line in lines if line) or type(error).__name__
    if not unsafe and isinstance(error, duckdb.InterruptException):
        return f"the query took more than {MOST_S:g} s; ask for less, or use --unsafe"
    if not unsafe and isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more than {_memory() / 1e9:.1f} GB; ask for less, or use --unsafe"
    if isinstance(error, duckdb.PermissionException):
        return f"{text.rstrip('.')}; a query reads the views only, unless --unsafe is given"
    return text
