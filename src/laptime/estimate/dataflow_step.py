"""The data pipeline of a predicted step, from the user's options."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from laptime.errors import PredictionError
from laptime.estimate.dataflow import PILLOW_CROP, Decoder, Flow, FlowTimes, Memory, flow
from laptime.hardware import Device, Link, Storage, link, storage
from laptime.model import Workload
from laptime.model.prediction import Prediction

HOST_LINK = "pcie-3-x16"  # of a device whose file names none: the slowest that GPUs of today are sold with


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Where samples come from. The defaults assume no data bottleneck."""

    sample_bytes: float = 0.0  # of one stored sample
    storage: str | Storage | None = None  # a name, or 5xNAME for a RAID 0; None: all is in the host's memory
    remote: str | Link | None = None  # the link to where the data lies; None: kept at the node
    decode_cores: int | None = None  # None: samples are stored as the device gets them
    decode_rate: float | None = None  # samples a second of one core; None: Pillow, crop and resize
    link: str | Link | None = None  # from the host to the GPUs; None: the device's own
    gpus_per_link: int = 1
    memory: Memory = "shared"
    prefetch: bool = True
    same_samples: bool = False  # every GPU gets the same ones, as parts of one model do
    direct: bool = False  # which then go from GPU to GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """A predicted step with its data flow, and the training that results."""

    prediction: Prediction  # of the computing alone
    flow: Flow
    times: FlowTimes

    @property
    def epoch_s(self) -> float | None:
        """One pass over all samples."""
        samples = self.prediction.samples
        return None if samples is None else -(-samples // self.times.samples) * self.times.step_s

    @property
    def training_s(self) -> float | None:
        """All epochs."""
        epochs = self.prediction.epochs
        return None if self.epoch_s is None or epochs is None else self.epoch_s * epochs

    @property
    def starves(self) -> bool:
        """Whether the device waits for its data."""
        return self.times.starving != "device"


def feed(given: Feed, prediction: Prediction, workload: Workload, device: Device) -> Fed:
    """The stages of a step; the samples cross the link as the network takes them."""
    if (given.storage or given.remote) and not given.sample_bytes > 0:
        raise PredictionError("data is read from storage or over a link; give the bytes of a stored sample")
    if given.direct and not given.same_samples:
        raise PredictionError(
            "every GPU has samples of its own, so there is nothing to hand on from GPU to GPU; say that they "
            "get the same samples, or leave direct transfers out"
        )
    drives, drive = _drives(given.storage)
    made = Flow(
        stored_bytes=given.sample_bytes,
        decoded_bytes=workload.sample_bytes,
        batch=prediction.batch,
        compute_s=prediction.step_s,
        link=_link(given.link or device.host_link or HOST_LINK),
        gpus=prediction.gpus,
        gpus_per_link=given.gpus_per_link,
        storage=drive,
        drives=drives,
        remote=None if given.remote is None else _link(given.remote),
        decoder=_decoder(given),
        cores=given.decode_cores or 1,
        memory=given.memory,
        prefetch=given.prefetch,
        same_batch=given.same_samples,
        direct=given.direct,
        gpu_link=_link(device.gpu_link) if device.gpu_link else None,
    )
    return Fed(prediction=prediction, flow=made, times=flow(made))


def waited(fed: Fed) -> Prediction:
    """The prediction with data loading: a longer step if the device waits, and the stage it waits for."""
    before, step_s = fed.prediction, fed.times.step_s
    if not fed.starves:
        return before
    low, high = (end / before.step_s * step_s for end in before.interval_s)
    words = f"{fed.times.starving}: the device waits {fed.times.idle_share:.0%} of the time for its data"
    return replace(before, step_s=step_s, interval_s=(low, high), bottleneck=words)


def assumptions(fed: Fed) -> tuple[str, ...]:
    """The given and assumed properties of the pipeline, in words."""
    pipeline = fed.flow
    read = (
        f"{pipeline.drives} × {pipeline.storage.title}" if pipeline.storage and pipeline.drives > 1 else None
    )
    told = [read or (pipeline.storage.title if pipeline.storage else "all data in the host's memory")]
    told.append(f"over {pipeline.remote.title}" if pipeline.remote else "kept at the node")
    if pipeline.decoder:
        cores = "1 core" if pipeline.cores == 1 else f"{pipeline.cores} cores"
        decoder = pipeline.decoder
        told.append(f"decoded by {cores} at {decoder.samples_per_s:,.0f} samples/s each ({decoder.name})")
    else:
        told.append("not decoded")
    several = f", {pipeline.gpus_per_link} GPUs to a link" if pipeline.gpus_per_link > 1 else ""
    told.append(f"{pipeline.decoded_bytes / 1e3:,.0f} kB a sample over {pipeline.link.title}{several}")
    told.append(f"{pipeline.memory} host memory")
    told.append("with prefetching" if pipeline.prefetch else "without prefetching")
    if pipeline.same_batch:
        told.append("the same samples for every GPU" + (", from GPU to GPU" if pipeline.direct else ""))
    return tuple(told)


def _drives(given: str | Storage | None) -> tuple[int, Storage | None]:
    if given is None or isinstance(given, Storage):
        return 1, given
    several = re.fullmatch(r"(\d+)\s*[x×*]\s*(.+)", given)
    if several and not int(several[1]):
        raise PredictionError(f"{given} is a RAID 0 of no drives; give 1 or more")
    return (int(several[1]), storage(several[2])) if several else (1, storage(given))


def _link(given: str | Link) -> Link:
    return link(given) if isinstance(given, str) else given


def _decoder(given: Feed) -> Decoder | None:
    if given.decode_rate is not None:
        return Decoder(name="as given", samples_per_s=given.decode_rate)
    return None if given.decode_cores is None else PILLOW_CROP
