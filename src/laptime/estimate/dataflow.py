"""How data reaches the devices, stage by stage: storage → network → decode → host → link → direct → device.

A stage that takes longer than the computing starves the device. Remedies are
fields of `Flow`; `flow` times the stages of one step and gives the slowest one and the effect of each remedy
alone. Times are of a steady step: the first one, which fills the pipeline, takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple, get_args

from laptime.errors import PredictionError
from laptime.hardware import Link, Storage, raid0
from laptime.model.constants import Source

Stage = Literal["storage", "network", "decode", "host", "link", "direct", "device"]
Memory = Literal["pinned", "shared", "pageable"]

STAGES: tuple[Stage, ...] = get_args(Stage)
# What follows one another where host memory is pageable: such a copy waits for the stream to be idle ("a
# stream sync is performed before the copy is initiated", CUDA Driver API, API synchronization behavior).
_IN_ORDER: tuple[Stage, ...] = ("host", "link", "direct", "device")
_COPIES: dict[Memory, int] = {"pinned": 0, "shared": 1, "pageable": 1}
_GIGA = 1e9

HOST_COPY_GBS: Annotated[
    float,
    Source(
        "One thread's copy of 10, 38 and 256 MB: 11, 13 and 10 GB/s (numpy, a virtual AMD EPYC, 2026-11-16)."
    ),
] = 10.0
DRIVES: Annotated[int, Source("Of the RAID 0 that is proposed where storage is too slow.")] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What turns a stored sample into the bytes that the device gets, and how many one core does a second."""

    name: str
    samples_per_s: float


# Measured on one core, JPEGs, 2026-11-16.
PILLOW = Decoder(name="Pillow", samples_per_s=550.0)
SIMPLEJPEG = Decoder(name="simplejpeg", samples_per_s=1460.0)
PILLOW_CROP = Decoder(name="Pillow, crop and resize", samples_per_s=400.0)
SIMPLEJPEG_CROP = Decoder(name="simplejpeg, crop and resize by OpenCV", samples_per_s=1390.0)
_FASTER = {PILLOW: SIMPLEJPEG, PILLOW_CROP: SIMPLEJPEG_CROP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One step of a node with some GPUs: what has to reach them, and by which way.

    Storage is read in long pieces, as its catalog states; give a `Storage` of your own for many small files.
    `memory` says where a batch lies when the copy to the device begins: written straight into pinned memory;
    in the workers' shared memory, from where a thread copies it into pinned memory (a `DataLoader` with
    workers and `pin_memory`); or in pageable memory, where the driver makes that copy and the device waits.
    """

    decoded_bytes: float  # of one sample, as it crosses the link
    batch: int  # samples of one GPU
    compute_s: float  # of one step, with everything there
    link: Link  # from the host to the GPUs
    stored_bytes: float = 0.0  # of one sample
    gpus: int = 1
    gpus_per_link: int = 1  # how many are served in turn over one link
    storage: Storage | None = None  # one drive; None: all data is in the host's memory
    drives: int = 1  # in RAID 0
    remote: Link | None = None  # what the data comes over; None: kept at the node
    decoder: Decoder | None = None  # None: stored as the device gets it
    cores: int = 1  # that decode
    memory: Memory = "shared"
    host_copy_gbs: float = HOST_COPY_GBS  # of one thread; each GPU's process has one
    prefetch: bool = True  # stages work on different batches at the same time
    same_batch: bool = False  # every GPU gets the same samples, as parts of one model do
    direct: bool = False  # what all GPUs get crosses the host's link once, then goes from GPU to GPU
    gpu_link: Link | None = None  # None: GPUs meet over `link`

    def __post_init__(self) -> None:
        """Reject impossible values."""
        for name in ("decoded_bytes", "stored_bytes"):
            _need(
                math.isfinite(getattr(self, name)) and getattr(self, name) >= 0, self, name, "0 bytes or more"
            )
        for name, unit in (("compute_s", "seconds"), ("host_copy_gbs", "GB/s")):
            value = getattr(self, name)
            _need(math.isfinite(value) and value > 0, self, name, f"more than 0 {unit}")
        for name in ("batch", "gpus", "gpus_per_link", "drives", "cores"):
            value = getattr(self, name)
            _need(isinstance(value, int) and value >= 1, self, name, "a whole number of at least 1")
        _need(self.gpus_per_link <= self.gpus, self, "gpus_per_link", f"at most gpus, which is {self.gpus}")
        _need(self.memory in _COPIES, self, "memory", f"one of {', '.join(_COPIES)}")
        rates = {
            "link": self.link.bandwidth,
            "gpu_link": self.gpu_link.bandwidth if self.gpu_link else 1.0,
            "remote": self.remote.bandwidth if self.remote else 1.0,
            "storage": self.storage.read_bandwidth if self.storage else 1.0,
            "decoder": self.decoder.samples_per_s if self.decoder else 1.0,
        }
        for name, rate in rates.items():
            if not rate > 0:
                raise PredictionError(f"{name} moves {rate:g} a second; give one that moves more than 0")
        if self.stored_bytes == 0 and (self.storage or self.remote):
            raise PredictionError(
                "stored_bytes is 0, yet data is read from storage or a remote place; give it"
            )


class Remedy(NamedTuple):
    """One change, and the step with it and nothing else changed."""

    name: str
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTimes:
    """A steady step in seconds. Stages that the flow does not have take 0."""

    stages: Mapping[Stage, float] = field(hash=False)
    step_s: float
    starving: Stage  # the stage that the device waits for most; "device" if it waits for none
    samples: int  # that a step takes in, all GPUs together
    remedies: tuple[Remedy, ...]  # best first

    @property
    def effective_share(self) -> float:
        """Share of the step in which the device computes."""
        return self.stages["device"] / self.step_s

    @property
    def idle_share(self) -> float:
        """Share of the step in which the device waits."""
        return 1.0 - self.effective_share

    @property
    def idle_s(self) -> float:
        """Seconds of the step in which the device waits."""
        return self.step_s - self.stages["device"]

    @property
    def samples_per_s(self) -> float:
        """Of the whole node."""
        return self.samples / self.step_s


def flow(given: Flow) -> FlowTimes:
    """Times of the stages, the step they make, the stage that starves the others, and the remedies."""
    stages = _stages(given)
    group = max(_groups(given), key=lambda names: sum(stages[name] for name in names))
    waits = [name for name in group if name != "device" and stages[name] > 0]
    return FlowTimes(
        stages=stages,
        step_s=sum(stages[name] for name in group),
        starving=max(waits, key=lambda name: stages[name], default="device"),
        samples=_samples(given),
        remedies=remedies(given),
    )


def remedies(given: Flow, *, drives: int = DRIVES) -> tuple[Remedy, ...]:
    """What each remedy that is not in use yet would give by itself, the shortest step first.

    All are listed that could be applied, also those that give nothing: direct transfers, for instance, where
    every GPU gets samples of its own. Those that give the same keep the order of the stages.
    """
    changed: dict[str, Flow] = {}
    if not given.prefetch:
        changed["prefetching"] = replace(given, prefetch=True)
    if given.remote:
        changed["data kept at the node"] = replace(given, remote=None)
    if given.storage and given.drives < drives:
        changed[f"RAID 0 of {drives} drives"] = replace(given, drives=drives)
    if given.decoder in _FASTER:  # the usual cause today
        faster = _FASTER[given.decoder]
        changed[f"decoding with {faster.name}"] = replace(given, decoder=faster)
    if given.memory == "pageable":
        changed["shared memory, pinned by a thread"] = replace(given, memory="shared")
    if given.memory != "pinned":
        changed["pinned memory"] = replace(given, memory="pinned")
    if given.gpus > 1 and not given.direct:
        changed["direct GPU-to-GPU transfer"] = replace(given, direct=True)
    remedies = [Remedy(name, _step_s(after)) for name, after in changed.items()]
    return tuple(sorted(remedies, key=lambda remedy: remedy.step_s))


def _step_s(given: Flow) -> float:
    stages = _stages(given)
    return max(sum(stages[name] for name in group) for group in _groups(given))


def _groups(given: Flow) -> list[tuple[Stage, ...]]:
    """Stages that follow one another; groups go on side by side. The device's is first: it wins a tie."""
    if not given.prefetch:
        return [STAGES]
    if given.memory == "pageable":
        return [_IN_ORDER, *((name,) for name in STAGES if name not in _IN_ORDER)]
    return [(name,) for name in reversed(STAGES)]


def _stages(given: Flow) -> dict[Stage, float]:
    samples = _samples(given)
    stored = samples * given.stored_bytes
    sent = given.batch * given.decoded_bytes  # to one GPU
    spread = given.direct and given.same_batch
    turns = 1 if spread else given.gpus_per_link
    drives = raid0(given.storage, given.drives) if given.storage else None
    return {
        "storage": stored / drives.read_bandwidth if drives else 0.0,
        "network": _over(given.remote, stored) if given.remote else 0.0,
        "decode": samples / (given.cores * given.decoder.samples_per_s) if given.decoder else 0.0,
        "host": _COPIES[given.memory] * sent / (given.host_copy_gbs * _GIGA),
        "link": turns * _over(given.link, sent),
        "direct": (given.gpus - 1) * _over(given.gpu_link or given.link, sent) if spread else 0.0,
        "device": given.compute_s,
    }


def _samples(given: Flow) -> int:
    return given.batch * (1 if given.same_batch else given.gpus)


def _over(way: Link, size: float) -> float:
    return way.latency_s + size / way.bandwidth if size else 0.0


def _need(holds: bool, given: Flow, name: str, wanted: str) -> None:
    if not holds:
        raise PredictionError(f"{name} is {getattr(given, name)!r}; give {wanted}")
