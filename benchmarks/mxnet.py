"""Another batch size, one run known, in MXNet: `python -m benchmarks.mxnet REFERENCE [--rows] [--trace]`.

`mxnet_perf_faq.csv`: six networks on K80, M60, V100 and Amazon's C5, inference and training. Each row is
predicted from each other row of the same network within four times its batch: predicted time times the known
row's measured over predicted. Nothing is fitted to these rows; that MXNet waits for the device after every
operation is known of it. The networks were read once, with `--trace`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from laptime.estimate.predict import predict_all
from laptime.hardware import Device, device
from laptime.model import Workload
from laptime.model.prediction import Prediction

KEPT = Path(__file__).parent / "workloads" / "mxnet.jsonl.gz"
MODES = {"inference_throughput": "inference", "training_throughput": "training"}
GPUS = {"Tesla K80": "k80", "Tesla M60": "m60", "Tesla V100": "v100-sxm2-16gb"}  # EC2's p2, g3 and p3
C5 = "xeon-platinum-8124m"
CORES = {"C5.18xlarge": 36, "C5.9xlarge": 18, "C5.4xlarge": 8, "C5.2xlarge": 4, "C5.xlarge": 2}
WITHIN = 4  # times the batch
LARGE = 16
HKBU = [(name, batch, "training", "fp32") for name in ("fcn5", "fcn8") for batch in (8192, 4096, 2048)]
Asked = tuple[str, int, str, str]  # network, batch, mode, precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published throughput and its prediction."""

    device: str
    asked: Asked
    step_s: float
    predicted: Prediction

    @property
    def label(self) -> str:
        """A name for the row."""
        network, batch, mode, precision = self.asked
        return f"{network} b{batch} {mode} {precision} {self.device}"

    @property
    def series(self) -> tuple[str, ...]:
        """What rows of another batch have in common."""
        network, _, mode, precision = self.asked
        return self.device, network, mode, precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row predicted from another one."""

    known: Row
    wanted: Row

    @property
    def error(self) -> float:
        """Of the time, after the correction by the known row."""
        return self._error(serial_s(self.known.predicted), serial_s(self.wanted.predicted))

    @property
    def queued_error(self) -> float:
        """As if MXNet handed operations over ahead of the device, which PyTorch does."""
        return self._error(self.known.predicted.step_s, self.wanted.predicted.step_s)

    @property
    def on_gpu(self) -> bool:
        """And not on one of Amazon's CPUs."""
        return not self.wanted.device.startswith("C5")

    @property
    def linear_error(self) -> float:
        """As if time went with the batch."""
        return self._error(self.known.asked[1], self.wanted.asked[1])

    def _error(self, known: float, wanted: float) -> float:
        return wanted * self.known.step_s / known / self.wanted.step_s - 1

    @property
    def label(self) -> str:
        """Both batches."""
        return f"{self.wanted.label} from b{self.known.asked[1]}"


def serial_s(predicted: Prediction) -> float:
    """Seconds of a step whose host waits for the device after every operation.

    MXNet 1.2 does: src/executor/graph_executor.cc, "Wait GPU kernel to finish".
    """
    return predicted.busy_s + predicted.host_s


def published(folder: Path) -> Iterator[tuple[str, Asked, float]]:
    """Device, what ran on it, and the seconds of a batch."""
    with open(folder / "mxnet_perf_faq.csv", newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["metric"] in MODES:  # the others say that memory ran out
                batch = int(line["batch_per_device"])
                asked = line["model"], batch, MODES[line["metric"]], line["precision"]
                yield line["device"], asked, batch / float(line["value"])


def machine(name: str) -> Device:
    """A GPU of the catalog; of a C5 instance its share of a socket, or both of them."""
    if name in GPUS:
        return device(GPUS[name])
    whole, size = device(C5), name.split()[2]
    share = CORES[size] / (whole.sms or 1)
    peak, bandwidth = (whole.fp32 or 0.0) * share, whole.memory_bandwidth_gbs * share
    return replace(whole, name=f"{C5} {size}", fp32=peak, memory_bandwidth_gbs=bandwidth)


@cache
def workloads() -> dict[Asked, Workload]:
    """The networks as they were read."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        kept = [json.loads(line) for line in file]
    return {tuple(one["asked"]): Workload.of(one["workload"]) for one in kept}


def rows(folder: Path) -> list[Row]:
    """Every published throughput with its prediction; a network is read for all devices at once."""
    lines = defaultdict(list)
    for name, asked, step_s in published(folder):
        lines[asked].append((name, step_s))
    found = []
    for asked, here in lines.items():
        made = predict_all(workloads()[asked], [machine(name) for name, _ in here])
        for (name, step_s), predicted in zip(here, made, strict=True):
            short = name.split()[1] if name in GPUS else name.split()[2]
            found.append(Row(device=short, asked=asked, step_s=step_s, predicted=predicted))
    return found


def pairs(found: Sequence[Row]) -> list[Pair]:
    """Each row from each other one of its series, within four times the batch."""
    series = defaultdict(list)
    for one in found:
        series[one.series].append(one)
    return [
        Pair(known=known, wanted=wanted)
        for here in series.values()
        for known, wanted in itertools.permutations(here, 2)
        if max(known.asked[1], wanted.asked[1]) <= WITHIN * min(known.asked[1], wanted.asked[1])
    ]


def summary(errors: Sequence[float]) -> str:
    """Rows, mean, bias, median, p90 and worst in per cent."""
    sizes = np.abs(errors) * 100
    bias = f"{np.mean(errors) * 100:+.1f}"
    figures = np.median(sizes), np.quantile(sizes, 0.9), sizes.max()
    return " | ".join([str(len(sizes)), f"{sizes.mean():.1f}", bias, *(f"{one:.1f}" for one in figures)])


def table(found: Sequence[Pair]) -> Iterator[str]:
    """The error table, line by line."""
    yield "| case | pairs | mean % | bias | median | p90 | worst |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    gpus = [one for one in found if one.on_gpu]
    large = [one for one in gpus if min(one.known.asked[1], one.wanted.asked[1]) >= LARGE]
    yield f"| GPUs | {summary([one.error for one in gpus])} |"
    yield f"| … as if operations were queued, as in PyTorch | {summary([one.queued_error for one in gpus])} |"
    yield f"| … as if time went with the batch | {summary([one.linear_error for one in gpus])} |"
    yield f"| … both batches {LARGE} or more | {summary([one.error for one in large])} |"
    groups: dict[str, list[float]] = defaultdict(list)
    for one in found:
        _, _, mode, precision = one.wanted.asked
        groups[f"{one.wanted.device}, {mode}, {precision}"].append(one.error)
    for one in gpus:
        groups[f"{one.wanted.asked[0]}, GPUs"].append(one.error)
    for name, errors in groups.items():
        yield f"| {name} | {summary(errors)} |"
    yield f"| all with the CPUs | {summary([one.error for one in found])} |"
    worst = sorted(found, key=lambda one: -abs(one.error))[:10]
    yield "\nWorst ten: " + "; ".join(f"{one.label} {one.error:+.0%}" for one in worst) + "."


def trace_all(folder: Path) -> None:
    """Read every network anew, HKBU's fully connected ones for `benchmarks.scaling` too."""
    import torch

    from benchmarks.mxnet_networks import NETWORKS, shape
    from laptime.api import workload

    wanted = sorted({asked for _, asked, _ in published(folder)})
    with gzip.open(KEPT, "wt", encoding="utf-8") as file:
        for asked in [*wanted, *HKBU]:
            name, batch, mode, precision = asked
            with torch.device("meta"):
                network, samples = NETWORKS[name](), torch.zeros(batch, *shape(name))
            if precision == "fp16":  # all of it, as MXNet's examples do, not by autocast
                network, samples = network.half(), samples.half()
            read = workload(network, example=(samples,), mode=mode, name=name)
            file.write(json.dumps({"asked": asked, "workload": read.document()}) + "\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument("--trace", action="store_true", help="read the networks anew first")
    options = parser.parse_args()
    if options.trace:
        trace_all(options.reference)
    found = rows(options.reference)
    if options.rows:
        for one in found:
            seconds = serial_s(one.predicted)
            times = f"{one.step_s * 1e3:9.2f} {seconds * 1e3:9.2f} ms {seconds / one.step_s - 1:+7.1%}"
            print(f"{one.label:48} {times}, its host {one.predicted.host_s * 1e3:.1f} ms")
    print("\n".join(table(pairs(found))))


if __name__ == "__main__":
    main()
