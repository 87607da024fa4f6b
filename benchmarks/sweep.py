"""A long sweep of single operations on the GPU at hand: `python -m benchmarks.sweep OUT.csv --seconds 300`.

`laptime calibrate` measures for two minutes at most; the calibration that laptime ships rests on more.
`python -m benchmarks.calibration` fits it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from laptime.microbench import Sweep, all_families, convolutions, write_rows

# Draws of each round, where they are not one: what was thin in `h200_ops.csv`, then what networks showed.
SHARES = {
    "first": {"convolution": 24, "mm": 6, "bmm": 3, "recurrent": 3, "elementwise": 2},
    "second": {"convolution": 20, "batch_norm": 4, "pool": 4, "reduction": 5, "mm": 4, "permuted": 3},
}


def main() -> None:
    """Measure and say how many of each kind there are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shares", choices=SHARES, default="first")
    options = parser.parse_args()
    shares = SHARES[options.shares]
    families = [replace(one, share=shares.get(one.name, 1)) for one in all_families()]
    if options.shares == "second":
        convolutions.LAST["gpu"] = 0.5
    device = torch.device(options.device)
    rows = list(Sweep(device, seconds=options.seconds, families=families, seed=options.seed))
    write_rows(rows, options.out)
    counts = Counter(row.operation.kind for row in rows)
    print(f"{len(rows)} rows: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))


if __name__ == "__main__":
    main()
