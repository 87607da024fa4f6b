"""The networks' steps as workloads, read once: `python -m benchmarks.data_sheet.keep REFERENCE [--all]`.

They are kept beside this package, so that the benchmark needs neither timm nor transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data_sheet.rows import Asked, measured
from laptime.model import Workload

KEPT = Path(__file__).parents[1] / "workloads" / "data_sheet.jsonl.gz"


def kept() -> Iterator[tuple[str, Workload]]:
    """Every workload by its label."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        for line in file:
            one = json.loads(line)
            yield one["label"], Workload.of(one["workload"])


def read(asked: Asked) -> Workload:
    """A step, read off its network."""
    from benchmarks.data_sheet.networks import built
    from laptime.api import workload

    network, example = built(asked)
    return workload(network, example=example, precision=asked.precision, mode=asked.mode, name=asked.network)


def main() -> None:
    """Read those that are not there yet, or all; what cannot be read is named and left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--all", action="store_true", help="anew")
    options = parser.parse_args()
    every = dict.fromkeys(one.asked for one in measured(options.reference))
    there = {} if options.all else dict(kept())
    lines = []
    for asked in every:
        try:
            found = there.get(asked.label) or read(asked)
        except Exception as error:
            print(f"left out: {asked.label}: {error}", file=sys.stderr, flush=True)
            continue
        lines.append(json.dumps({"label": asked.label, "workload": found.document()}) + "\n")
    with gzip.open(KEPT, "wt", encoding="utf-8") as file:
        file.writelines(lines)
    print(f"{len(lines)} workloads, {KEPT.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
