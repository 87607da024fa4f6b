"""Runs on disk: schema, part files, CSV, queries, traces, exports. Imports no torch."""

from laptime.store.account_summary import AccountSummaries, AccountSummary
from laptime.store.directory import discard
from laptime.store.export.mlflow import MlflowRun, write_mlflow
from laptime.store.export.tensorboard import write_tensorboard
from laptime.store.export.trace import write_trace
from laptime.store.layer_summary import LayerSummaries, LayerSummary
from laptime.store.parts import live_parts
from laptime.store.query import Answer, find_runs, query
from laptime.store.run import Run, Steps, load
from laptime.store.schema import SCHEMA_VERSION, TABLES, from_columns
from laptime.store.tables import write_csv
from laptime.store.writer import RunWriter

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
