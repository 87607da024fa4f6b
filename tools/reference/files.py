"""What laptime writes and prints for programs: errors, the run directory, `show --json`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from laptime import errors as errors_module
from laptime.model import Layer
from laptime.runs.document import Health
from laptime.runs.schema import TABLES
from tools.reference.markdown import table
from tools.reference.phrases import DOCUMENT, FIELDS, HEALTH, SHOWN

_RUN = """\
## The run directory

Self-contained, readable while it is written, and never half-valid: every two seconds a part is written to a
hidden name and renamed; a run that is killed loses what came after. Rows that a full disk refuses wait in
memory, 500,000 of each table at most, and are tried again; what is lost in the end is counted in `health`.
Of a step that was taken again after a resume readers take the last attempt; both are in the files.

```text
run.json          what the run is, below
network.json      {"layers": […]}, in the order of the network
workload.json     what its step asks of a machine, for predictions
health-r1.json    `health` of another rank than the first, if that had trouble
exchanges-r1.json what a rank exchanged in training steps, by kind of collective and by bucket of gradients
steps/*.parquet   a row for each step and rank
layers/*.parquet  a row for each layer and phase of each step with layer times
kernels/*.parquet a row for each kernel of the kernel-traced steps
csv/              layers.csv, iterations.csv, experiment.csv: at the end, or by `laptime export --csv`
checkpoint/       last and best, of `laptime train`
report.html       where `laptime report` puts it
```
"""
_VIEWS = """\
`laptime query` has the same tables as views `steps`, `layers` and `kernels`, each with a column `run`,
and a view `runs` with `id`, `path`, `status`, `created`, `config`, `environment` and `summary`, the last
three as JSON:

```text
laptime query "SELECT layer, phase, median(seconds) FROM layers GROUP BY ALL ORDER BY 3 DESC" --runs runs
```
"""


def errors() -> str:
    """The tree that opens errors.py."""
    tree = (errors_module.__doc__ or "").partition("\n\n")[2].strip()
    told = "Every error that laptime raises on purpose, in `laptime.errors`: one line each, with the remedy."
    return f"## Errors\n\n{told}\n\n```text\n{tree}\n```\n"


def run_directory() -> str:
    """Its files and the columns of its tables."""
    document = _keys(DOCUMENT)
    layer = _keys({one.name: FIELDS[f"Layer.{one.name}"] for one in fields(Layer)})
    tables = [_table(name) for name in TABLES]
    health = _keys({one.name: HEALTH[one.name] for one in fields(Health)})
    keys = ("### `run.json`\n", document, "### `health` in `run.json`\n", health)
    return "\n".join([_RUN, *keys, "### A layer of `network.json`\n", layer, *tables, _VIEWS])


def _table(name: str) -> str:
    rows = table(("column", "type", "meaning"), _columns(name))
    told = inspect.getdoc(TABLES[name].value) or ""
    return f"### `{name}/*.parquet`\n\n{told.splitlines()[0]}\n\n{rows}"


def _columns(name: str) -> Iterator[tuple[str, str, str]]:
    for column, field in zip(TABLES[name].columns, TABLES[name].arrow, strict=True):
        yield f"`{field.name}`", _type(field), column.meaning


def _type(field: Any) -> str:
    return f"{field.type}, or null" if field.nullable else str(field.type)


def shown() -> str:
    """The top level of `laptime show --json`."""
    told = 'of runs in `"runs"`, of folders of them in `"groups"`. A run has'
    return f"## The JSON of `laptime show`\n\nLists {told}\n\n{_keys(SHOWN)}"


def _keys(meanings: Mapping[str, str]) -> str:
    return table(("key", "meaning"), ((f"`{key}`", meaning) for key, meaning in meanings.items()))
