"""`laptime calibrate`: how fast the device at hand runs single operations; predictions rest on that."""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import Device as DeviceOption
from laptime.cli.options import wrong
from laptime.cli.outcome import Outcome, print_out, say, verb
from laptime.cli.progress import progress, waiting

if TYPE_CHECKING:
    import torch

    from laptime.estimate.calibration import Calibration
    from laptime.hardware import Device
    from laptime.microbench import SweepRow

_FEWEST = 100  # rows: fewer are no sweep
_FOLDS = 3
_MOST_S = 120
_UNCACHED = 64e6  # bytes that most processors' caches do not hold


@verb
def calibrate(
    device: DeviceOption = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to measure; 120 at most.")] = 100.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file, .npz; by default where `laptime predict` looks.")
    ] = None,
) -> Outcome:
    """Time single operations on this machine for two minutes; `laptime predict` rests on them from then on.

    A CPU is known to `laptime predict` as `cpu` afterwards, a GPU by its own name. Let nothing else run.
    """
    if not 0 < seconds <= _MOST_S:
        wrong("--seconds", f"{seconds:g} is not between 0 and {_MOST_S}")
    if out is not None and out.suffix != ".npz":
        wrong("--out", f"{out} does not end in .npz")
    _check_writable(out)
    with waiting("loading torch"):
        import torch

        from laptime.training.device_setup import choose_device

        place, _ = choose_device(device)
        if place.type == "cuda":
            torch.cuda.set_device(place)
    with _one_thread():  # tells what is not installed before time is spent
        pass
    rows = _swept(place, seconds)
    with waiting("fitting"), _one_thread():
        made = _fitted(rows, place)
        errors = _errors(rows, made)
    file = _saved(made, rows, out)
    document = {
        "device": made.device,
        "file": file,
        "rows_file": file.with_suffix(".csv"),
        "date": made.facts["date"],
        "rows": len(rows),
        "peaks": made.peaks,
        "bandwidth": made.bandwidth,
        "kinds": errors,
    }
    if (advice := _advice(errors, seconds)) is not None:
        say(advice)
    return Outcome(document=document, show=lambda: _print(document))


def _check_writable(out: Path | None) -> None:
    """Raise where the result cannot be written, before two minutes are spent."""
    from laptime.errors import CalibrationError
    from laptime.estimate import device_speed

    folder = out.parent if out is not None else device_speed.calibrations()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CalibrationError(
            f"nothing can be written to {folder} ({error.strerror}); give another place with --out"
        ) from None


def _swept(place: torch.device, seconds: float) -> list[SweepRow]:
    from laptime.errors import CalibrationError
    from laptime.microbench import Sweep

    rows: list[SweepRow] = []
    begin = time.monotonic()
    told = 0
    with progress("calibrating", round(seconds)) as tell:
        for row in Sweep(place, seconds=seconds):
            rows.append(row)
            while told < min(round(seconds), int(time.monotonic() - begin)):
                told += 1
                tell(f"s, {len(rows)} operations")
    if len(rows) < _FEWEST:
        raise CalibrationError(
            f"only {len(rows)} operations were timed in {seconds:g} s; give more --seconds"
        )
    return rows


def _one_thread() -> AbstractContextManager[Any]:
    """Trees of few rows grow faster on one core; on a busy machine several wait for each other."""
    from laptime.errors import MissingExtra

    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn
    except ImportError:
        raise MissingExtra("scikit-learn", "calibrate") from None
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def _fitted(rows: Sequence[SweepRow], place: torch.device) -> Calibration:
    from laptime.estimate import device_speed
    from laptime.estimate.fit import fit
    from laptime.microbench import host_of
    from laptime.recorder.environment import environment

    known = _known(place)
    measured = _figures(rows, place)
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "time": time.strftime("%H:%M:%S"),
        "type": place.type,
        "host": host_of(place),
        "rows": len(rows),
        "environment": environment(place),
    }
    if known is None or known.kind == "cpu":  # a virtual machine has a share of a catalog's processor
        facts["figures"] = measured
        name = known.name if known else "this-gpu" if place.type == "cuda" else "this-cpu"
        peaks, bandwidth = _peaks(measured), measured["memory_bandwidth_gbs"] * 1e9
    else:
        name, peaks, bandwidth = known.name, device_speed.peaks(known), known.memory_bandwidth
    return fit([row.timed() for row in rows], device=name, peaks=peaks, bandwidth=bandwidth, facts=facts)


def _known(place: torch.device) -> Device | None:
    """The catalog's device, if it has it."""
    from laptime import hardware
    from laptime.errors import AmbiguousDevice, UnknownDevice
    from laptime.recorder.backends import device_facts

    try:
        return hardware.device(device_facts(place)["name"])
    except (UnknownDevice, AmbiguousDevice):
        return None


def _figures(rows: Sequence[SweepRow], place: torch.device) -> dict[str, Any]:
    """What the sweep itself reached: the fastest product, the fastest copy that no cache holds."""
    from laptime.errors import CalibrationError
    from laptime.ops.registry import kind_named
    from laptime.recorder.backends import device_facts
    from laptime.recorder.environment import environment

    facts = environment(place)
    memory = facts["device"].get("memory_bytes") or facts["memory_bytes"]
    best: dict[str, float] = defaultdict(float)
    for row in rows:
        if kind_named(row.operation.kind).reaches == "compute":
            reached = row.operation.flops / row.device_us / 1e6
            best[row.operation.dtype] = max(best[row.operation.dtype], reached)
    copies = [row for row in rows if kind_named(row.operation.kind).reaches == "bandwidth"]
    if not copies or not best["float32"]:
        raise CalibrationError("no product or no copy was timed; give more --seconds")
    largest = max(row.operation.moved for row in copies)
    speeds = [
        row.operation.moved / row.device_us / 1e3
        for row in copies
        if row.operation.moved >= min(_UNCACHED, largest)
    ]
    figures = {
        "title": device_facts(place)["name"],
        "kind": "gpu" if place.type == "cuda" else "cpu",
        "memory_bandwidth_gbs": max(speeds),
        "memory_gib": memory / 2**30 if memory else None,
        "fp32": best["float32"],
    }
    return figures | ({"bf16": best["bfloat16"]} if best["bfloat16"] else {})


def _peaks(figures: Mapping[str, Any]) -> dict[str, float]:
    fp32 = figures["fp32"] * 1e12
    return {"float32": fp32, "tf32": fp32, "bfloat16": figures.get("bf16", figures["fp32"]) * 1e12}


def _errors(rows: Sequence[SweepRow], made: Calibration) -> list[dict[str, Any]]:
    """The median error of each kind and type on rows that its model has not seen."""
    import numpy as np

    from laptime.estimate.fit import fit

    timed = [row.timed() for row in rows]
    missed: dict[tuple[str, str], list[float]] = defaultdict(list)
    for fold in range(_FOLDS):
        rest = [row for index, row in enumerate(timed) if index % _FOLDS != fold]
        model = fit(rest, device=made.device, peaks=made.peaks, bandwidth=made.bandwidth)
        unseen = [row for row in timed[fold::_FOLDS] if (row.work.kind, row.work.dtype) in model.forests]
        for row, guess in zip(unseen, model.times_us([row.work for row in unseen]), strict=True):
            missed[row.work.kind, row.work.dtype].append(abs(guess / row.device_us - 1))
    counts = Counter((row.work.kind, row.work.dtype) for row in timed)
    return [
        {
            "kind": kind,
            "dtype": dtype,
            "rows": count,
            "median_error": float(np.median(missed[kind, dtype])) if missed[kind, dtype] else None,
            "model": (kind, dtype) in made.forests,
        }
        for (kind, dtype), count in sorted(counts.items())
    ]


def _saved(made: Calibration, rows: Sequence[SweepRow], out: Path | None) -> Path:
    from laptime.estimate import device_speed
    from laptime.microbench import write_rows

    file = out or device_speed.calibrations() / f"{made.device}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_rows(rows, file.with_suffix(".csv"))
    part = file.with_name(f".{file.name}.part.npz")
    made.save(part)
    part.replace(file)
    return file


def _print(document: Mapping[str, Any]) -> None:
    from laptime.render.terminal import run_text
    from laptime.render.terminal.fit import paragraph
    from laptime.render.terminal.table import table_lines
    from laptime.views.table import Table, titled

    kinds = [kind for kind in document["kinds"] if kind["model"]]
    to = run_text.console()
    table = Table(
        name="kinds",
        columns=titled(("kind", "type", "rows", "error"), words=2),
        rows=[
            [kind["kind"], kind["dtype"], str(kind["rows"]), _share(kind["median_error"])] for kind in kinds
        ],
    )
    head = f"{document['device']}: {document['rows']} operations timed"
    run_text.print_lines(paragraph(head, to.width, style="bold"), to)
    print_out()
    if kinds:
        run_text.print_lines(table_lines(table, to.width), to)
    others = len(document["kinds"]) - len(kinds)
    if others:
        few = f"{others} more kinds and types have too few rows for a model of their own"
        run_text.print_lines(paragraph(few, to.width, bullet="  "), to)
    if kinds:
        say("error: the median over operations that the model of their kind had not seen")
    say(f"the calibration is in {document['file']}, its operations in {document['rows_file'].name} beside it")


def _advice(kinds: Sequence[Mapping[str, Any]], seconds: float) -> str | None:
    """What to do where kinds that nearly every network has are without a model."""
    from laptime.ops import registry

    modelled = {row["kind"] for row in kinds if row["model"] and row["dtype"] == "float32"}
    missing = [name for name, kind in registry.kinds().items() if kind.common and name not in modelled]
    if not missing:
        return None
    more = (
        f"give more --seconds, {_MOST_S} at most" if seconds < _MOST_S else "let nothing else run meanwhile"
    )
    return f"too few rows for {', '.join(missing)}, so predictions will be poor; {more}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
