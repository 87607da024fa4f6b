"""Every public Python name: `laptime.__all__`, and the classes that those give back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import laptime
from tools.reference import source
from tools.reference.markdown import prose, table
from tools.reference.phrases import EXAMPLES, FIELDS

_HEAD = """\
## Python

`import laptime` imports neither torch nor anything else that is slow; a name does, when it is first used.
"""
_FUNCTIONS = ("record", "load", "predict", "simulate", "workload", "largest_batch")
_HOMES = {"load": "laptime.runs.run"}

# Public classes, and where they are. The second half of `laptime.__all__`, then what is given back.
_CLASSES = {
    "Run": "laptime.runs.run",
    "LightningCallback": "laptime.bridges.lightning",
    "TrainerCallback": "laptime.bridges.transformers",
    "Recorder": "laptime.recorder.recorder",
    "AccountSummary": "laptime.runs.summaries",
    "LayerSummary": "laptime.runs.summaries",
    "Statistics": "laptime.model.statistics",
    "Prediction": "laptime.model.prediction",
    "LayerSeconds": "laptime.model.layers",
    "Simulation": "laptime.simulate.training",
    "Largest": "laptime.estimate.largest_batch",
    "Workload": "laptime.model.workload",
}
_GIVEN_BY = {
    "Recorder": "what `laptime.record` gives.",
    "AccountSummary": "what `run.accounts()[…]` gives.",
    "LayerSummary": "what `run.layers()[…]` gives.",
    "Statistics": "what stands in the two above.",
    "Prediction": "what `laptime.predict` gives.",
    "LayerSeconds": "what `prediction.layers()[…]` gives.",
    "Simulation": "what `laptime.simulate` gives.",
    "Largest": "what `laptime.largest_batch` gives.",
    "Workload": "what `laptime.workload` gives.",
}
# What someone who records calls; the rest of a class is for laptime's own loops and trainers.
_CHOSEN = {
    "Recorder": ("steps", "step", "log", "account", "run", "note", "add_network", "flush", "start", "stop"),
    "LightningCallback": ("run",),
    "TrainerCallback": ("run",),
}
_BASES = {
    "LayerSummary": ("laptime.model.layers", "LayerSeconds"),
}
_NOT_SHOWN = {"Run": {"stored", "load"}, "Workload": {"of", "document"}, "Prediction": {"of"}}


def section() -> str:
    """Functions first, then classes."""
    missing = set(laptime.__all__) - {*_FUNCTIONS, *_CLASSES, "__version__"}
    if missing:
        raise LookupError(f"{', '.join(sorted(missing))}: give it a place in tools/reference/public.py")
    return "\n".join([_HEAD, *(_function(name) for name in _FUNCTIONS), *(_class(name) for name in _CLASSES)])


def _function(name: str) -> str:
    node = source.definition(_HOMES.get(name, "laptime.api"), name)
    assert isinstance(node, ast.FunctionDef)
    call = f"```text\n{source.signature(node, f'laptime.{name}')}\n```\n"
    return "\n".join([f"### `laptime.{name}`\n", call, prose(source.docstring(node)), *_example(name)])


def _class(name: str) -> str:
    module = _CLASSES[name]
    node = source.definition(module, name)
    title = f"laptime.{name}" if name in laptime.__all__ else name
    given = f"{_GIVEN_BY[name].capitalize()} " if name in _GIVEN_BY else ""
    rows = [_row(name, one) for one in _members(name, module)]
    what = prose(source.docstring(node)).strip()
    return "\n".join(
        [f"### `{title}`\n", f"{given}{what}\n", table(("name", "type", "meaning"), rows), *_example(name)]
    )


def _members(name: str, module: str) -> Iterator[source.Member]:
    found = [*source.attributes(module, name), *source.members(module, name)]
    if name == "Run":  # the one attribute whose type stands elsewhere
        found.insert(0, source.Member(name="path", arguments="", gives="Path", meaning=""))
    if name in _BASES:
        found += source.members(*_BASES[name])
    if name in _CHOSEN:
        by_name = {one.name: one for one in found}
        found = [by_name[one] for one in _CHOSEN[name]]
    yield from (one for one in found if one.name not in _NOT_SHOWN.get(name, ()))


def _row(of: str, one: source.Member) -> tuple[str, str, str]:
    meaning = one.meaning or FIELDS.get(f"{of}.{one.name}", "")
    if not meaning:
        raise LookupError(f"{of}.{one.name} says nothing; give it a phrase in tools/reference/phrases.py")
    return f"`{one.name}{one.arguments}`", f"`{one.gives}`", meaning


def _example(name: str) -> Iterator[str]:
    if name in EXAMPLES:
        yield f"```python\n{EXAMPLES[name]}```\n"
