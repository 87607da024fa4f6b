"""A run as JSON: the only place that turns what is shown into a dictionary. Unknown is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from laptime.files.write import plain
from laptime.model import Phase, Stage, Statistics
from laptime.runs import LayerSummary, Run
from laptime.views.findings import look_first
from laptime.views.run_view import METRICS, RunView, StageView, run_view

# What a stage's document takes over as the view has it.
_OF_STAGE = (
    "noun", "steps", "epochs", "updates", "ranks", "samples_per_s", "course", "accounted", "explained_share",
    "compute_s", "layers_first", "layers_by_device",
)  # fmt: skip


def document(view: RunView) -> dict[str, Any]:
    """All there is to say of a run; docs/reference.md lists the keys."""
    run, losses = view.run, view.losses
    document: dict[str, Any] = {
        "run": {
            **{name: getattr(run, name) for name in ("id", "path", "status", "config", "environment")},
            **{name: getattr(view, name) for name in ("layers", "unit", "parameters")},
            "created": run.created.isoformat(),
        },
        "health": {
            "told": view.warnings,
            "lost_rows": losses.lost,
            "waiting_rows": losses.waiting,
            "taken_rows": losses.taken,
            **{name: getattr(losses, name) for name in ("reason", "next_attempt", "failed_checkpoints")},
            "since": run.health.since,
            "owner": {key: run.heartbeat.get(key) for key in ("pid", "host", "time")},
        },
        **{stage: _stage_document(view.stages.get(stage)) for stage in Stage},
        "ranks": view.ranks,
        "target": view.target,
        "recorder": view.recorder,
        "kernels": view.kernels or None,
        "lost": view.lost,
        "notes": view.notes,
        "look_first": look_first(view),
    }
    return dict(plain(document))


def content(run: Run) -> dict[str, Any]:
    """The JSON document of a run."""
    return document(run_view(run))


def _stage_document(part: StageView | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        **{name: getattr(part, name) for name in _OF_STAGE},
        "skipped": part.accounts.skipped,
        "wall_s": statistics(part.wall_s),
        "results": part.results and {"epoch": part.results.epoch, **part.results.values},
        "accounts": [
            asdict(account) | {"seconds": statistics(account.seconds)} for account in part.accounts.values()
        ],
        "named_share": part.layers.named_share,
        "layers": [_layer_document(layer) for layer in part.layers],
        **{f"layers_{name}": getattr(part.layers, name) for name in ("steps", "compute_s", "traced")},
    }


def _layer_document(layer: LayerSummary) -> dict[str, Any]:
    phases = {
        phase: (seen := statistics(layer.phase(phase))) and {**seen, "how": layer.how[phase]}
        for phase in Phase
    }
    derived = {"module": layer.is_module, "total_s": layer.total_s, "spread": layer.spread}
    return asdict(layer) | phases | derived


def statistics(given: Statistics | None) -> dict[str, Any] | None:
    """A sample in numbers; None where nothing was seen."""
    return None if given is None or not given.count else asdict(given) | {"spread": given.spread}


def trial_row(name: str, status: str, run: Run | None) -> dict[str, Any]:
    """How a trial ended, its step time and what it learned, from its run if it has one."""
    row: dict[str, Any] = {"trial": name, "status": status, "path": str(run.path) if run else None}
    view = run_view(run) if run is not None else None
    row["lost_rows"] = view.losses.lost if view else {}
    for stage in Stage:
        part = view.stages.get(stage) if view else None
        learned = part.results.values if part and part.results else {}
        row[stage.value] = {
            "steps": part.steps if part else None,
            "step_s": part.wall_s.median if part else None,
            "samples_per_s": part.samples_per_s if part else None,
            **{key: learned.get(key) for key in METRICS},
            "not_finite": [key for key, value in learned.items() if value is None],
        }
    return row
