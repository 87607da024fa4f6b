"""`laptime calibrate`: how fast the device at hand runs single operations; predictions rest on that."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from laptime.cli.options import Device, wrong
from laptime.cli.outcome import Outcome, progress, say, verb, waiting
from laptime.errors import CalibrationError, MissingExtra

if TYPE_CHECKING:
    import torch
    from rich.text import Text

    from laptime.microbench import SweepRow
    from laptime.microbench.calibrate import KindError

_FEWEST = 100  # rows: fewer are no sweep
_MOST_S = 120
_OUT_HELP = "The file, .npz; by default where `laptime predict` looks."


@verb
def calibrate(
    device: Device = None,
    seconds: Annotated[float, Option(help="How long to measure; 120 at most.")] = 100.0,
    out: Annotated[Path | None, Option(help=_OUT_HELP)] = None,
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

        try:  # before time is spent
            from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
        except ImportError:
            raise MissingExtra("scikit-learn", "calibrate") from None  # which it comes with
        from laptime.microbench.calibrate import errors, fitted, save
        from laptime.training.device_setup import choose_device

        place, _ = choose_device(device)
        if place.type == "cuda":
            torch.cuda.set_device(place)
    rows = _swept(place, seconds)
    # Trees of few rows grow faster on one core; on a busy machine several wait for each other.
    with waiting("fitting"), threadpool_limits(1):
        made = fitted(rows, place)
        kinds = errors(rows, made)
    file = save(made, rows, out)
    document = {
        "device": made.device,
        "file": file,
        "rows_file": file.with_suffix(".csv"),
        "date": made.facts["date"],
        "rows": len(rows),
        "peaks": made.peaks,
        "bandwidth": made.bandwidth,
        "kinds": kinds,
    }
    if (advice := _advice(kinds, seconds)) is not None:
        say(advice)
    return Outcome(document=lambda: document, lines=lambda width: _lines(document, width))


def _check_writable(out: Path | None) -> None:
    """Raise where the result cannot be written, before two minutes are spent."""
    from laptime.estimate import device_speed

    folder = out.parent if out is not None else device_speed.calibrations()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"nothing can be written to {folder} ({error.strerror})"
        raise CalibrationError(f"{reason}; give another place with --out") from None


def _swept(place: torch.device, seconds: float) -> list[SweepRow]:
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
        timed = f"only {len(rows)} operations were timed in {seconds:g} s"
        raise CalibrationError(f"{timed}; give more --seconds")
    return rows


def _lines(document: Mapping[str, Any], width: int) -> Iterator[Text]:
    from rich.text import Text

    from laptime.render.terminal import paragraph
    from laptime.render.terminal.table import table_lines
    from laptime.views.table import Table, titled

    kinds: list[KindError] = [kind for kind in document["kinds"] if kind.model]
    errors = ["" if kind.median_error is None else f"{kind.median_error:.0%}" for kind in kinds]
    rows = [(kind.kind, kind.dtype, str(kind.rows), error) for kind, error in zip(kinds, errors, strict=True)]
    columns = titled(("kind", "type", "rows", "error"), words=2)
    yield from paragraph(f"{document['device']}: {document['rows']} operations timed", width, style="bold")
    yield Text()
    if kinds:
        yield from table_lines(Table(name="kinds", columns=columns, rows=rows), width)
    if others := len(document["kinds"]) - len(kinds):
        few = f"{others} more kinds and types have too few rows for a model of their own"
        yield from paragraph(few, width, bullet="  ")
    if kinds:
        say("error: the median over operations that the model of their kind had not seen")
    say(f"the calibration is in {document['file']}, its operations in {document['rows_file'].name} beside it")


def _advice(kinds: Sequence[KindError], seconds: float) -> str | None:
    """What to do where kinds that nearly every network has are without a model."""
    from laptime.ops import registry

    modelled = {kind.kind for kind in kinds if kind.model and kind.dtype == "float32"}
    missing = [name for name, kind in registry.kinds().items() if kind.common and name not in modelled]
    more = f"give more --seconds, {_MOST_S} at most"
    more = more if seconds < _MOST_S else "let nothing else run meanwhile"
    poor = f"too few rows for {', '.join(missing)}, so predictions will be poor; {more}"
    return poor if missing else None
