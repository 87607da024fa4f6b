"""HKBU's rows split one batch among the GPUs: a step of a smaller batch, predicted, and its exchange."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from benchmarks import mxnet
from benchmarks.scaling.facts import MILLIONS, STRONG
from benchmarks.scaling.rows import Constants
from laptime.estimate.data_parallel import GATHERED, alone_from_time, scale
from laptime.estimate.predict import predict
from laptime.hardware import device

DEVICE = "k40"


def errors(folder: Path, constants: Constants) -> list[tuple[str, float]]:
    """(what, error of the throughput): fitted to none of them.

    Torch 7 and TensorFlow of 2016 gather the gradients on one GPU over PCIe after the backward pass. The
    measured step shrinks with the batch as our prediction for that GPU does.
    """
    habits = replace(GATHERED, link_share=constants["link_share"], spread=constants["spread"])
    ones: dict[tuple[str, str], float] = {}
    found = []
    with open(folder / STRONG, newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["device"] == "Tesla K40m"]
    for line in lines:
        key, gpus = (line["model"], line["framework"]), int(line["n_devices"])
        step_s, batch = float(line["value"]), int(line["batch_per_device"])
        if gpus == 1:
            ones[key] = step_s
            continue
        name = line["model"]
        shrunk = _seconds(name, batch) / _seconds(name, batch * gpus)
        alone = alone_from_time(ones[key] * shrunk, MILLIONS[name] * 1e6)
        scaled = scale(alone, device(DEVICE), gpus, habits)
        found.append(
            (f"{name} {line['framework']} {DEVICE} ×{gpus}, one batch split", step_s / scaled.step_s - 1)
        )
    return found


def _seconds(name: str, batch: int) -> float:
    return predict(mxnet.workloads()[name, batch, "training", "fp32"], device(DEVICE)).step_s
