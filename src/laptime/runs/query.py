"""SQL over many runs: DuckDB reads their part files in place."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from laptime.errors import QueryError, RunError
from laptime.files.text import one_line, text_of
from laptime.runs.repeats import KEY
from laptime.runs.run import RUN_FILE, Run, load
from laptime.runs.schema import TABLES, TableSchema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Result = TypeVar("Result")

_RETRIES = 20  # a part can be merged away between listing and reading, again and again on a busy machine
_RUN_COLUMNS = ("id", "path", "status", "created", "config", "environment", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query gave, and one line for each run that was left out of it."""

    table: Any
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """What one query may take. Beyond it, the query ends with one line."""

    seconds: float = 300.0
    memory_bytes: int = 4 << 30  # nothing is moved to disk
    answer_bytes: int = 1 << 30  # Arrow's memory, which DuckDB does not count
    threads: int = 8


def query(
    sql: str,
    runs: Path | str | Sequence[Path | str],
    *,
    unsafe: bool = False,
    limits: QueryLimits | None = None,
) -> Answer:
    """Run `sql` over the views `runs`, `steps`, `layers` and `kernels`.

    `runs` is a folder that is searched for runs, or a list of run directories. Every table has a column
    `run`, the id in the view `runs`; of a step that was taken again after a resume it has the last attempt.
    Runs that cannot be read are left out and named in `warnings`.

    Only statements that read are taken, and only the runs' own part files are opened. `unsafe` gives DuckDB
    everything that this process may do, without limits.
    """
    limits = limits or QueryLimits()

    def answer(connection: DuckDBPyConnection) -> Any:
        if not unsafe:
            _only_reads(connection, sql)
        relation = connection.sql(sql)
        if relation is None:
            return pa.table({})
        return relation.to_arrow_table() if unsafe else _bounded(relation, limits.answer_bytes)

    table, warnings = over(runs, answer, limits=None if unsafe else limits)
    return Answer(table=table, warnings=warnings)


_DEFAULT_LIMITS = QueryLimits()


def over(
    runs: Path | str | Sequence[Path | str],
    work: Callable[[DuckDBPyConnection], Result],
    *,
    limits: QueryLimits | None = _DEFAULT_LIMITS,
) -> tuple[Result, tuple[str, ...]]:
    """What `work` made of the views of `query`, and a line for each run left out.

    It is called anew where a run was written to meanwhile, so it must have no other effect. Without `limits`
    DuckDB may open any file.
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
        with _connection() as connection:
            try:
                files = _create_views(connection, loaded)
                with _restricted(connection, files, limits):
                    return work(connection), (*warnings, *damaged.values())
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
                    raise QueryError(_message(error, limits)) from error
                damaged |= unreadable


_READS = ("SELECT", "EXPLAIN", "MULTI")  # MULTI: PIVOT makes a type first
# EXPLAIN and MULTI may have a COPY inside, which their type does not show.
_READING = re.compile(
    r"\s*(?:EXPLAIN\s+(?:ANALYZE\s+)?)?(?:SELECT|WITH|FROM|PIVOT|UNPIVOT|VALUES|SUMMARIZE|DESCRIBE)\b", re.I
)


def _only_reads(connection: DuckDBPyConnection, sql: str) -> None:
    """COPY, ATTACH and their like: a path that may be read may be written too, so the statement decides."""
    for statement in connection.extract_statements(sql):
        kind = statement.type.name
        if kind not in _READS or (kind != "SELECT" and not _READING.match(statement.query)):
            raise QueryError(
                f"a query only reads, and this is a statement of the kind {kind}; "
                "use SELECT, or --unsafe if you trust the SQL"
            )


def _bounded(relation: Any, most_bytes: int) -> Any:
    reader = relation.to_arrow_reader()
    batches, taken = [], 0
    for batch in reader:
        taken += batch.nbytes
        if taken > most_bytes:
            raise QueryError(
                f"the answer has more than {most_bytes / 1e9:.1f} GB; aggregate, add LIMIT, or use --unsafe"
            )
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


@contextmanager
def _restricted(
    connection: DuckDBPyConnection, files: Sequence[str], limits: QueryLimits | None
) -> Iterator[None]:
    """No file but `files`, no extension, no other setting; ended when its time is over."""
    if limits is None:
        yield
        return
    connection.execute("SET allowed_paths = $1", [list(files)])
    for setting in (
        f"threads = {max(1, min(limits.threads, os.cpu_count() or 1))}",
        f"memory_limit = '{_memory(limits)}B'",
        "temp_directory = ''",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    done = threading.Event()

    def watch() -> None:
        if not done.wait(limits.seconds):
            while not done.wait(0.1):  # again for each statement
                connection.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _memory(limits: QueryLimits) -> int:
    """At most half of the machine's memory."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return limits.memory_bytes
    return min(limits.memory_bytes, machine // 2)


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


@contextmanager
def _connection() -> Iterator[DuckDBPyConnection]:
    import duckdb

    # Python variables are not tables here, and nothing is ever downloaded.
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        connection.execute("SET python_enable_replacements = false")
        yield connection


def _create_views(connection: DuckDBPyConnection, runs: Sequence[Run]) -> list[str]:
    """Make the views; the names of the files that they read, as DuckDB asks for them."""
    rows = [
        (
            run.id,
            text_of(run.path),
            run.status,
            run.created.isoformat(),
            *(json.dumps(part) for part in (run.config, run.environment, run.summary)),
        )
        for run in runs
    ]
    schema = pa.schema([(name, pa.string()) for name in _RUN_COLUMNS])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _RUN_COLUMNS]
    connection.register("_runs", pa.table(columns, schema=schema))
    plain = ", ".join(_RUN_COLUMNS[:4])
    as_json = ", ".join(f"{name}::JSON AS {name}" for name in _RUN_COLUMNS[4:])
    connection.execute(f"CREATE VIEW runs AS SELECT {plain}, {as_json} FROM _runs")
    repeated = [(run.id, *key) for run in runs for key in run.stored("steps").repeats().keys()]  # noqa: SIM118
    if repeated:
        names = ("run", *KEY)
        columns = [list(column) for column in zip(*repeated, strict=True)]
        connection.register("_repeated", pa.table(dict(zip(names, columns, strict=True))))
    left_out = "_repeated" if repeated else None
    return [
        name for table in TABLES.values() for name in _create_view(connection, table, runs, left_out=left_out)
    ]


def _create_view(
    connection: DuckDBPyConnection, table: TableSchema[Any], runs: Sequence[Run], *, left_out: str | None
) -> list[str]:
    files = [(str(part), run.id) for run in runs for part in run.stored(table.name).parts()]
    files = [(str(Path(file).resolve()), run) for file, run in files]
    if not files:
        empty = table.arrow.empty_table().add_column(0, "run", pa.array([], pa.string()))
        connection.register(f"_{table.name}", empty)
        connection.execute(f"CREATE VIEW {table.name} AS SELECT * FROM _{table.name}")
        return []
    connection.register(
        f"_{table.name}", pa.table({"file": [file for file, _ in files], "run": [run for _, run in files]})
    )
    patterns = [_pattern(Path(file)) for file, _ in files]
    listed = ", ".join("'" + pattern.replace("'", "''") + "'" for pattern in patterns)
    # Without hive_partitioning=false a folder called lr=0.1, as a sweep makes, would become a column.
    source = f"read_parquet([{listed}], filename = true, hive_partitioning = false, union_by_name = true)"
    rows = (
        f"SELECT owner.run, part.* EXCLUDE (filename) "
        f"FROM {source} AS part JOIN _{table.name} AS owner ON part.filename = owner.file"
    )
    # Older parts lack the newest columns, all of them perhaps: the schema's own are there in any case.
    connection.register(f"_{table.name}_columns", table.arrow.empty_table())
    rows = f"SELECT NULL::VARCHAR AS run, * FROM _{table.name}_columns UNION ALL BY NAME {rows}"
    if left_out is not None:  # steps that a later attempt took again
        rows = f"SELECT * FROM ({rows}) ANTI JOIN {left_out} USING (run, {', '.join(KEY)})"
    connection.execute(f"CREATE VIEW {table.name} AS {rows}")
    return [*patterns, *(file for file, _ in files)]


def _pattern(path: Path) -> str:
    """`path` as a DuckDB file pattern that matches only itself."""
    text = str(path)
    pattern = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
    utf8 = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == text
    if not utf8 or ("\\" in text and pattern != text):
        raise RunError(f"{one_line(path)} is a name that DuckDB cannot open; rename the folder to query it")
    return pattern


def _message(error: Exception, limits: QueryLimits | None) -> str:
    """DuckDB's message without the part that draws an arrow under the SQL, on one line."""
    import duckdb

    lines = [line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines()]
    text = " ".join(one_line(line) for line in lines if line) or type(error).__name__
    if limits is not None and isinstance(error, duckdb.InterruptException):
        return f"the query took more than {limits.seconds:g} s; ask for less, or use --unsafe"
    if limits is not None and isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more than {_memory(limits) / 1e9:.1f} GB; ask for less, or use --unsafe"
    if isinstance(error, duckdb.PermissionException):
        return f"{text.rstrip('.')}; a query reads the views only, unless --unsafe is given"
    return text
