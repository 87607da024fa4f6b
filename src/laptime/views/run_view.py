"""What there is to say about a run, as one strict-JSON dictionary: the tables and `--json` both come from it.

Seconds, bytes and shares everywhere; null where something is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from laptime.files.write import plain
from laptime.model import Account, How, Layer, Phase, Stage, Statistics, summarize
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER
from laptime.runs import AccountSummaries, LayerSummary, Run
from laptime.runs.validate import formed
from laptime.views.findings import look_first
from laptime.views.format import mebibytes, plural
from laptime.views.health import health
from laptime.views.layers_by_device import by_device
from laptime.views.sparkline import course
from laptime.views.step_series import series

METRICS = ("loss", "top1", "topn")
NOUNS = {"train": "training", "validation": "validation"}
PSEUDO = (LOSS_LAYER, OTHER_LAYER)


def content(run: Run) -> dict[str, Any]:
    """`run`, `health`, `train`, `validation`, `recorder`, `kernels`, `lost`, `notes`, `look_first`: all."""
    found: dict[str, Any] = {"run": _facts(run), "health": health(run)}
    for stage in Stage:
        found[stage.value] = _stage(run, stage)
    found["recorder"] = _recorder(run)
    found["kernels"] = run.summary.get("kernels")
    found["lost"] = lost = _lost(run)
    gone = [f"{what} recorded, but the run's `{table}` folder is gone" for table, what in lost.items()]
    told = run.summary.get("notes") or []
    found["notes"] = [*_status_notes(run), *gone, *_repeated(run), *_exchanged(run), *told]
    found = plain(found)
    found["look_first"] = [] if "steps" in lost else look_first(found)  # the notes say that they are gone
    return found


def _facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "path": str(run.path),
        "status": run.status,
        "created": run.created.isoformat(),
        "layers": len(run.network),
        "unit": _unit(run),
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


def _unit(run: Run) -> str:
    """What time is charged to: a trace that names no layers has operators in their place."""
    return "operator" if run.network and all(one.kind == "operator" for one in run.network) else "layer"


def _lost(run: Run) -> dict[str, str]:
    """Tables that the summary tells of and whose folder no longer has a row; what was in each."""
    steps = run.summary.get("steps")
    counted = sum(steps.get(stage) or 0 for stage in Stage) if steps else 0
    told = {"steps": f"{counted} steps were"} if counted else {}
    if run.summary.get("named_share") is not None:  # which is of layer rows alone
        told["layers"] = "layer times were"
    return {table: what for table, what in told.items() if not run.stored(table).check()}


def _repeated(run: Run) -> list[str]:
    """Steps past the checkpoint that a resume went on from: they were taken again."""
    count = run.stored("steps").repeats().steps()
    if not count:
        return []
    were = f"{plural(count, 'step')} {'was' if count == 1 else 'were'}"
    return [f"{were} taken again after a resume, which went on from an earlier checkpoint; the last counts"]


def _exchanged(run: Run) -> list[str]:
    """What the ranks of a training sent each other, and how much of that nothing else was done meanwhile."""
    found = run.summary.get("communication")
    if not isinstance(found, Mapping) or not found:
        return []
    each = [one for one in found.values() if isinstance(one, Mapping) and one.get("seconds") is not None]
    if not each:
        return []
    keys = ("bytes", "exposed_s", "overlapped_s")
    if not all(formed(one.get(key), float) is not None for one in each for key in keys):
        return []
    size, exposed, overlapped = (sum(one[key] for one in each) / len(each) for key in keys)
    times = f"{exposed:.3g} s exposed, {overlapped:.3g} s overlapped with the backward pass"
    return [f"each rank exchanged {mebibytes(size)} MiB of gradients: {times}"]


def _stage(run: Run, stage: Stage) -> dict[str, Any] | None:
    """Books, layers and results of one stage; None where it has no steps."""
    table = run.stored("steps").read(["stage", "attempt", "rank", "epoch", "samples", *METRICS])
    table = table.filter(pc.equal(table["stage"], stage.value))
    timed = series(run, stage, layers=False)
    if timed is None:
        return None
    accounts = run.accounts(stage)
    layers = run.layers(stage)
    compute = sum(layer.sum_s for layer in layers)
    other = sum(layer.sum_s for layer in layers if layer.layer == OTHER_LAYER)
    described = {layer.name: layer for layer in run.network}
    hows = _hows(run, stage)
    return {
        "noun": _noun(run, stage, accounts),
        "steps": int(np.count_nonzero(table["rank"].to_numpy() == pc.min(table["rank"]).as_py())),
        "ranks": len(timed.devices),
        "skipped": accounts.skipped,
        "wall_s": statistics(summarize(timed.wall_s)),  # of a step, however many ranks took it together
        "samples_per_s": timed.samples_per_s,
        "results": last_epoch(table),
        "course": course(run, stage, timed.wall_s),
        "accounts": [
            {
                "account": one.account,
                "seconds": statistics(one.seconds),
                "total_s": one.total_s,
                "share": one.share,
                "half_in": one.half_in,
                "traced": one.traced,
            }
            for one in accounts.values()
        ],
        "accounted": source(run.config) != "log",  # a log has only times
        "explained_share": 1.0 - accounts[Account.UNEXPLAINED].share,
        "named_share": (compute - other) / compute if compute else None,
        "layers": [_layer(layer, described.get(layer.layer), hows) for layer in layers],
        "layers_traced": layers.traced,
        "layers_first": accounts.skipped > layers.skipped,  # no step but the first, which warms up, had marks
        "layers_by_device": _by_device(run, stage) if len(timed.devices) > 1 else [],
    }


def _by_device(run: Run, stage: Stage) -> list[dict[str, Any]]:
    timed = series(run, stage)
    return [] if timed is None else by_device([timed])


def source(config: Mapping[str, Any]) -> str | None:
    """What a run was collected from, `kineto`, `tensorflow`, `log` or `csv`; None where it was recorded."""
    collected = config.get("collected")
    return collected.get("source") if isinstance(collected, Mapping) else None


def _noun(run: Run, stage: Stage, accounts: AccountSummaries) -> str:
    """`training` or `validation`; empty for a trace without a backward pass, which may be of neither."""
    forward_only = not np.nansum(accounts[Account.BACKWARD].total_s)
    if stage is Stage.TRAIN and forward_only and source(run.config) in ("kineto", "tensorflow"):
        return ""
    return NOUNS[stage.value]


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


def last_epoch(table: Any) -> dict[str, Any] | None:
    """Logged values over the last epoch of the last attempt, each batch weighted by its samples.

    None where one of them is no finite number: a mean that passes over it would look like learning.
    """
    last = _latest(_latest(table, "attempt"), "epoch")
    samples = np.nan_to_num(last["samples"].to_numpy().astype(np.float64), nan=1.0)
    results: dict[str, Any] = {"epoch": last["epoch"][0].as_py()}
    for name in METRICS:
        values = last[name].to_numpy().astype(np.float64)
        known = ~np.isnan(values)
        if pc.any(pc.invert(pc.is_finite(last[name]))).as_py():  # null is unknown; NaN and infinity are not
            results[name] = None
        elif known.any() and samples[known].sum():
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
