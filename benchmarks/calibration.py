"""The shipped calibration: `python -m benchmarks.calibration OPS.csv`.

Fits the models of `laptime.predict` to single operations that were timed on a device, and writes them to
where the package looks for them. Ours are fitted to `h200_ops.csv` and to our own sweeps (`benchmarks.sweep`,
kept beside this file), and to no network. Half of our own convolutions and products have shapes of real
networks, at batch sizes of their own: `without` leaves out every shape that given networks have.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import reference_ops
from laptime.estimate import device_speed
from laptime.estimate.calibration import Calibration, TimedOperation, Work, fit, work
from laptime.hardware import device
from laptime.microbench import read_rows
from laptime.model import Workload

OWN = Path(__file__).parent / "measured" / "h200_sweep.csv.gz"
# Of these `h200_ops.csv` tells the same as our rows do; others it measured on warm caches, without features
# that matter (pooling), or bound by the host (recurrent layers).
AGREED = {
    "attention",
    "attention_backward",
    "batch_norm",
    "batch_norm_backward",
    "bmm",
    "convolution",
    "convolution_backward",
    "embedding_backward",
    "layer_norm",
    "layer_norm_backward",
    "mm",
    "pool",
    "softmax",
    "softmax_backward",
}


def timed(ops: Path) -> list[TimedOperation]:
    """All single operations of the H200 that a model may learn from."""
    published = [row for row in reference_ops.read(ops) if row.work.kind in AGREED]
    return published + [row.timed() for row in read_rows(OWN)]


def shape(work: Work) -> tuple[object, ...]:
    """What is left of an operation without its batch: channels and window, or width and depth."""
    if work.kind.startswith("convolution"):
        return (work.kind[:11], work.vector[3:9], work.vector[-1])
    if work.kind in ("mm", "bmm"):
        return (work.kind, tuple(sorted(work.vector[3:6])[:2]))
    return (work.kind, work.dtype, work.vector)


def without(rows: list[TimedOperation], networks: Iterable[Workload]) -> list[TimedOperation]:
    """Rows that have no shape of these networks."""
    known = {shape(work(one)) for network in networks for one in network.operations}
    return [row for row in rows if shape(row.work) not in known]


def fitted(rows: list[TimedOperation], name: str = "h200") -> Calibration:
    """A calibration from them."""
    known = device(name)
    return fit(
        rows,
        device=known.name,
        peaks=device_speed.peaks(known),
        bandwidth=known.memory_bandwidth,
        facts={
            "rows": len(rows),
            "source": "h200_ops.csv and our sweeps",
            "fitted": time.strftime("%Y-%m-%d"),
        },
    )


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    rows = timed(options.ops)
    found = fitted(rows)
    folder = Path(device_speed.__file__).parent / "calibrations"
    folder.mkdir(exist_ok=True)
    out = folder / f"{found.device}.npz"
    found.save(out)
    size = out.stat().st_size / 1e6
    print(f"{len(rows)} operations, {time.monotonic() - begin:.0f} s, {size:.1f} MB: {out.name}")


if __name__ == "__main__":
    main()
