"""A run condensed for drawing: a few hundred bins of its steps, however many there are, and its outliers.

DuckDB reads the part files in place, so a million layer times take a second and no memory to speak of. A bin
holds neighbouring steps; its median hides a slow step, so the slowest of all bins are kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from laptime.model import ACCOUNTS, Stage
from laptime.runs import Run
from laptime.runs.query import over

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BINS = 300
MOST_POINTS = 60_000  # of layer times: layers x phases x ranks x bins, some 400 kB in a page
OUTLIERS = 120
_COARSE = 60  # bins that outliers are told from, of at least ten steps each
_FAR = 3.0  # interquartile ranges above the third quartile of its bin

Column = NDArray[Any]
Rows = dict[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Columns by name, a row for each bin; seconds as they were stored."""

    stage: Stage  # of layers and spread: training, or validation where there is nothing else
    steps: Rows  # stage, rank, step (the bin's middle), wall quartiles, means of the accounts
    slow_steps: Rows  # outliers: stage, rank, step, wall_s, usual_s, traced
    layers: Rows  # layer, phase, rank, step, median seconds
    slow_layers: Rows  # outliers: layer, phase, rank, step, seconds, usual_s
    learning: Rows  # stage, step, epoch, seconds since the start, loss, top1, topn, lost (NaN losses)
    marked: Rows  # marked (True or False), quantiles of the wall time of such training steps
    spread: Rows  # of training steps: wall_s bin centres and counts


def digest(run: Run) -> Digest:
    """What the figures of a run are drawn from; without rows where DuckDB cannot read them."""
    return over([run.path], _digest)[0]


def _digest(connection: DuckDBPyConnection) -> Digest:
    def ask(sql: str) -> Any:
        return connection.sql(sql).to_arrow_table()

    facts = ask(
        "SELECT count(*) FILTER (stage = 'train') AS train, "
        "count(*) FILTER (stage = 'train' AND idle_s IS NULL) AS plain, "
        "min(step) AS low, max(step) AS high FROM steps"
    ).to_pylist()[0]
    stage = Stage.TRAIN if facts["train"] else Stage.VALIDATION
    untraced = "idle_s IS NULL" if facts["plain"] else "true"
    units = ask(
        "SELECT count(DISTINCT (layer, phase, rank)) AS units, "
        "count(*) FILTER (idle_s IS NULL) AS plain, min(step) AS low, max(step) AS high "
        f"FROM layers WHERE stage = '{stage.value}'"
    ).to_pylist()[0]
    untraced_layers = "AND idle_s IS NULL" if units["plain"] else ""
    chosen = f"layers WHERE stage = '{stage.value}' {untraced_layers}"
    first, last = units["low"] or 0, units["high"] or 0
    connection.execute(_layer_bins(_place(first, last, _bins(units["units"])), chosen))
    connection.execute(_step_bins())
    traced = "idle_s IS NOT NULL AS traced"
    all_steps = _place(facts["low"] or 0, facts["high"] or 0)
    return Digest(
        stage=stage,
        steps=_columns(ask("SELECT * FROM step_bins ORDER BY stage, rank, bin")),
        slow_steps=_columns(ask(_slow("wall_s", "stage, rank", traced, "steps", all_steps))),
        layers=_columns(ask("SELECT * FROM layer_bins ORDER BY rank, layer, phase, bin")),
        slow_layers=_columns(
            ask(_slow("seconds", "rank, layer, phase", "stage", chosen, _place(first, last)))
        ),
        learning=_columns(ask(_LEARNING)),
        marked=_columns(ask(_marked(untraced))),
        spread=_columns(ask(_spread(stage, untraced))),
    )


def _bins(units: int) -> int:
    """Fewer bins where there are many layers, so that a page stays small."""
    return int(min(BINS, max(20, MOST_POINTS // max(1, units))))


def _columns(table: Any) -> Rows:
    return {
        name: table.column(name).to_numpy(zero_copy_only=False)
        if not str(table.schema.field(name).type).startswith(("string", "large_string"))
        else np.array(table.column(name).to_pylist(), dtype=object)
        for name in table.column_names
    }


# The bin of a step among the `lo` to `hi` of its stage; a short run has one for every step.
_PLACE = "((step - lo) * bins) // (hi - lo + 1)"


def _reach(bins: int, rows: str) -> str:
    """SQL for the bounds of `rows`, and into how many bins their steps go."""
    whole = "max(step) - min(step) + 1"
    each = f"CASE WHEN {whole} <= {2 * bins} THEN {whole} ELSE {bins} END AS bins"
    return f"SELECT stage, min(step) AS lo, max(step) AS hi, {each} FROM {rows} GROUP BY stage"


def _step_bins() -> str:
    means = ", ".join(f"avg({one.column}) AS {one.column}" for one in ACCOUNTS)
    return f"""
        CREATE TEMP TABLE step_bins AS
        WITH reach AS ({_reach(BINS, "steps")})
        SELECT stage, rank, any_value(device) AS device, {_PLACE} AS bin, median(step) AS step,
               count(*) AS count, avg(wall_s) AS mean_s, min(wall_s) AS min_s, max(wall_s) AS max_s,
               quantile_cont(wall_s, 0.25) AS q1_s, median(wall_s) AS median_s,
               quantile_cont(wall_s, 0.75) AS q3_s, {means}
        FROM steps JOIN reach USING (stage) GROUP BY stage, rank, bin"""


def _place(low: int, high: int, bins: int | None = None) -> str:
    """`_PLACE` in numbers, twice as fast as from a row that is joined; without `bins`, the coarse ones."""
    whole = high - low + 1
    most = max(1, min(_COARSE, whole // 10)) if bins is None else whole if whole <= 2 * bins else bins
    return f"((step - {low}) * {most}) // {whole}"


def _slow(values: str, keys: str, kept: str, rows: str, place: str) -> str:
    """SQL for the values far beyond those of their neighbours with the same keys, the furthest first."""
    return f"""
        WITH placed AS NOT MATERIALIZED (
                 SELECT {kept}, step, {keys}, {values} AS value, {place} AS bin FROM {rows}),
             quarters AS (SELECT {keys}, bin, quantile_cont(value, [0.25, 0.5, 0.75]) AS q,
                          max(value) AS most FROM placed GROUP BY {keys}, bin HAVING count(*) > 3),
             usual AS MATERIALIZED (
                 SELECT {keys}, bin, q[2] AS usual_s,
                        greatest(q[3] + {_FAR} * (q[3] - q[1]), 1.2 * q[2]) AS far
                 FROM quarters WHERE most > far)
        SELECT {keys}, {kept.split(" AS ")[-1]}, step, value AS {values}, usual_s
        FROM placed JOIN usual USING ({keys}, bin)
        WHERE value > far AND value > (SELECT min(far) FROM usual)  -- the latter spares most rows the join
        ORDER BY value - usual_s DESC, step LIMIT {OUTLIERS}"""


def _layer_bins(place: str, rows: str) -> str:
    return f"""
        CREATE TEMP TABLE layer_bins AS
        SELECT rank, layer, phase, {place} AS bin, median(step) AS step, median(seconds) AS seconds
        FROM {rows} GROUP BY rank, layer, phase, bin"""


# An attempt follows where the one before ended, whether its clock goes on from a checkpoint or starts anew.
# Ranks log the same training, so the lowest speaks for all.
_LEARNING = f"""
    WITH lasted AS (SELECT attempt, min(start_s) AS began, max(start_s + wall_s) AS ended
                    FROM steps GROUP BY attempt),
         later AS (SELECT attempt, greatest(0, lag(ended, 1, 0) OVER (ORDER BY attempt) - began) AS by_s
                   FROM lasted),
         since AS (SELECT attempt, sum(by_s) OVER (ORDER BY attempt) AS before FROM later),
         chosen AS (SELECT s.*, before + start_s + wall_s AS at_s FROM steps s JOIN since USING (attempt)
                    WHERE rank = (SELECT min(rank) FROM steps)),
         reach AS ({_reach(BINS, "chosen")})
    SELECT stage, CASE WHEN stage = 'train' THEN {_PLACE} ELSE epoch END AS bin, median(step) AS step,
           avg(epoch) AS epoch, max(at_s) AS at_s,
           avg(loss) FILTER (isfinite(loss)) AS loss, avg(top1) FILTER (NOT isnan(top1)) AS top1,
           avg(topn) FILTER (NOT isnan(topn)) AS topn,
           count(*) FILTER (NOT isfinite(loss)) AS lost, count(*) AS count
    FROM chosen JOIN reach USING (stage) GROUP BY stage, bin ORDER BY stage, bin"""


def _marked(untraced: str) -> str:
    """Quantiles of training steps with and without layer marks, for a box each."""
    return f"""
        SELECT instrumented AS marked, count(*) AS count, avg(wall_s) AS mean_s,
               quantile_cont(wall_s, 0.05) AS low_s, quantile_cont(wall_s, 0.25) AS q1_s,
               median(wall_s) AS median_s, quantile_cont(wall_s, 0.75) AS q3_s,
               quantile_cont(wall_s, 0.95) AS high_s
        FROM steps WHERE stage = 'train' AND {untraced} AND step > (SELECT min(step) FROM steps)
        GROUP BY instrumented ORDER BY instrumented"""


def _spread(stage: Stage, untraced: str) -> str:
    """A histogram of 80 bars up to eight interquartile ranges; what lies beyond is counted in the last."""
    return f"""
        WITH chosen AS (SELECT wall_s FROM steps WHERE stage = '{stage.value}' AND {untraced}),
             reach AS (SELECT min(wall_s) AS lo, least(quantile_cont(wall_s, 0.99), median(wall_s) + greatest(
                       8 * (quantile_cont(wall_s, 0.75) - quantile_cont(wall_s, 0.25)),
                       0.02 * median(wall_s))) AS hi FROM chosen)
        SELECT least(79, CASE WHEN hi > lo THEN floor((wall_s - lo) / (hi - lo) * 80) ELSE 0 END) AS bin,
               any_value(lo) AS lo, any_value(hi) AS hi, count(*) AS count
        FROM chosen, reach GROUP BY bin ORDER BY bin"""
