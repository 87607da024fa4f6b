"""The shapes that networks have, for calibrations to draw from: `python -m benchmarks.shapes OPERATIONS OUT`.

OPERATIONS has a line of JSON for every operation of a network: kind, phase, batch and sizes, as
`laptime.workload` reads them. Batch sizes are taken out, doubles too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def shapes(lines: Iterable[str]) -> dict[str, list[list[int]]]:
    """Convolutions, linear layers and batched products, each once."""
    windows, linear, batched = set(), set(), set()
    for one in map(json.loads, lines):
        sizes, batch = one["sizes"], one["batch"]
        match one["kind"]:
            case "convolution" if not sizes["transposed"]:
                windows.add(_window(sizes))
            case "mm" if one["phase"] == "forward" and sizes["m"] % batch == 0:
                linear.add((sizes["m"] // batch, sizes["k"], sizes["n"]))
            case "bmm" if sizes["b"] % batch == 0:
                named = (sizes[name] for name in ("m", "k", "n", "ta", "tb"))
                batched.add((sizes["b"] // batch, *named))
    return {
        "windows": sorted(map(list, filter(None, windows))),
        "linear": sorted(map(list, linear)),
        "batched": sorted(map(list, batched)),
    }


def _window(sizes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """With the padding of the second dimension, which a reading does not keep: as that of the first."""
    k, m, p = sizes["k"], sizes["l"], sizes["p"]
    q = p if k == m else m // 2
    out = [
        (side + 2 * pad - sizes["dilation"] * (window - 1) - 1) // sizes["s"] + 1
        for side, window, pad in ((sizes["h"], k, p), (sizes["w"], m, q))
    ]
    if out[0] * out[1] != sizes["places"]:
        return None
    return (*(sizes[n] for n in ("c", "o", "h", "w", "k", "l", "s", "p")), q, sizes["dilation"], sizes["g"])


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operations", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with options.operations.open(encoding="utf-8") as file:
        found = shapes(file)
    options.out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print(", ".join(f"{len(rows)} {name}" for name, rows in found.items()))


if __name__ == "__main__":
    main()
