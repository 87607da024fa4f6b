"""The measured steps: which rows of the reference files, and what each of them ran.

`rows.csv` lists the rows by the columns of the reference files; `choose` wrote it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from laptime import hardware
from laptime.hardware import Device

LIST = Path(__file__).parent / "rows.csv"
KEY = ("file", "model", "framework", "device", "batch_per_device", "precision", "metric", "note")

NEUSIGHT = "neusight_measured_labels"
TIMM_TRAIN = "timm_train_rtx3090"
TIMM_FORWARD = "timm_forward_multi_device"
TORCH7 = "cnn_benchmarks_jcjohnson_paperspace"
NVIDIA = "nvidia_deeplearningexamples_training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A step of a network, as it can be read."""

    network: str  # library:name
    batch: int
    size: int  # pixels of a side, or tokens
    precision: str
    mode: str
    fused_attention: bool = False  # as one kernel: torch 2 and newer, where the library asks for it
    channels_last: bool = False

    @property
    def label(self) -> str:
        """A name for it."""
        more = ("-fused" if self.fused_attention else "") + ("-last" if self.channels_last else "")
        return f"{self.network}-{self.batch}-{self.size}-{self.precision}-{self.mode}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured step."""

    file: str
    device: Device
    asked: Asked
    seconds: float
    update: bool  # whether the optimizer's turn is in it

    @property
    def label(self) -> str:
        """A name for it."""
        return f"{self.device.name} {self.asked.label}"

    @property
    def forward(self) -> bool:
        """Whether it is the first half of a training step, rather than inference: Torch7's."""
        return self.file == TORCH7 and self.asked.mode == "inference"


def measured(folder: Path) -> Iterator[Measured]:
    """The rows of the list, with their times from the reference folder."""
    times: dict[tuple[str, ...], float] = {}
    for file in (NEUSIGHT, TIMM_TRAIN, TIMM_FORWARD, TORCH7, NVIDIA):
        for row in reference(folder, file):
            times.setdefault(key(row), float(row["value"]))
    with open(LIST, newline="", encoding="utf-8") as list_file:
        for row in csv.DictReader(list_file):
            yield understood(row, times[key(row)])


def reference(folder: Path, file: str) -> list[dict[str, str]]:
    """The rows of a reference file, which is added to each."""
    with open(folder / f"{file}.csv", newline="", encoding="utf-8") as rows:
        return [row | {"file": file} for row in csv.DictReader(rows)]


def key(row: Mapping[str, str]) -> tuple[str, ...]:
    """What tells rows apart."""
    return tuple(row[name] for name in KEY)


def understood(row: Mapping[str, str], value: float) -> Measured:
    """What a row ran, and its time."""
    return _READERS[row["file"]](row, value)


def _neusight(row: Mapping[str, str], value: float) -> Measured:
    """PyTorch 2.1, fp32 without TF32 in products, attention operation by operation, no optimizer."""
    length = re.search(r"seq_len (\d+)", row["note"])
    assert length is not None
    return Measured(
        file=row["file"],
        device=hardware.gpu_in(row["device"]),
        asked=Asked(
            network=f"neusight:{row['model']}",
            batch=int(row["batch_per_device"]),
            size=int(length[1]),
            precision="fp32",
            mode="inference" if row["metric"] == "inference_latency" else "training",
        ),
        seconds=value / 1e3,
        update=False,
    )


def _timm(row: Mapping[str, str], value: float) -> Measured:
    """timm's benchmark.py: NCHW, autocast, cudnn.benchmark; SGD with momentum; it waits after every step.

    Attention is one kernel since timm 0.9 with torch 2.
    """
    image = re.search(r"img (\d+)", row["note"])
    assert image is not None
    version = re.search(r"PyTorch (\d)", row["framework"])
    assert version is not None
    label = row["device"].removesuffix(" (pt1.13)")
    cpu = label.removeprefix("CPU ")
    return Measured(
        file=row["file"],
        device=hardware.device(cpu) if cpu != label else hardware.gpu_in(label),
        asked=Asked(
            network=f"timm:{row['model']}",
            batch=int(row["batch_per_device"]),
            size=int(image[1]),
            precision="fp16" if row["precision"] == "AMP fp16" else "fp32",
            mode="training" if row["metric"] == "step_time" else "inference",
            fused_attention=version[1] == "2",
        ),
        seconds=value / 1e3,
        update=row["metric"] == "step_time",
    )


def _torch7(row: Mapping[str, str], value: float) -> Measured:
    """Torch7, cuDNN 5.1 and its benchmark mode; forward in training mode, backward, no loss, no update."""
    return Measured(
        file=row["file"],
        device=hardware.gpu_in(row["device"]),
        asked=Asked(
            network=f"torch7:{row['model']}",
            batch=int(row["batch_per_device"]),
            size=224,
            precision="fp32",
            mode="inference" if row["metric"] == "forward_time" else "training",
        ),
        seconds=value / 1e3,
        update=False,
    )


# Batches of configs.yml beside NVIDIA's networks: AMP on an A100, on a V100; TF32 on an A100, FP32 on a V100.
CONVNETS = {
    "resnet50v1.5": ("resnet50", (256, 256, 256, 112)),
    "resnext101-32x4d": ("resnext101_32x4d", (128, 128, 128, 64)),
    "se-resnext101-32x4d": ("seresnext101_32x4d", (128, 112, 128, 64)),
}


def _nvidia(row: Mapping[str, str], value: float) -> Measured:
    """Items a second. With AMP the ConvNets ran in NHWC. BERT: 384 tokens."""
    half = row["precision"] == "AMP fp16"
    device = hardware.gpu_in(row["device"].replace("With 32G", "V100 32GB"))
    model = row["model"].rpartition("/")[2]
    if model in CONVNETS:
        name, batches = CONVNETS[model]
        network, size = f"timm:{name}", 224
        batch = batches[(0 if half else 2) + (device.tf32 is None)]
    else:
        network, size = "nvidia:bert_squad", 384
        batch = int(row["batch_per_device"].split(" and ")[half])
    return Measured(
        file=row["file"],
        device=device,
        asked=Asked(
            network=network,
            batch=batch,
            size=size,
            precision="fp16" if half else "fp32",
            mode="training",
            channels_last=half and model in CONVNETS,
        ),
        seconds=batch / value,
        update=True,
    )


_READERS = {NEUSIGHT: _neusight, TIMM_TRAIN: _timm, TIMM_FORWARD: _timm, TORCH7: _torch7, NVIDIA: _nvidia}
