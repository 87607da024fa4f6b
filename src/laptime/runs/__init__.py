"""Runs on disk: schema, part files, CSV, queries, traces, exports. Imports no torch."""

from laptime.runs.directory import discard
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.exporters.mlflow import MlflowRun, write_mlflow
from laptime.runs.exporters.tensorboard import write_tensorboard
from laptime.runs.exporters.trace import write_trace
from laptime.runs.parts import live_parts
from laptime.runs.query import find_runs, query
from laptime.runs.run import Run, load
from laptime.runs.schema import TABLES, from_columns
from laptime.runs.summaries import AccountSummaries, AccountSummary, LayerSummaries, LayerSummary
from laptime.runs.writer import RunWriter

__all__ = [
    "TABLES",
    "AccountSummaries",
    "AccountSummary",
    "LayerSummaries",
    "LayerSummary",
    "MlflowRun",
    "Run",
    "RunWriter",
    "discard",
    "find_runs",
    "from_columns",
    "live_parts",
    "load",
    "query",
    "write_csv",
    "write_mlflow",
    "write_tensorboard",
    "write_trace",
]
