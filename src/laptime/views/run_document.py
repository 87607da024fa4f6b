"""A run as JSON: the only place that turns what is shown into a dictionary. Unknown is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from laptime.files.write import plain
from laptime.model import Phase, Stage, Statistics
from laptime.runs import LayerSummary, Run
from laptime.views.findings import look_first
from laptime.views.run_view import RunView, StageView, run_view


def document(view: RunView) -> dict[str, Any]:
    """`run`, `health`, `train`, `validation`, `recorder`, `kernels`, `lost`, `notes`, `look_first`: all."""
    stages = {stage.value: _stage_document(view.stages.get(stage)) for stage in Stage}
    return dict(
        plain(
            {
                "run": {
                    "id": view.id,
                    "path": str(view.path),
                    "status": view.status,
                    "created": view.created.isoformat(),
                    "layers": view.layers,
                    "unit": view.unit,
                    "parameters": view.parameters,
                    "config": view.config,
                    "environment": view.environment,
                },
                "health": view.health,
                **stages,
                "recorder": view.recorder,
                "kernels": view.kernels or None,
                "lost": view.lost,
                "notes": view.notes,
                "look_first": look_first(view),
            }
        )
    )


def content(run: Run) -> dict[str, Any]:
    """The JSON document of a run."""
    return document(run_view(run))


def _stage_document(part: StageView | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {
        "noun": part.noun,
        "steps": part.steps,
        "ranks": part.ranks,
        "skipped": part.accounts.skipped,
        "wall_s": statistics(part.wall_s),
        "samples_per_s": part.samples_per_s,
        "results": part.results and {"epoch": part.results.epoch, **part.results.values},
        "course": part.course,
        "accounts": [
            asdict(account) | {"seconds": statistics(account.seconds)} for account in part.accounts.values()
        ],
        "accounted": part.accounted,
        "explained_share": part.explained_share,
        "compute_s": part.compute_s,
        "named_share": part.layers.named_share,
        "layers": [_layer_document(layer) for layer in part.layers],
        "layers_steps": part.layers.steps,
        "layers_compute_s": part.layers.compute_s,
        "layers_traced": part.layers.traced,
        "layers_first": part.layers_first,
        "layers_by_device": part.layers_by_device,
    }


def _layer_document(layer: LayerSummary) -> dict[str, Any]:
    phases: dict[str, Any] = {}
    for phase in Phase:
        seen = statistics(layer.phase(phase))
        phases[phase.value] = seen and {**seen, "how": layer.how[phase]}
    return asdict(layer) | {
        **phases,
        "module": layer.is_module,
        "total_s": layer.total_s,
        "spread": layer.spread,
    }


def statistics(given: Statistics | None) -> dict[str, Any] | None:
    """A sample in numbers; None where nothing was seen."""
    return None if given is None or not given.count else asdict(given) | {"spread": given.spread}
