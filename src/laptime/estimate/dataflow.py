"""How data reaches the devices, stage by stage: storage → network → decode → host → link → direct → device.

A stage that takes longer than the computing starves the device. Remedies are fields of `Flow`; `flow` times
the stages of one step and gives the slowest one and the effect of each remedy alone. Times are of a steady
step: the first one, which fills the pipeline, takes longer. A `Feed` is what users say of it; `feed` makes
the `DataFlow` of a predicted step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NamedTuple, get_args

from laptime.errors import PredictionError
from laptime.files.parse import build, count, mapping
from laptime.files.write import plain
from laptime.hardware import Device, Link, Storage, link, raid0, storage
from laptime.model import Workload
from laptime.model.constants import Source
from laptime.model.prediction import Prediction

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
HOST_LINK = "pcie-3-x16"  # of a device whose file names none: the slowest that GPUs of today are sold with
DRIVES: Annotated[int, Source("Of the RAID 0 that is proposed where storage is too slow.")] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What turns a stored sample into the bytes that the device gets, and how many one core does a second."""

    name: str
    samples_per_s: float


# Measured on one core, JPEGs, 2026-11-16.
PILLOW_CROP = Decoder(name="Pillow, crop and resize", samples_per_s=400.0)
SIMPLEJPEG_CROP = Decoder(name="simplejpeg, crop and resize by OpenCV", samples_per_s=1390.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Where samples come from, and by which way. The defaults assume no data bottleneck.

    Storage is read in long pieces, as its catalog states; give a `Storage` of your own for many small files.
    `memory` says where a batch lies when the copy to the device begins: written straight into pinned memory;
    in the workers' shared memory, from where a thread copies it into pinned memory (a `DataLoader` with
    workers and `pin_memory`); or in pageable memory, where the driver makes that copy and the device waits.
    """

    sample_bytes: float = 0.0  # of one stored sample
    storage: str | Storage | None = None  # a name, or 5xNAME for a RAID 0; None: all is in the host's memory
    remote: str | Link | None = None  # the link to where the data lies; None: kept at the node
    decode_cores: int | None = (
        None  # None: samples are stored as the device gets them, unless a rate is given
    )
    decode_rate: float | None = None  # samples a second of one core; None: Pillow, crop and resize
    link: str | Link | None = None  # from the host to the GPUs; None: the device's own
    gpus_per_link: int = 1  # how many are served in turn over one link
    memory: Memory = "shared"
    prefetch: bool = True  # stages work on different batches at the same time
    same_samples: bool = False  # every GPU gets the same ones, as parts of one model do
    direct: bool = False  # which then cross the host's link once, and go from GPU to GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(Feed):
    """A feed with its parts looked up, and one step of a node with some GPUs that it has to reach."""

    decoded_bytes: float  # of one sample, as it crosses the link
    batch: int  # samples of one GPU
    compute_s: float  # of one step, with everything there
    link: Link
    gpus: int = 1
    storage: Storage | None = None  # one drive
    drives: int = 1  # in RAID 0
    remote: Link | None = None
    decoder: Decoder | None = None  # None: stored as the device gets it
    host_copy_gbs: float = HOST_COPY_GBS  # of one thread; each GPU's process has one
    gpu_link: Link | None = None  # None: GPUs meet over `link`

    @property
    def samples(self) -> int:
        """That a step takes in, all GPUs together."""
        return self.batch * (1 if self.same_samples else self.gpus)


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
    def starves(self) -> bool:
        """Whether the device waits for its data."""
        return self.starving != "device"

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
    stages, group = _slowest(given)
    waits = [name for name in group if name != "device" and stages[name] > 0]
    return FlowTimes(
        stages=stages,
        step_s=sum(stages[name] for name in group),
        starving=max(waits, key=lambda name: stages[name], default="device"),
        samples=given.samples,
        remedies=remedies(given),
    )


def remedies(given: Flow) -> tuple[Remedy, ...]:
    """What each remedy that is not in use yet would give by itself, the shortest step first.

    All are listed that could be applied, also those that give nothing: direct transfers, for instance, where
    every GPU gets samples of its own. Those that give the same keep the order of the stages.
    """
    slow_drives = given.storage is not None and given.drives < DRIVES
    slow_decoder, faster = given.decoder == PILLOW_CROP, SIMPLEJPEG_CROP  # the usual cause
    changes: tuple[tuple[bool, str, dict[str, Any]], ...] = (
        (not given.prefetch, "prefetching", {"prefetch": True}),
        (given.remote is not None, "data kept at the node", {"remote": None}),
        (slow_drives, f"RAID 0 of {DRIVES} drives", {"drives": DRIVES}),
        (slow_decoder, f"decoding with {faster.name}", {"decoder": faster}),
        (given.memory == "pageable", "shared memory, pinned by a thread", {"memory": "shared"}),
        (given.memory != "pinned", "pinned memory", {"memory": "pinned"}),
        (given.gpus > 1 and not given.direct, "direct GPU-to-GPU transfer", {"direct": True}),
    )
    remedies = []
    for applies, name, change in changes:
        if applies:
            stages, group = _slowest(replace(given, **change))
            remedies.append(Remedy(name, sum(stages[stage] for stage in group)))
    return tuple(sorted(remedies, key=lambda remedy: remedy.step_s))


def _slowest(given: Flow) -> tuple[dict[Stage, float], tuple[Stage, ...]]:
    """The times of all stages, and the stages whose sum is the step.

    Stages of a group follow one another, groups go on side by side. The device's is first: it wins a tie.
    """
    groups: list[tuple[Stage, ...]] = [(name,) for name in reversed(STAGES)]
    if not given.prefetch:
        groups = [STAGES]
    elif given.memory == "pageable":
        groups = [_IN_ORDER, *((name,) for name in STAGES if name not in _IN_ORDER)]
    stages = _stages(given)
    return stages, max(groups, key=lambda names: sum(stages[name] for name in names))


def _stages(given: Flow) -> dict[Stage, float]:
    stored = given.samples * given.sample_bytes
    sent = given.batch * given.decoded_bytes  # to one GPU
    spread = given.direct and given.same_samples
    turns = 1 if spread else given.gpus_per_link
    drives = raid0(given.storage, given.drives) if given.storage else None
    return {
        "storage": stored / drives.read_bandwidth if drives else 0.0,
        "network": _over(given.remote, stored) if given.remote else 0.0,
        "decode": given.samples / ((given.decode_cores or 1) * given.decoder.samples_per_s)
        if given.decoder
        else 0.0,
        "host": _COPIES[given.memory] * sent / (given.host_copy_gbs * _GIGA),
        "link": turns * _over(given.link, sent),
        "direct": (given.gpus - 1) * _over(given.gpu_link or given.link, sent) if spread else 0.0,
        "device": given.compute_s,
    }


def _over(way: Link, size: float) -> float:
    return way.latency_s + size / way.bandwidth if size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """What feeds a predicted step, stage by stage, and the training that results."""

    device: str
    batch: int
    gpus: int
    times: FlowTimes
    rests_on: tuple[str, ...] = ()  # the given and assumed properties of the pipeline, in words
    epoch_s: float | None = None
    training_s: float | None = None
    dollars: float | None = None
    kilowatt_hours: float | None = None

    @classmethod
    def of(cls, document: Any) -> DataFlow:
        """From its document."""
        given = mapping(document)
        samples = given.get("samples") or count(given.get("batch")) * count(given.get("gpus"))
        made = build(cls, {**given, "times": {"remedies": (), **given, "samples": samples}})
        if not made.times.step_s > 0 or not {"device", made.times.starving} <= made.times.stages.keys():
            raise ValueError("step_s must be above 0, and the device one of the stages")
        return made

    @property
    def waits_for(self) -> str:
        """The stage that the device waits for."""
        return self.times.starving if self.times.starves else "nothing"

    def document(self) -> dict[str, Any]:
        """As JSON has it: the times beside the rest."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "times"}
        derived = {name: getattr(self.times, name) for name in ("effective_share", "idle_s", "samples_per_s")}
        hours = None if self.training_s is None else self.training_s / 3600
        return dict(plain(self.times)) | derived | own | {"hours": hours}


def feed(given: Feed, prediction: Prediction, workload: Workload, device: Device) -> DataFlow:
    """The stages of a step; the samples cross the link as the network takes them."""
    if not 0 <= given.sample_bytes < math.inf:
        raise PredictionError(f"sample_bytes is {given.sample_bytes}; give 0 bytes or more")
    if (given.storage or given.remote) and not given.sample_bytes:
        raise PredictionError("data is read from storage or over a link; give the bytes of a stored sample")
    if not 1 <= given.gpus_per_link <= prediction.gpus:
        raise PredictionError(f"gpus_per_link is {given.gpus_per_link}; give 1 to {prediction.gpus}")
    if given.decode_rate is not None and not 0 < given.decode_rate < math.inf:
        raise PredictionError(f"the decoder moves {given.decode_rate:g} a second; give more than 0")
    if given.direct and not given.same_samples:
        raise PredictionError(
            "every GPU has samples of its own, so there is nothing to hand on from GPU to GPU; say that they "
            "get the same samples, or leave direct transfers out"
        )
    drives, drive = 1, given.storage
    if isinstance(drive, str):
        several = re.fullmatch(r"(\d+)\s*[x×*]\s*(.+)", drive)
        if several and not int(several[1]):
            raise PredictionError(f"{drive} is a RAID 0 of no drives; give 1 or more")
        drives, drive = (int(several[1]), storage(several[2])) if several else (1, storage(drive))
    decoder = None if given.decode_cores is None else PILLOW_CROP
    if given.decode_rate is not None:
        decoder = Decoder(name="as given", samples_per_s=given.decode_rate)
    said = {each.name: getattr(given, each.name) for each in fields(Feed)}
    looked_up = {
        "link": _link(given.link or device.host_link or HOST_LINK),
        "storage": drive,
        "remote": None if given.remote is None else _link(given.remote),
    }
    made = Flow(
        **said | looked_up,
        decoded_bytes=workload.sample_bytes,
        batch=prediction.batch,
        compute_s=prediction.step_s,
        gpus=prediction.gpus,
        drives=drives,
        decoder=decoder,
        gpu_link=_link(device.gpu_link) if device.gpu_link else None,
    )
    times = flow(made)
    step = waited(prediction, times)
    return DataFlow(
        device=step.device,
        batch=step.batch,
        gpus=step.gpus,
        times=times,
        rests_on=_assumptions(made),
        epoch_s=step.epoch_s,
        training_s=step.training_s,
        dollars=step.dollars,
        kilowatt_hours=step.kilowatt_hours,
    )


def waited(made: Prediction, times: FlowTimes) -> Prediction:
    """The prediction with data loading: a longer step if the device waits, and the stage it waits for."""
    if not times.starves:
        return made
    low, high = (end / made.step_s * times.step_s for end in made.interval_s)
    words = f"{times.starving}: the device waits {times.idle_share:.0%} of the time for its data"
    return replace(made, step_s=times.step_s, interval_s=(low, high), bottleneck=words)


def _assumptions(given: Flow) -> tuple[str, ...]:
    told = [given.storage.title if given.storage else "all data in the host's memory"]
    if given.storage and given.drives > 1:
        told = [f"{given.drives} × {given.storage.title}"]
    told.append(f"over {given.remote.title}" if given.remote else "kept at the node")
    if decoder := given.decoder:
        cores = f"{given.decode_cores} cores" if (given.decode_cores or 1) > 1 else "1 core"
        told.append(f"decoded by {cores} at {decoder.samples_per_s:,.0f} samples/s each ({decoder.name})")
    else:
        told.append("not decoded")
    several = f", {given.gpus_per_link} GPUs to a link" if given.gpus_per_link > 1 else ""
    told.append(f"{given.decoded_bytes / 1e3:,.0f} kB a sample over {given.link.title}{several}")
    told.append(f"{given.memory} host memory")
    told.append("with prefetching" if given.prefetch else "without prefetching")
    if given.same_samples:
        told.append("the same samples for every GPU" + (", from GPU to GPU" if given.direct else ""))
    return tuple(told)


def _link(given: str | Link) -> Link:
    return link(given) if isinstance(given, str) else given
