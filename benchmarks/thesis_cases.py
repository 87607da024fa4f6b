"""The thesis' machine, predicted: `python -m benchmarks.thesis_cases`.

Two Quadro P600 of 2 GiB (thesis, 4.1), AlexNet in batches of 64 and 128, VGG-11 in batches of 12, ten classes
of ImageNet, momentum: what fits, how long a step takes, what the second GPU gains, and how long both would
have waited for their data. Nothing of it was measured: the thesis prints no step time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from laptime import hardware
from laptime.estimate.dataflow import Feed, feed
from laptime.estimate.device_speed import speed_of
from laptime.estimate.explain import kinds
from laptime.estimate.largest_batch import largest
from laptime.estimate.predict import predict, predict_all
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction

GPU = "quadro-p600"
GIB = 2.0**30
STORED = 110e3  # bytes of a JPEG of ImageNet: 138 GB for 1,281,167 images (ILSVRC 2012, training)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A setting of the thesis, and the share of an iteration that its layers left unexplained."""

    network: str
    batch: int
    missing: str  # thesis, 4.5.1 to 4.5.3


CASES = (
    Case(network="alexnet", batch=64, missing="44–54 %"),
    Case(network="alexnet", batch=128, missing="38–44 %"),
    Case(network="vgg11", batch=12, missing="45–49 %"),
)
# What the thesis does not say: how images were read. From the worst to the best that the machine could do.
FEEDS = {
    "1 core, no prefetching": Feed(
        sample_bytes=STORED, storage="hdd", decode_cores=1, memory="pageable", prefetch=False
    ),
    "1 core": Feed(sample_bytes=STORED, storage="hdd", decode_cores=1),
    "2 cores": Feed(sample_bytes=STORED, storage="hdd", decode_cores=2),
    "10 cores": Feed(sample_bytes=STORED, storage="hdd", decode_cores=10),
}


@cache
def read(network: str, batch: int, mode: str = "training", optimizer: str = "momentum") -> Workload:
    """A step of a network with ten classes."""
    import torch

    from laptime import api
    from laptime.training import target

    with torch.device("meta"):
        made = target.network(network, num_classes=10)
    return api.workload(made, input=(3, 224, 224), batch=batch, mode=mode, optimizer=optimizer, name=network)


def sized(network: str, how: tuple[str, str], batch: int, devices: Sequence[Device]) -> list[Prediction]:
    """A step of any batch, in a mode and with an optimizer."""
    return predict_all(read(network, batch, *how), devices)


def table(title: str, columns: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """A table in Markdown."""
    print(f"{title}\n\n| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def name(case: Case) -> str:
    """As the tables call it."""
    return f"{case.network} {case.batch}"


def memory_rows(device: Device) -> Iterator[Sequence[str]]:
    """What fits into 2 GiB."""
    for case in CASES:
        made = predict(read(case.network, case.batch), device)
        most = [
            largest(partial(sized, case.network, how), [device])[0].batch
            for how in (("training", "momentum"), ("training", "sgd"), ("inference", "momentum"))
        ]
        tensors, reserved = made.peak_memory_bytes / GIB, made.reserved_memory_bytes / GIB
        yield name(case), f"{tensors:.2f}", f"{reserved:.2f}", "yes" if made.fits else "no", *map(str, most)


def step_rows(device: Device) -> Iterator[Sequence[str]]:
    """One GPU and two, each with the whole batch or with half of it."""
    for case in CASES:
        one = predict(read(case.network, case.batch), device)
        both = predict(read(case.network, case.batch), device, gpus=2)
        split = predict(read(case.network, case.batch // 2), device, gpus=2)
        cells = [name(case), f"{one.step_s * 1e3:.0f}", f"{bound_s(case, device) * 1e3:.0f}"]
        cells += [f"{one.samples_per_s:.0f}", f"{max(0.0, 1 - one.busy_s / one.step_s):.1%}"]
        for two in (both, split):
            cells += [f"{two.step_s * 1e3:.0f}", f"{two.communication_s * 1e3:.0f}"]
            cells += [f"{two.samples_per_s / one.samples_per_s:.2f}"]
        yield cells


def bound_s(case: Case, device: Device) -> float:
    """The least that a step could take: every operation at the nominal rates of the device."""
    found = kinds(read(case.network, case.batch), speed_of(device))
    return sum(one.seconds * one.of_bound for one in found)


def waiting_rows(device: Device) -> Iterator[Sequence[str]]:
    """The share of a step in which both GPUs wait, as predicted, and if they were as fast as their bound."""
    for case in CASES:
        made = predict(read(case.network, case.batch), device, gpus=2)
        cells = [name(case)]
        for given in FEEDS.values():
            shares = [
                idle(given, made, case, device, made.step_s * faster) for faster in _paces(case, device)
            ]
            cells.append(" … ".join(shares))
        yield *cells, case.missing


def _paces(case: Case, device: Device) -> tuple[float, float]:
    alone = predict(read(case.network, case.batch), device).step_s
    return 1.0, bound_s(case, device) / alone


def idle(given: Feed, made: Prediction, case: Case, device: Device, compute_s: float) -> str:
    """In words: the share, and the stage that is waited for."""
    found = feed(given, replace(made, step_s=compute_s), read(case.network, case.batch), device).times
    return f"{found.idle_share:.0%}" + (f" ({found.starving})" if found.starving != "device" else "")


def main() -> None:
    """Print the three tables."""
    device = hardware.device(GPU)
    what = ["case", "tensors GiB", "reserved GiB", "fits", "largest batch", "… plain SGD", "… forward only"]
    table(f"What fits one {device.title} of {device.memory_gib:g} GiB", what, memory_rows(device))
    one = ["case", "step ms", "least ms", "images/s", "idle for the host"]
    two = ["2 GPUs: ms", "added", "speed-up"], ["batch split: ms", "added", "speed-up"]
    table("A step, and what the second GPU gains", [*one, *two[0], *two[1]], step_rows(device))
    title = "Both GPUs wait for their data: as predicted … at the least step time"
    table(title, ["case", *FEEDS, "missing in the thesis"], waiting_rows(device))


if __name__ == "__main__":
    main()
