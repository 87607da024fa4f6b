"""The networks' steps as workloads, read once: `python -m benchmarks.data_sheet.keep REFERENCE`.

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
from laptime.workload import Workload

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
    """Read them all; what cannot be read is named and left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    every = list(dict.fromkeys(one.asked for one in measured(parser.parse_args().reference)))
    with gzip.open(KEPT, "wt", encoding="utf-8") as file:
        for asked in every:
            try:
                document = read(asked).document()
            except Exception as error:
                print(f"left out: {asked.label}: {error}", file=sys.stderr, flush=True)
                continue
            file.write(json.dumps({"label": asked.label, "workload": document}) + "\n")
    print(f"{KEPT.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
