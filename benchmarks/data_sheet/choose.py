"""The list of rows, chosen by rule: `python -m benchmarks.data_sheet.choose REFERENCE`; timm must be there.

Written before any prediction of the new rows was looked at, but for the last two rules. The rules:

NeuSight  inference and steps on one GPU, eager; not switchxl4, a mixture of experts that transformers lacks.
timm      networks that timm 1.0.30 has by the same name. Of every architecture file, the one in the middle
          by name; of files with a dozen networks or more, also those at 1/6 and 5/6. Training: all of the
          RTX 3090's in NCHW. Forward: those that all five eager files have at the same image size; the
          middle one only. The CPUs' files are of compiled networks: kept as a group of their own.
Torch7    cuDNN 5.1; for each GPU and network the newest one, the first in the file; forward, and forward
          with backward.
NVIDIA    PyTorch, one GPU: BERT, whose batch the file gives, and the three ConvNets whose batch their
          configs.yml gives; not what is flagged SUSPECT. Others: no batch, or networks of NVIDIA's own code.
          Afterwards: not BERT with TF32, whose matrix products use it too, as no precision of laptime does;
          and not BERT's pre-training: 19 sequences of 512 tokens a second are 19.4 TFLOP/s,
          a V100 has 15.7 in fp32, so they cannot have been that long.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.data_sheet.rows import (
    CONVNETS,
    KEY,
    LIST,
    NEUSIGHT,
    NVIDIA,
    TIMM_FORWARD,
    TIMM_TRAIN,
    TORCH7,
    reference,
)

Row = dict[str, str]
MANY = 12


def neusight(rows: list[Row]) -> Iterator[Row]:
    """Eager steps on one GPU."""
    for row in rows:
        eager = row["n_devices"] == "1" and "eager" in row["note"] and row["model"] != "switchxl4"
        if eager and row["metric"] in ("inference_latency", "step_time"):
            yield row


def spread(names: set[str], places: tuple[int, ...]) -> set[str]:
    """Of each of timm's files, networks at these sixths of the list by name."""
    registry: Any = import_module("timm.models._registry")
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names & set(registry.list_models())):
        by_file[registry._model_to_module[name]].append(name)
    found = set()
    for mine in by_file.values():
        for place in places if len(mine) >= MANY else (3,):
            found.add(mine[len(mine) * place // 6])
    return found


def timm_training(rows: list[Row]) -> Iterator[Row]:
    """A spread over the architectures, NCHW."""
    mine = [row for row in rows if row["framework"].endswith("nchw")]
    chosen = spread({row["model"] for row in mine}, (1, 3, 5))
    return (row for row in mine if row["model"] in chosen)


def timm_forward(rows: list[Row]) -> Iterator[Row]:
    """One network of each architecture at a size that all eager files have, on every device."""
    seen: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        if "eager" in row["framework"]:
            seen[row["model"], _image(row)].add((row["device"], row["framework"]))
    files = max(len(one) for one in seen.values())
    everywhere = [pair for pair, found in seen.items() if len(found) == files]
    size = dict(sorted(everywhere, reverse=True))
    chosen = spread(set(size), (3,))
    return (row for row in rows if row["model"] in chosen and size[row["model"]] == _image(row))


def _image(row: Row) -> str:
    return row["note"].partition("img ")[2].partition(";")[0]


def torch7(rows: list[Row]) -> Iterator[Row]:
    """The newest cuDNN 5.1 of each GPU and network."""
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if "cuDNN 5.1" not in row["framework"] or row["metric"] not in ("forward_time", "fwd+bwd_time"):
            continue
        place = row["device"], row["model"], row["metric"]
        if place not in best or row["framework"] > best[place]["framework"]:
            best[place] = row
    yield from best.values()


def nvidia(rows: list[Row]) -> Iterator[Row]:
    """BERT and three ConvNets on one GPU."""
    for row in rows:
        mine = row["framework"] == "PyTorch" and row["n_devices"] == "1" and "SUSPECT" not in row["note"]
        bert = row["model"] == "BERT" and "Fine-tuning" in row["device"] and row["precision"] != "TF32"
        if mine and (bert or row["model"].rpartition("/")[2] in CONVNETS):
            yield row


RULES = {
    NEUSIGHT: neusight,
    TIMM_TRAIN: timm_training,
    TIMM_FORWARD: timm_forward,
    TORCH7: torch7,
    NVIDIA: nvidia,
}


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    folder = parser.parse_args().reference
    with open(LIST, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, KEY, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for name, rule in RULES.items():
            found = list(rule(reference(folder, name)))
            writer.writerows(found)
            print(name, len(found))


if __name__ == "__main__":
    main()
