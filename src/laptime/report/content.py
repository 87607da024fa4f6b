"""What there is to say about a run, as one strict-JSON dictionary: the tables and `--json` both come from it.

Seconds, bytes and shares everywhere; null where something is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from laptime.record import Account, How, Layer, Phase, Stage, Statistics
from laptime.record.layers import LOSS_UNIT, OTHER_UNIT
from laptime.report.findings import look_first
from laptime.store import LayerSummary, Run
from laptime.store.files import plain

METRICS = ("loss", "top1", "topn")
PSEUDO = (LOSS_UNIT, OTHER_UNIT)


def content(run: Run) -> dict[str, Any]:
    """`run`, `train`, `validation`, `recorder`, `kernels`, `notes` and `look_first`: all that is shown."""
    found: dict[str, Any] = {"run": _facts(run)}
    for stage in Stage:
        found[stage.value] = _stage(run, stage)
    found["recorder"] = _recorder(run)
    found["kernels"] = run.summary.get("kernels")
    found["notes"] = [*_status_notes(run), *_lost(run), *(run.summary.get("notes") or [])]
    found = plain(found)
    found["look_first"] = look_first(found)
    return found


def _facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "path": str(run.path),
        "status": run.status,
        "created": run.created.isoformat(),
        "layers": len(run.network),
        "parameters": sum(layer.parameters for layer in run.network),
        "config": run.config,
        "environment": run.environment,
    }


def _status_notes(run: Run) -> list[str]:
    if run.status == "running":
        return ["the run is still being written: these are the steps up to its last flush"]
    if run.status == "interrupted":
        return ["the run was interrupted: these are the steps that reached the disk"]
    return ["the run failed: these are the steps before that"] if run.status == "failed" else []


def _lost(run: Run) -> list[str]:
    """Steps that the summary counts and the folder no longer has."""
    steps = run.summary.get("steps")
    counted = sum(steps.values()) if isinstance(steps, dict) else 0
    gone = counted > 0 and not len(run.steps)
    return [f"{counted} steps were recorded, but the run's `steps` folder is gone"] if gone else []


def _stage(run: Run, stage: Stage) -> dict[str, Any] | None:
    """Books, layers and results of one stage; None where it has no steps."""
    table = run.stored("steps").read(["stage", "attempt", "epoch", "samples", "wall_s", *METRICS])
    table = table.filter(pc.equal(table["stage"], stage.value))
    if not table.num_rows:
        return None
    accounts = run.accounts(stage)
    layers = run.layers(stage)
    compute = sum(layer.sum_s for layer in layers)
    other = sum(layer.sum_s for layer in layers if layer.layer == OTHER_UNIT)
    described = {layer.name: layer for layer in run.network}
    hows = _hows(run, stage)
    return {
        "steps": table.num_rows,
        "skipped": accounts.skipped,
        "wall_s": statistics(accounts.wall),
        "samples_per_s": _samples_per_second(table),
        "results": _results(table),
        "accounts": [
            {
                "account": one.account,
                "seconds": statistics(one.seconds),
                "total_s": one.total_s,
                "share": one.share,
                "traced": one.traced,
            }
            for one in accounts.values()
        ],
        "explained_share": 1.0 - accounts[Account.UNEXPLAINED].share,
        "named_share": (compute - other) / compute if compute else None,
        "layers": [_layer(layer, described.get(layer.layer), hows) for layer in layers],
        "layers_traced": layers.traced,
    }


def statistics(given: Statistics | None) -> dict[str, Any] | None:
    """A sample in numbers; None where nothing was seen."""
    return None if given is None or not given.count else asdict(given) | {"spread": given.spread}


def _layer(summary: LayerSummary, known: Layer | None, hows: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    phases: dict[str, Any] = {}
    for phase in Phase:
        seen = statistics(getattr(summary, phase.value))
        phases[phase.value] = seen and {**seen, "how": hows.get((summary.layer, phase.value), How.MEASURED)}
    ranges = [phase["q3"] - phase["q1"] for phase in phases.values() if phase]
    return {
        "layer": summary.layer,
        "kind": summary.kind,
        "parameters": summary.parameters,
        "trainable": known.trainable if known else None,
        "compiled": known.compiled if known else False,
        "module": summary.layer not in PSEUDO,
        "calls": summary.calls,
        **phases,
        "total_s": summary.total_s,
        "share": summary.share,
        # As if the phases were slow together: the widest that the whole layer's spread can be.
        "spread": sum(ranges) / summary.total_s if summary.total_s else None,
        "busy_s": summary.busy_s,
        "idle_s": summary.idle_s,
        "memory_bytes": summary.memory_bytes,
        "activation_bytes": known.activation_bytes if known else None,
        "peak_bytes": known.peak_bytes if known else None,
    }


def _hows(run: Run, stage: Stage) -> dict[tuple[str, str], str]:
    """How the times of each layer and phase were obtained; "measured" only where every one was."""
    hows: dict[tuple[str, str], str] = {}
    for rows in run.stored("layers").row_groups(["stage", "layer", "phase", "how"], coded=True):
        kinds = rows.group_by(["stage", "layer", "phase", "how"]).aggregate([]).to_pylist()
        for row in kinds:
            if row["stage"] == stage.value and row["how"] != How.MEASURED:
                hows[row["layer"], row["phase"]] = row["how"]
    return hows


def _samples_per_second(table: Any) -> float | None:
    """Samples of the steps that say how many they hold, over the time of those steps."""
    counted = table.filter(pc.is_valid(table["samples"]))
    seconds = pc.sum(counted["wall_s"]).as_py()
    return pc.sum(counted["samples"]).as_py() / seconds if seconds else None


def _results(table: Any) -> dict[str, Any] | None:
    """Logged values over the last epoch of the last attempt, each batch weighted by its samples."""
    last = _latest(_latest(table, "attempt"), "epoch")
    samples = np.nan_to_num(last["samples"].to_numpy().astype(np.float64), nan=1.0)
    results: dict[str, Any] = {"epoch": last["epoch"][0].as_py()}
    for name in METRICS:
        values = last[name].to_numpy().astype(np.float64)
        known = ~np.isnan(values)
        if known.any() and samples[known].sum():
            results[name] = float(np.average(values[known], weights=samples[known]))
    return results if len(results) > 1 else None


def _latest(table: Any, column: str) -> Any:
    return table.filter(pc.equal(table[column], pc.max(table[column])))


def _recorder(run: Run) -> dict[str, Any]:
    """What recording cost, and how that is known."""
    summary = run.summary
    return {
        "overhead": summary.get("overhead"),
        "instrument_share": summary.get("instrument_share"),
        "instrumented_steps": summary.get("instrumented_steps"),
        "budget": summary.get("budget"),
        "host_clock_ratio": summary.get("host_clock_ratio"),
    }
