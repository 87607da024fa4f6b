"""The published rows: throughput of several GPUs beside that of one."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.scaling.facts import BLANK, CORES, DECODED, FILES, LEFT_OUT, MILLIONS, RAGGED
from laptime.estimate.data_parallel import DDP, Alone, Habits, Scaled, alone_from_time, scale
from laptime.hardware import Device, device

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
            spread=constants["spread"],
            raggedness=constants["raggedness"] if self.ragged else 0.0,
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
