"""The shipped calibration: `python -m benchmarks.calibration OPS.csv [--device h200]`.

Fits the models of `laptime.predict` to single operations that were timed on a device, and writes them to
where the package looks for them. Ours are fitted to the measurements of `h200_ops.csv` and to nothing else.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from laptime.hardware import device
from laptime.predict import devices, sweep
from laptime.predict.fit import fit


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", type=Path)
    parser.add_argument("--device", default="h200")
    options = parser.parse_args()
    known = device(options.device)
    rows = list(sweep.read(options.ops))
    begin = time.monotonic()
    found = fit(
        rows,
        device=known.name,
        peaks=devices.peaks(known),
        bandwidth=known.memory_bandwidth,
        facts={"rows": len(rows), "source": options.ops.name, "fitted": time.strftime("%Y-%m-%d")},
    )
    folder = Path(devices.__file__).parent / "calibrations"
    folder.mkdir(exist_ok=True)
    out = folder / f"{known.name}.npz"
    found.save(out)
    print(
        f"{len(rows)} operations, {time.monotonic() - begin:.0f} s, {out.stat().st_size / 1e6:.1f} MB: {out}"
    )


if __name__ == "__main__":
    main()
