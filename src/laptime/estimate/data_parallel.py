"""Data parallelism in one node: each GPU has its own batch, gradients are exchanged before every update.

Gradients are sent in buckets during the backward pass. Communication after its end is exposed; overlapped
communication still takes multiprocessors and memory bandwidth. Then all GPUs wait for the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

from laptime.errors import PredictionError
from laptime.estimate.op_times import TimedStep
from laptime.hardware import Device, link
from laptime.model import Phase
from laptime.model.constants import Source

GRADIENT_BYTES: Annotated[int, Source("Autocast keeps parameters, and so their gradients, in float32.")] = 4
BACKWARD = 2 / 3  # share of a step: two products for each one of the forward pass
PIECES = 64  # of a backward pass whose layers are unknown
BOARDS: Annotated[dict[str, int], Source("Chips to a board, which share its link to the host.")] = {"k80": 2}
MESHES: Annotated[
    dict[str, dict[int, float]],
    Source(
        "Share of a GPU's links that rings of n GPUs can use without a switch. Hybrid cube mesh of the "
        "DGX-1: with P100 one link to each of its quad and one across, with V100 six in all, two of them to "
        "one neighbour (NVIDIA DGX-1 whitepaper WP-08437-002)."
    ),
] = {"p100-sxm2": {2: 1 / 4, 3: 2 / 4, 4: 3 / 4}, "v100-sxm2": {2: 2 / 6, 3: 3 / 6, 4: 4 / 6}}


def _fitted(what: str) -> Source:
    return Source(f"{what} Fitted by `python -m benchmarks.scaling`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """A layer's backward pass: how long it takes, and the bytes of gradients that are ready at its end."""

    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A step on one GPU."""

    forward_s: float
    backward: tuple[Gradient, ...]  # in the order of the backward pass: the last layer first
    update_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """The whole backward pass."""
        return sum(gradient.seconds for gradient in self.backward)

    @property
    def step_s(self) -> float:
        """From one update to the next."""
        return self.forward_s + self.backward_s + self.update_s


Through = Literal["gpu_link", "host", "first"]
"""A ring of the GPUs, a parameter server in the host's memory, or one GPU that gathers and sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a framework and its node behave. The defaults are PyTorch's, fitted by `benchmarks.scaling`."""

    through: Annotated[Through, Source("What gradients travel through: torch's rings of GPUs.")] = "gpu_link"
    overlaps: Annotated[bool, Source("Whether with the backward pass, as in torch.")] = True
    bucket_bytes: Annotated[float, Source("The default of DistributedDataParallel.")] = 25 * 2**20
    link_share: Annotated[float, _fitted("Of a link's bandwidth that gradients reach beside a pass.")] = 0.25
    sync_s: Annotated[float, _fitted("To find out that all are there; Horovod takes longer.")] = 0.0008
    contention: Annotated[float, _fitted("Seconds lost for each of hidden communication.")] = 0.36
    spread: Annotated[float, _fitted("Standard deviation between GPUs, which stay fast or slow.")] = 0.0095
    raggedness: Annotated[float, Source("The same between batches, where samples have any length.")] = 0.0
    board: Annotated[float, Source("How much chips that share a board's power slow each other down.")] = 0.0
    host_s: Annotated[float, Source("What each further GPU's batch costs a host that prepares all.")] = 0.0


DDP = Habits()
GATHERED = Habits(through="first", overlaps=False, sync_s=0.0)  # Torch 7, TensorFlow's towers of 2016


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """An update on several GPUs, in seconds."""

    gpus: int
    alone_s: float  # the same batches on a single GPU
    communication_s: float = 0.0  # of all buckets, hidden or not
    exposed_s: float = 0.0  # not hidden by the backward pass
    overlapped_s: float = 0.0  # hidden by it
    contention_s: float = 0.0  # slowdown by overlapped communication, a shared board, a shared host
    waiting_s: float = 0.0  # for the slowest
    sync_s: float = 0.0

    @property
    def step_s(self) -> float:
        """From one update to the next."""
        return self.alone_s + self.exposed_s + self.contention_s + self.waiting_s + self.sync_s

    @property
    def efficiency(self) -> float:
        """Throughput over that of as many independent GPUs."""
        return self.alone_s / self.step_s


def alone_from_step(step: TimedStep) -> Alone:
    """From a predicted step: a layer's gradients are ready when its last backward operation has ended."""
    sizes: dict[str, float] = {}
    seconds = dict.fromkeys(Phase, 0.0)
    ready: dict[str, float] = {}
    for timed in step.operations:
        phase, layer = timed.operation.phase, timed.operation.layer
        seconds[phase] += timed.span_s
        if phase is Phase.BACKWARD:
            ready[layer] = seconds[phase]
        elif phase is Phase.UPDATE:
            sizes[layer] = sizes.get(layer, 0.0) + GRADIENT_BYTES * timed.operation.sizes["params"]
    whole = seconds[Phase.BACKWARD]
    backward, begin = [], 0.0
    ends = sorted((ready.get(layer, whole), size) for layer, size in sizes.items())
    for end, size in [*ends, (whole, 0.0)]:
        backward.append(Gradient(seconds=end - begin, bytes=size))
        begin = end
    forward_s, update_s = seconds[Phase.FORWARD], seconds[Phase.UPDATE]
    return Alone(forward_s=forward_s, backward=tuple(backward), update_s=update_s)


def alone_from_time(step_s: float, parameters: float) -> Alone:
    """From a measured step and a count of parameters: gradients come evenly over two thirds of the step."""
    each = Gradient(seconds=step_s * BACKWARD / PIECES, bytes=GRADIENT_BYTES * parameters / PIECES)
    return Alone(forward_s=step_s * (1 - BACKWARD), backward=(each,) * PIECES)


def ring_all_reduce_s(size: float, gpus: int, bandwidth: float, latency_s: float = 0.0) -> float:
    """Ring all-reduce: 2(n-1)/n of the bytes cross each link, in 2(n-1) hops."""
    return 2 * (gpus - 1) / gpus * size / bandwidth + 2 * (gpus - 1) * latency_s


def scale(alone: Alone, device: Device, gpus: int, habits: Habits = DDP, *, accumulate: int = 1) -> Scaled:
    """What an update takes on `gpus` devices of one node, each with the batch that `alone` has.

    With `accumulate` batches to an update gradients travel once, beside the last backward pass; long and
    short batches even out, fast and slow GPUs do not.
    """
    alone_s = accumulate * alone.step_s
    if gpus == 1:
        return Scaled(gpus=1, alone_s=alone_s)
    buckets = _buckets(alone.backward, habits.bucket_bytes)
    each_byte, each_bucket = _cost(device, gpus, habits)
    communication_s, end = 0.0, 0.0
    for full, size in buckets:  # a bucket starts when it is full and the one before has arrived
        seconds = size * each_byte + each_bucket
        communication_s += seconds
        end = max(end, full) + seconds
    exposed_s = communication_s
    if habits.overlaps and buckets:
        exposed_s = max(0.0, end - alone.backward_s)
    overlapped_s = communication_s - exposed_s
    # Standard deviations by which the largest of n normal numbers lies above their mean (Blom 1958).
    slowest = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))
    return Scaled(
        gpus=gpus,
        alone_s=alone_s,
        communication_s=communication_s,
        exposed_s=exposed_s,
        overlapped_s=overlapped_s,
        contention_s=habits.contention * overlapped_s
        + habits.board * alone_s
        + habits.host_s * accumulate * (gpus - 1),
        waiting_s=slowest * alone_s * math.hypot(habits.spread, habits.raggedness / accumulate**0.5),
        sync_s=habits.sync_s,
    )


def _buckets(backward: Sequence[Gradient], size: float) -> list[tuple[float, float]]:
    """When each bucket is full, counted from the start of the backward pass, and its bytes."""
    buckets, at, held = [], 0.0, 0.0
    for gradient in backward:
        at += gradient.seconds
        held += gradient.bytes
        if held >= size:
            buckets.append((at, held))
            held = 0.0
    return [*buckets, (at, held)] if held else buckets


def _cost(device: Device, gpus: int, habits: Habits) -> tuple[float, float]:
    """Seconds for each byte, and for each bucket.

    A parameter server gets every gradient and sends every parameter, over each GPU's link to the host, which
    the chips of a board share. Where one GPU gathers them, those of all others pass its link in turn.
    """
    direct = device.gpu_link if habits.through == "gpu_link" else None
    name = direct or device.host_link
    if name is None:
        raise PredictionError(f"{device.name} has no link in its file; add host_link or gpu_link")
    over = link(name)
    bandwidth = over.bandwidth * habits.link_share
    if habits.through == "host":
        return 2 * min(gpus, BOARDS.get(device.name, 1)) / bandwidth, 2 * over.latency_s
    if habits.through == "first":
        return 2 * (gpus - 1) / bandwidth, 2 * (gpus - 1) * over.latency_s
    bandwidth *= mesh_share(device.name, gpus)
    return ring_all_reduce_s(1.0, gpus, bandwidth), ring_all_reduce_s(0.0, gpus, bandwidth, over.latency_s)


def mesh_share(device: str, gpus: int) -> float:
    """What so many GPUs of a mesh reach of a GPU's links: each of those goes to another neighbour."""
    return next((shares.get(gpus, 1.0) for mesh, shares in MESHES.items() if device.startswith(mesh)), 1.0)
