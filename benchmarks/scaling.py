"""The error of predicted scaling: `python -m benchmarks.scaling REFERENCE [--rows] [--constants]`.

Throughput of 2 to 8 GPUs of one node from the published one-GPU row of the same configuration. A few
constants are fitted, always to other rows than those they are tested on: each kind of GPU with each framework
is predicted from the other ones, each fifth of the networks from the rest and, hardest, each file from the
other.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laptime.hardware import Device, device
from laptime.predict.scaling import DDP, Alone, Habits, Scaled, alone_from_time, scale

FILES = "tensorflow_benchmarks_2017.csv", "nvidia_deeplearningexamples_training.csv"
STRONG = "hkbu_networks_guolinke.csv"
FIXED = {FILES[0]: 141, FILES[1]: 439}  # rows predicted, whatever comes out
MILLIONS = {
    # Trainable parameters in millions, as the papers or model cards give them; ≈ marks an estimate of ours.
    "InceptionV3": 23.8,  # arXiv:1512.00567, Keras
    "ResNet-50": 25.6,  # arXiv:1512.03385, torchvision
    "ResNet-152": 60.2,
    "AlexNet": 61.1,  # arXiv:1404.5997, torchvision
    "VGG16": 138.4,  # arXiv:1409.1556
    "resnet50v1.5": 25.6,
    "RN50v1.5": 25.6,
    "resnext101-32x4d": 44.2,  # arXiv:1611.05431
    "se-resnext101-32x4d": 49.0,  # arXiv:1709.01507
    "efficientnet-b0": 5.3,  # arXiv:1905.11946
    "efficientnet-b4": 19.3,
    "efficientnet-widese-b0": 7.1,  # ≈
    "efficientnet-widese-b4": 27.6,  # ≈
    "efficientnet_v2": 21.5,  # arXiv:2104.00298, S
    "Efficientdet": 3.9,  # arXiv:1911.09070, D0
    "MaskRCNN": 44.4,  # torchvision, ResNet-50 FPN
    "SSD": 22.9,  # ≈, ResNet-50 up to its third stage and six heads
    "BART": 406.3,  # arXiv:1910.13461, large
    "BERT": 336.2,  # arXiv:1810.04805, large
    "BERT/biobert": 108.3,  # base, cased
    "ELECTRA": 110.0,  # arXiv:2003.10555, base
    "Transformer": 210.0,  # arXiv:1706.03762, big
    "Transformer-XL": 192.0,  # NVIDIA's README: base
    "Transformer-XL Large model": 247.0,  # and large
    "Jasper": 333.0,  # arXiv:1904.03288, 10x5
    "QuartzNet": 18.9,  # arXiv:1910.10261, 15x5
    "wav2vec2": 95.0,  # arXiv:2006.11477, base
    "FastPitch": 45.0,  # ≈
    "TFT": 1.6,  # ≈
    "UNet_Medical": 31.0,  # arXiv:1505.04597
    "UNet_3D_Medical": 19.1,  # arXiv:1606.06650
    "nnUNet": 31.2,  # arXiv:1809.10486, 3D
    "VNet": 45.6,  # arXiv:1606.04797
    "fcn5": 11.5,  # guolinke/deep-learning-benchmarks torch7/models/fcn5.lua: 512-2048-2048-2048-1000
    "fcn8": 24.1,
}
# Not predicted: no count of parameters; which rows belong together is not told; two networks updated in turn.
LEFT_OUT = {"MoFlow": "parameters unknown", "SIM": "rows not told apart", "HiFiGAN": "two networks in turn"}
# Batches that a row leaves blank, from the repository's launch files (configs.yml of PyTorch's ConvNets,
# MXNet's README, TensorFlow 2's train_benchmark_*.sh, Efficientdet's scripts): A100 mixed and TF32, V100
# mixed and fp32 with 32 GB, the same with 16 GB.
BLANK = {
    "resnet50v1.5": (256, 256, 256, 112, 256, 112),
    "resnext101-32x4d": (128, 128, 128, 64, 128, 64),
    "se-resnext101-32x4d": (128, 128, 112, 64, 112, 64),
    "efficientnet-b0": (256, 256, 256, 128, 128, 64),
    "efficientnet-widese-b0": (256, 256, 256, 128, 128, 64),
    "efficientnet-b4": (128, 64, 64, 32, 32, 16),
    "efficientnet-widese-b4": (128, 64, 64, 32, 32, 16),
    "RN50v1.5": (256, 256, 256, 128, 192, 96),
    "efficientnet_v1 B0": (1024, 512, 512, 256, 512, 256),
    "efficientnet_v1 B4": (160, 80, 64, 32, 64, 32),
    "efficientnet_v2": (0, 0, 128, 64, 128, 64),
    "Efficientdet": (150, 80, 60, 30, 60, 30),
}
# Images that processors decode: side in pixels. The others come from DALI, from memory, or are synthetic.
DECODED = {
    "InceptionV3": 299,
    **dict.fromkeys(("ResNet-50", "ResNet-152", "AlexNet", "VGG16"), 224),
    **dict.fromkeys(("resnet50v1.5", "resnext101-32x4d", "se-resnext101-32x4d"), 224),
    **dict.fromkeys(("efficientnet-b0", "efficientnet-widese-b0", "efficientnet_v1 B0"), 224),
    **dict.fromkeys(("efficientnet-b4", "efficientnet-widese-b4", "efficientnet_v1 B4"), 380),
    "efficientnet_v2": 300,
    "Efficientdet": 512,
    "MaskRCNN TensorFlow2": 1033,  # 1333 × 800
}
RAGGED = {"Jasper", "QuartzNet", "wav2vec2", "FastPitch", "MaskRCNN", "Transformer"}  # samples of any length
CORES = {
    "p100": 40,
    "k80": 16,
    "a100": 128,
    "v100-sxm2": 40,
    "v100-sxm3": 48,
}  # of a DGX-1, cloud, DGX A100, DGX-2
# Few enough to have a meaning each; where the rows do not tell, the start remains: as if it cost nothing.
START = {
    "link_share": 1.0,
    "contention": 1e-3,
    "ddp_sync_s": 1e-4,
    "horovod_sync_s": 1e-4,
    "spread": 1e-3,
    "ragged_spread": 1e-3,
    "board": 1e-4,
    "decode_s": 1e-4,  # core-seconds for a megapixel
}
Constants = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published throughput of several GPUs, beside that of one."""

    file: str
    network: str
    group: str
    device: Device
    gpus: int
    mixed: bool
    kind: str  # ddp, horovod, server
    alone: Alone
    accumulate: int
    slowdown: float  # measured: of an update, against one GPU
    ragged: bool
    decoded: float  # megapixels of a GPU's batch for each core
    twice: float | None  # the slow-down on two GPUs, where that was published

    @property
    def label(self) -> str:
        """A name for the row."""
        each = f"{self.alone.step_s * 1e3:.0f} ms"
        return f"{self.network} {self.group.split('/')[1]} {self.device.name} ×{self.gpus} ({each})"

    def habits(self, constants: Constants) -> Habits:
        """What the constants mean for this row."""
        shared = replace(
            DDP,
            contention=min(1.0, constants["contention"]),
            spread=constants["ragged_spread" if self.ragged else "spread"],
            board=constants["board"] if self.device.name == "k80" else 0.0,
            host_s=constants["decode_s"] * self.decoded,
        )
        if self.kind == "server":
            return replace(shared, through="host", link_share=1.0, sync_s=0.0)
        sync_s = constants[f"{self.kind}_sync_s"]
        return replace(shared, link_share=min(1.0, constants["link_share"]), sync_s=sync_s)

    def scaled(self, constants: Constants) -> Scaled:
        """The prediction."""
        return scale(self.alone, self.device, self.gpus, self.habits(constants), accumulate=self.accumulate)


def rows(folder: Path, name: str, left: Counter[str]) -> Iterator[Row]:
    """Rows with a one-GPU row of the same configuration; `left` counts what is left out, and why."""
    with open(folder / name, newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["metric"] == "training_throughput"]
    ones: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for at, line in enumerate(lines):
        if line["n_devices"] == "1":
            ones[_key(line)].append(at)
    twos: dict[int, float] = {}
    for at, line in enumerate(lines):
        gpus = int(line["n_devices"])
        if not 2 <= gpus <= 8:
            continue
        places = ones[
            _key(line)
        ]  # some tables repeat a configuration on other data: the last one before counts
        place = next((one for one in reversed(places) if one < at), min(places, default=-1))
        why = _why_not(line, lines[place] if places else None)
        if why:
            left[why] += 1
            continue
        one = float(lines[place]["value"])
        slowdown = gpus * one / float(line["value"])
        if gpus == 2:
            twos[place] = slowdown
        yield _row(name, line, one, slowdown, twos.get(place))


def _why_not(line: dict[str, str], one: dict[str, str] | None) -> str | None:
    network = line["model"].split("/")[-1]
    if network in LEFT_OUT:
        return f"{network}: {LEFT_OUT[network]}"
    if one is None:
        return "no one-GPU row with the same batch for each GPU"
    return "flagged SUSPECT" if "SUSPECT" in one["note"] + line["note"] else None


def _key(line: dict[str, str]) -> tuple[str | None, ...]:
    note = line["note"]
    named = ("model", "framework", "device", "batch_per_device", "precision", "unit")
    first = note.split(";")[0]
    return (*(line[one] for one in named), first, _found(r"section: (.*)", note), _sequence(note))


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None


def _sequence(note: str) -> str | None:
    return _found(r"Sequence [lL]ength=(\d+)", note)


def _row(name: str, line: dict[str, str], one: float, slowdown: float, twice: float | None) -> Row:
    old = name == FILES[0]
    network, framework = line["model"].split("ConvNets/")[-1].removeprefix("efficientnet/"), line["framework"]
    framework = framework.split(",")[0].split(" ")[0]
    if network == "efficientnet_v1":  # the two are told apart by their speed
        network += " B4" if one < 600 else " B0"
    large = (_found(r"section: (Large model)", line["note"]) or "").strip()
    network = f"{network} {large}".strip()
    used = _device(line["device"])
    mixed = line["precision"].startswith("AMP") or "BF16" in line["note"]
    batch, accumulate = _batches(line, network, used, mixed)
    server = old and not (used.name == "p100-sxm2" and network in ("AlexNet", "VGG16"))
    kind = "server" if server else "ddp" if framework == "PyTorch" else "horovod"
    side = DECODED.get(network, DECODED.get(f"{network} {framework}", 0))
    if line["note"].startswith("synthetic"):
        side = 0
    cores = next(count for chip, count in CORES.items() if used.name.startswith(chip))
    millions = MILLIONS[network.replace("_v1 B", "-b")]
    return Row(
        file=name,
        network=network,
        group=f"{name.split('_')[0]}/{framework}/{used.name.split('-')[0]}",
        device=used,
        gpus=int(line["n_devices"]),
        mixed=mixed,
        kind=kind,
        alone=alone_from_time(batch * _items(network) / one, millions * 1e6),
        accumulate=accumulate,
        slowdown=slowdown,
        ragged=network in RAGGED,
        decoded=batch * side**2 / 1e6 / cores,
        twice=twice,
    )


def _device(text: str) -> Device:
    """The GPU of a published system."""
    gigabytes = "16gb" if re.search(r"16 ?G", text) else "32gb"
    if "A100" in text:
        return device("a100-sxm-80gb" if re.search(r"80 ?G", text) else "a100-sxm-40gb")
    if "DGX-2" in text:
        return device("v100-sxm3-32gb")
    return device("p100-sxm2" if "P100" in text else "k80" if "K80" in text else f"v100-sxm2-{gigabytes}")


def _batches(line: dict[str, str], network: str, used: Device, mixed: bool) -> tuple[float, int]:
    """Samples in a GPU's batch, and batches to an update. Of two figures the larger is mixed precision's."""
    note = line["note"]
    pick: Callable[[list[int]], int] = max if mixed else min
    text = line["batch_per_device"].replace("FP32", "")
    given = [int(one) for one in re.findall(r"\d+", text)]
    if not given and (size := _found(r"BS=(\d+)", note)):
        given = [int(size)]
    if not given:
        column = 0 if used.name.startswith("a100") else 4 if used.name.endswith("16gb") else 2
        given = [BLANK[network][column + (not mixed)]]
    batch: float = pick(given)
    steps = _found(r"(?:Grad accumulation|Gradient Accumulation|Accumulation steps)[^=]*=([\d ,and]+)", note)
    accumulate = 1
    if steps:  # more steps where batches are smaller
        found = [int(one) for one in re.findall(r"\d+", steps)]
        accumulate = min(found) if mixed else max(found)
    whole = _found(r"Accumulated Batch size / GPU[^=]*=(\d+)", note)
    if whole:
        accumulate = int(whole) // int(batch)
    elif (
        batch >= 2048 and network == "BERT"
    ):  # the README of PyTorch's BERT gives the whole update's batch here
        batch /= accumulate
    return batch, accumulate


def _items(network: str) -> float:
    """What a throughput counts in a sample: the tokens or frames of NVIDIA's scripts."""
    return {
        "Transformer-XL": 192,  # target length
        "Transformer-XL Large model": 384,
        "FastPitch": 566,  # mel frames of LJSpeech: 6.57 s × 22050 / 256
        "wav2vec2": 4375,  # tokens of a batch of 1.4 million samples / 320
    }.get(network, 1)


class Fit:
    """Constants for rows, by a search that moves one at a time; the mean error of the logarithm counts."""

    def __init__(self, found: Sequence[Row]) -> None:
        self.rows = found
        self.seen: dict[float, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.alone = self._of(lambda one: one.accumulate * one.alone.step_s)
        self.measured = self._of(lambda one: one.slowdown)
        waits = {**START, "spread": 1.0, "ragged_spread": 1.0}
        self.waiting = self._of(lambda one: one.scaled(waits).waiting_s)
        self.ragged = self._of(lambda one: float(one.ragged))
        self.board = self._of(lambda one: float(one.device.name == "k80"))
        self.host = self._of(lambda one: one.decoded * one.accumulate * (one.gpus - 1))
        self.kinds = {kind: self._of(lambda one, kind=kind: one.kind == kind) for kind in ("ddp", "horovod")}

    def _of(self, value: Callable[..., float]) -> NDArray[np.float64]:
        return np.array([float(value(one)) for one in self.rows])

    def slowdowns(self, constants: Constants) -> NDArray[np.float64]:
        """As `Row.scaled` gives them, all rows at once."""
        share = constants["link_share"]
        if share not in self.seen:
            scaled = [one.scaled({**START, "link_share": share}) for one in self.rows]
            exposed, hidden = (
                [getattr(one, name) for one in scaled] for name in ("exposed_s", "overlapped_s")
            )
            self.seen[share] = np.array(exposed), np.array(hidden)
        exposed_s, hidden_s = self.seen[share]
        spread = constants["spread"] * (1 - self.ragged) + constants["ragged_spread"] * self.ragged
        added = exposed_s + min(1.0, constants["contention"]) * hidden_s + spread * self.waiting
        added += constants["board"] * self.board * self.alone + constants["decode_s"] * self.host
        added += sum(constants[f"{kind}_sync_s"] * where for kind, where in self.kinds.items())
        return np.asarray(1 + added / self.alone)

    def loss(self, constants: Constants, where: NDArray[np.bool_]) -> float:
        """Over the rows that may be fitted to."""
        return float(np.abs(np.log(self.measured / self.slowdowns(constants)))[where].mean())

    def constants(self, where: NDArray[np.bool_]) -> Constants:
        """From the start, by factors of four that shrink to 2 %."""
        best, factor = dict(START), 4.0
        loss = self.loss(best, where)
        while factor > 1.02:
            before = loss
            for name in START:
                for by in (factor, 1 / factor):
                    tried = {**best, name: best[name] * by}
                    if tried["link_share"] > 1 or (found := self.loss(tried, where)) >= loss - 1e-6:
                        continue
                    best, loss = tried, found
            if loss >= before - 1e-6:
                factor = factor**0.5
        return best

    def held_out(self, fold: Callable[[Row], Any]) -> NDArray[np.float64]:
        """Errors of throughput, each fold predicted by `scale` with constants of the others."""
        folds = [fold(one) for one in self.rows]
        errors = np.zeros(len(folds))
        for one in sorted(set(folds)):
            mine = np.array([other == one for other in folds])
            constants = self.constants(~mine)
            for at in np.flatnonzero(mine).tolist():
                predicted = self.rows[at].scaled(constants).efficiency
                errors[at] = predicted * self.rows[at].slowdown - 1
        return errors


def baselines(found: Sequence[Row]) -> dict[str, NDArray[np.float64]]:
    """What needs no fit: no communication, and all of it after the backward pass at nominal bandwidth."""
    after = [
        replace(one.habits(START), overlaps=False, spread=0.0, sync_s=0.0, board=0.0, host_s=0.0)
        for one in found
    ]
    rings = [
        scale(one.alone, one.device, one.gpus, habits, accumulate=one.accumulate).efficiency
        for one, habits in zip(found, after, strict=True)
    ]
    measured = np.array([one.slowdown for one in found])
    return {
        "linear speed-up": measured - 1,
        "all-reduce after backward": np.array(rings) * measured - 1,
    }


def from_two(one: Row) -> float:
    """a + b/n through one and two GPUs."""
    assert one.twice is not None
    predicted = 1 + 2 * (one.twice - 1) * (one.gpus - 1) / one.gpus
    return one.slowdown / predicted - 1


def summary(errors: NDArray[np.float64]) -> str:
    """Mean, median, p90 and worst of the absolute errors in per cent."""
    found = np.abs(errors) * 100
    figures = found.mean(), np.median(found), np.quantile(found, 0.9), found.max()
    return " | ".join([str(len(found)), *(f"{one:.1f}" for one in figures)])


def network_fold(found: Sequence[Row]) -> Callable[[Row], int]:
    """Fifths of the networks, in alphabetical order one by one."""
    names = sorted({one.network for one in found})
    return lambda one: names.index(one.network) % 5


def strong(folder: Path, fit: Fit) -> NDArray[np.float64]:
    """HKBU's rows split one batch: the one-GPU step is taken to shrink with it. Fitted to none of them."""
    constants = fit.constants(np.ones(len(fit.rows), bool))
    habits = replace(DDP, through="host", link_share=1.0, sync_s=0.0, contention=constants["contention"])
    ones: dict[tuple[str, str], float] = {}
    errors = []
    with open(folder / STRONG, newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if not (line["device"] == "Tesla K40m" and line["model"] in MILLIONS):
                continue
            key, gpus, step_s = (
                (line["model"], line["framework"]),
                int(line["n_devices"]),
                float(line["value"]),
            )
            if gpus == 1:
                ones[key] = step_s
                continue
            alone = alone_from_time(ones[key] / gpus, MILLIONS[line["model"]] * 1e6)
            habits = replace(habits, spread=constants["spread"])
            errors.append(step_s / scale(alone, device("k40"), gpus, habits).step_s - 1)
    return np.array(errors)


def report(folder: Path, every: bool, shown: bool) -> Iterator[str]:
    """The tables, line by line."""
    left: Counter[str] = Counter()
    found = [row for name in FILES for row in rows(folder, name, left)]
    for name in FILES:
        count = sum(one.file == name for one in found)
        if count != FIXED[name]:
            yield f"NOTE: {name} has {count} rows where {FIXED[name]} were fixed"
    yield f"{len(found)} rows. Left out: " + "; ".join(
        f"{count} {why}" for why, count in sorted(left.items())
    )
    fit = Fit(found)
    held = {
        "laptime, by GPU and framework": fit.held_out(lambda one: one.group),
        "laptime, by fifths of the networks": fit.held_out(network_fold(found)),
        "laptime, by file": fit.held_out(lambda one: one.file),
        **baselines(found),
    }
    yield from (
        "| held out | rows | mean % | median | p90 | worst |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    )
    for name, errors in held.items():
        yield f"| {name} | {summary(errors)} |"
    ours = held["laptime, by GPU and framework"]
    parts: dict[str, list[bool]] = {
        "TensorFlow 2017": [one.file == FILES[0] for one in found],
        "NVIDIA": [one.file == FILES[1] for one in found],
        "fp32 and TF32": [not one.mixed for one in found],
        "mixed precision": [one.mixed for one in found],
        "nothing decoded by the host": [not one.decoded for one in found],
    }
    for name, where in parts.items():
        yield f"| … {name} | {summary(ours[where])} |"
        yield f"| … … linear speed-up | {summary(held['linear speed-up'][where])} |"
    later = np.array([one.twice is not None and one.gpus > 2 for one in found])
    two = np.array([from_two(one) for one, use in zip(found, later, strict=True) if use])
    yield f"| 4 and 8 GPUs where 2 are published: laptime | {summary(ours[later])} |"
    yield f"| … a + b/n through 1 and 2 GPUs | {summary(two)} |"
    yield f"| … linear speed-up | {summary(held['linear speed-up'][later])} |"
    yield f"| HKBU, one batch split (8 rows, fitted to none) | {summary(strong(folder, fit))} |"
    order = np.argsort(-np.abs(ours))
    yield "Worst ten: " + "; ".join(f"{found[at].label} {ours[at] * 100:+.0f} %" for at in order[:10]) + "."
    if shown:
        constants = fit.constants(np.ones(len(found), bool))
        yield "Fitted to all rows, for use, not for judging: " + str(
            {k: float(f"{v:.3g}") for k, v in constants.items()}
        )
        grouped = defaultdict(list)
        for one, error in zip(found, ours, strict=True):
            grouped[one.group].append(error)
        yield from (f"{group:60} {summary(np.array(errors))}" for group, errors in sorted(grouped.items()))
    if every:
        yield from (f"{found[at].label:70} {ours[at] * 100:+6.1f} %" for at in order)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    parser.add_argument(
        "--constants", action="store_true", help="those fitted to all rows, and errors by group"
    )
    options = parser.parse_args()
    for line in report(options.reference, options.rows, options.constants):
        print(line, flush=True)


if __name__ == "__main__":
    main()
