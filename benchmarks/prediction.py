"""The error of predictions: `python -m benchmarks.prediction REFERENCE [--rows] [--held-out] [--trace]`.

REFERENCE is the folder of measurements: training steps on the H200 (`h200_measured.csv`), predicted from
single operations (`h200_ops.csv` and our sweeps) alone; no network was fitted to. With `--held-out` each
family is predicted by models that saw no convolution and no product with a shape of that family's, at any
batch size (a fit for each, some minutes). The networks were read once, with `--trace` (it needs torchvision
and transformers), and are kept beside this file.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laptime.estimate.device_speed import Speed
from laptime.estimate.op_times import predict_step, prepare
from laptime.estimate.predict import predict, predict_all
from laptime.estimate.run_correction import KEPT_PER_DOUBLING
from laptime.hardware import device, devices
from laptime.model import Workload
from laptime.model.prediction import Prediction

KEPT = Path(__file__).parent / "workloads" / "h200_measured.jsonl.gz"
GPU_BOUND = 0.9  # of the step the device is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured step and its prediction."""

    label: str
    family: str
    precision: str
    step_ms: float
    peak_mib: float
    predicted: Prediction

    @property
    def error(self) -> float:
        """Of the time."""
        return self.predicted.step_s * 1e3 / self.step_ms - 1

    @property
    def memory_error(self) -> float:
        """Of the peak."""
        return self.predicted.peak_memory_bytes / 2**20 / self.peak_mib - 1

    @property
    def gpu_bound(self) -> bool:
        """By the prediction, which is all that a user has."""
        return self.predicted.busy_s > GPU_BOUND * self.predicted.step_s


def measured(folder: Path) -> list[dict[str, str]]:
    """The rows of the H200."""
    with open(folder / "h200_measured.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def label(row: dict[str, str]) -> str:
    """A name for a row."""
    return f"{row['model']}-{row['batch']}-{row['precision']}"


def kept(folder: Path) -> Iterator[tuple[dict[str, str], Workload]]:
    """Every measured step and its workload."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        found = {one["label"]: one["workload"] for one in map(json.loads, file)}
    for row in measured(folder):
        yield row, Workload.of(found[label(row)])


def rows(folder: Path) -> Iterator[Row]:
    """Every measured step with its prediction."""
    for row, workload in kept(folder):
        yield Row(
            label=label(row),
            family="resnet" if row["family"] == "wide" else row["family"],
            precision=row["precision"],
            step_ms=float(row["step_ms"]),
            peak_mib=float(row["peak_alloc_mib"]),
            predicted=predict(workload, device("h200")),
        )


def held_out(folder: Path) -> list[str]:
    """Errors of families whose shapes no model has seen."""
    from benchmarks.calibration import fitted, timed, without

    operations = timed(folder / "h200_ops.csv")
    families: dict[str, list[tuple[dict[str, str], Workload]]] = defaultdict(list)
    for row, asked in kept(folder):
        families["resnet" if row["family"] == "wide" else row["family"]].append((row, asked))
    errors: dict[str, list[float]] = defaultdict(list)
    for found in families.values():
        rest = without(operations, [asked for _, asked in found])
        speed = Speed(device=device("h200"), calibration=fitted(rest))
        for row, asked in found:
            step = predict_step(prepare(asked, speed.calibration), speed)
            error = step.step_s * 1e3 / float(row["step_ms"]) - 1
            errors[f"step, {row['precision']}, shapes unseen"].append(error)
            if step.busy_s > GPU_BOUND * step.step_s:
                errors[f"… {row['precision']}, GPU-bound, shapes unseen"].append(error)
    return [f"| {name} | {summary(found)} |" for name, found in errors.items()]


def summary(errors: list[float]) -> str:
    """Mean, median, p90 and worst of the absolute errors."""
    found = np.abs(errors) * 100
    figures = found.mean(), np.median(found), np.quantile(found, 0.9), found.max()
    return " | ".join([str(len(found)), *(f"{one:.1f}" for one in figures)])


def table(found: list[Row]) -> list[str]:
    """The error table."""
    made = ["| case | rows | mean % | median | p90 | worst |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for precision in ("fp32", "bf16"):
        mine = [one for one in found if one.precision == precision]
        made.append(f"| step, {precision} | {summary([one.error for one in mine])} |")
        bound = [one.error for one in mine if one.gpu_bound]
        made.append(f"| … GPU-bound | {summary(bound)} |")
    made.append(f"| another batch size within 4x, one run known | {summary(other_batches(found))} |")
    made.append(f"| peak memory | {summary([one.memory_error for one in found])} |")
    low = min(one.memory_error for one in found)
    made.append(f"\nThe peak that was predicted furthest too low: {low * 100:.1f} %.")
    inside = [
        one.predicted.interval_s[0] <= one.step_ms / 1e3 <= one.predicted.interval_s[1] for one in found
    ]
    made.append(f"Inside their interval, which is to hold nine in ten: {np.mean(inside) * 100:.0f} %.")
    worst = sorted(found, key=lambda one: -abs(one.error))[:10]
    made.append("Worst ten: " + ", ".join(f"{one.label} {one.error * 100:+.0f} %" for one in worst) + ".")
    return made


def other_batches(found: list[Row]) -> list[float]:
    """Each step from a measured one of the same network, as `predict RUN` corrects it by that one's error."""
    errors = []
    for known, wanted in itertools.permutations(found, 2):
        one, other = known.predicted, wanted.predicted
        alike = (one.network, one.precision) == (other.network, other.precision)
        if alike and max(one.batch, other.batch) <= 4 * min(one.batch, other.batch):
            kept = KEPT_PER_DOUBLING ** abs(np.log2(other.batch / one.batch))
            corrected = other.step_s * (known.step_ms / 1e3 / one.step_s) ** kept
            errors.append(corrected * 1e3 / wanted.step_ms - 1)
    return errors


def speed() -> str:
    """Seconds to read ResNet-50 once torch is there, and to predict it for the whole catalog."""
    import torch

    from laptime.api import workload
    from laptime.training import target

    with torch.device("meta"):
        network = target.network("resnet50")
    begin = time.perf_counter()
    workload(network, input=(3, 224, 224), batch=64)  # the first loads torch's own shape rules
    first, begin = time.perf_counter() - begin, time.perf_counter()
    asked = workload(network, input=(3, 224, 224), batch=64)
    again = time.perf_counter() - begin
    begin = time.perf_counter()
    count = len(predict_all(asked, devices()))
    every = time.perf_counter() - begin
    return f"ResNet-50: read in {first:.2f} s, again in {again:.2f} s; {count} devices in {every:.2f} s."


def trace_all(folder: Path) -> None:
    """Read every network of the measurements anew."""
    KEPT.parent.mkdir(exist_ok=True)
    with gzip.open(KEPT, "wt", encoding="utf-8") as file:
        for row in measured(folder):
            workload = _traced(row["model"], int(row["batch"]), row["precision"])
            file.write(json.dumps({"label": label(row), "workload": workload.document()}) + "\n")
            print(label(row), flush=True)


def _traced(model: str, batch: int, precision: str) -> Workload:
    import torch
    from torch import nn

    from laptime.api import workload

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10_000, 512)
            self.lstm = nn.LSTM(512, 512, 2, batch_first=True)
            self.out = nn.Linear(512, 10_000)

        def forward(self, ids: Any) -> Any:
            return self.out(self.lstm(self.embed(ids))[0])

    with torch.device("meta"):
        ids = torch.zeros(batch, 128 if model == "bert_base" else 64, dtype=torch.long)
        if model == "bert_base":
            import transformers

            network: Any = transformers.BertForMaskedLM(transformers.BertConfig())
            example: Any = {"input_ids": ids, "labels": ids}
        elif model == "lstm_2x512":
            network, example = Words(), (ids,)
        elif model == "fcn_5x2048":
            pairs = itertools.pairwise([512, 2048, 2048, 2048, 2048, 2048])
            hidden = [part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())]
            network, example = nn.Sequential(*hidden, nn.Linear(2048, 1000)), (torch.zeros(batch, 512),)
        else:
            from benchmarks.layers import torchvision

            network, example = getattr(torchvision().models, model)(), (torch.zeros(batch, 3, 224, 224),)
    loss: Any = None
    if model == "lstm_2x512":  # its memory in bf16 is that of scores which were widened before the loss

        def loss(net: Any, batch: Any) -> Any:
            return nn.functional.cross_entropy(net(*batch).float().flatten(0, 1), ids.flatten())

    return workload(network, example=example, precision=precision, name=model, loss=loss)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--held-out", action="store_true", help="also of families whose shapes are unseen")
    parser.add_argument("--trace", action="store_true", help="read the networks anew first")
    options = parser.parse_args()
    if options.trace:
        trace_all(options.reference)
    found = list(rows(options.reference))
    if options.rows:
        for one in found:
            times = f"{one.step_ms:8.2f} {one.predicted.step_s * 1e3:8.2f} ms {one.error:+7.1%}"
            print(f"{one.label:32} {times}  memory {one.memory_error:+6.1%}")
    print("\n".join(table(found)))
    if options.held_out:
        print("\n".join(held_out(options.reference)))
    print(speed())


if __name__ == "__main__":
    main()
