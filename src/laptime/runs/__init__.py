"""Runs on disk: schema, part files, CSV, queries, traces, exports. Imports no torch."""

from laptime.runs.account_summary import AccountSummaries, AccountSummary
from laptime.runs.directory import discard
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.exporters.mlflow import MlflowRun, write_mlflow
from laptime.runs.exporters.tensorboard import write_tensorboard
from laptime.runs.exporters.trace import write_trace
from laptime.runs.layer_summary import LayerSummaries, LayerSummary
from laptime.runs.parts import live_parts
from laptime.runs.query import Answer, find_runs, query
from laptime.runs.run import Run, Steps, load
from laptime.runs.schema import SCHEMA_VERSION, TABLES, from_columns
from laptime.runs.writer import RunWriter

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "AccountSummaries",
    "AccountSummary",
    "Answer",
    "LayerSummaries",
    "LayerSummary",
    "MlflowRun",
    "Run",
    "RunWriter",
    "Steps",
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
