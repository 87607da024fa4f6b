"""What a machine offers: devices, links, storage and prices, each figure with its source. Values only.

Units live in the names: GiB and MiB are binary, GB/s is 10⁹ bytes a second, a peak is in 10¹² FLOP/s. The
properties without a unit in their name give bytes, bytes per second and FLOP/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from laptime.errors import HardwareError

Kind = Literal["gpu", "cpu"]
Precision = Literal["fp32", "tf32", "fp16", "bf16"]

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
# Figures of a device in TFLOP/s.
PEAKS = ("fp64", "fp32", "fp16_vector", "fp32_matrix", "tf32", "fp16", "bf16")
# torch's names of precisions.
_SPELLINGS = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}

_GIB = 2.0**30
_GIGA = 1e9
_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most FLOP/s that a matrix product can reach, the figure it comes from, and why not a better one."""

    flops: float
    figure: str
    fallback: str | None = None  # None: the device has units for that precision


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """What has a name, further names, and a source for each of its figures."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)  # figure -> document
    estimated: tuple[str, ...] = ()  # figures that no vendor's document gives
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(CatalogEntry):
    """One device as PyTorch sees it: of a card with two chips, one chip.

    Peaks are dense, never sparse, and those of fp16 and bf16 accumulate in fp32, as PyTorch asks for; a
    GeForce does that at half the rate that is advertised. A GPU's figures hold at its boost clock, a CPU's at
    its base clock, which all cores keep. Memory is what the vendor names: the driver keeps 1 to 7 % of it.
    """

    kind: Kind
    memory_bandwidth_gbs: float
    vendor: str | None = None
    architecture: str | None = None
    year: int | None = None
    memory_gib: float | None = None  # of a CPU it depends on the machine
    l2_mib: float | None = None  # a CPU's last-level cache
    sms: int | None = None  # streaming multiprocessors, compute units, cores
    clock_mhz: float | None = None
    fp64: float | None = None  # vector units, like fp32 and fp16_vector
    fp32: float | None = None
    fp16_vector: float | None = None
    fp32_matrix: float | None = None  # matrix units that keep all of fp32: AMD's
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    tdp_w: float | None = None
    host_link: str | None = None
    gpu_link: str | None = None  # None: GPUs meet over host_link

    @property
    def memory_bytes(self) -> float | None:
        """Memory in bytes; None if unknown."""
        return None if self.memory_gib is None else self.memory_gib * _GIB

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second."""
        return self.memory_bandwidth_gbs * _GIGA

    def peak(self, precision: str) -> float:
        """FLOP/s of matrix products in that precision, after the fallbacks of `peak_of`."""
        return self.peak_of(precision).flops

    def peak_of(self, precision: str) -> Peak:
        """Which units multiply matrices of that precision, and what they reach.

        Without units of its own a precision runs as fp32. fp16 is the exception: the P100 computes it on its
        vector units at twice the rate of fp32, where a GTX 1080's are so few (1/64) that libraries use fp32.
        """
        wanted = _SPELLINGS.get(precision, precision)
        if wanted not in PRECISIONS:
            raise HardwareError(f"{precision!r} is no precision; give one of {', '.join(PRECISIONS)}")
        own = "fp32_matrix" if wanted == "fp32" else wanted
        if getattr(self, own) is not None:
            return Peak(flops=getattr(self, own) * _TERA, figure=own)
        fp32 = self.fp32_matrix or self.fp32
        if wanted == "fp16" and self.fp16_vector is not None and self.fp16_vector > (fp32 or 0.0):
            return Peak(
                flops=self.fp16_vector * _TERA,
                figure="fp16_vector",
                fallback="no matrix units for fp16: vector units, two numbers at a time",
            )
        if fp32 is None:
            raise HardwareError(
                f"{self.name} has no figure for {wanted}; add fp32 = ... (TFLOP/s) to its file"
            )
        figure = "fp32_matrix" if self.fp32_matrix is not None else "fp32"
        fallback = None if wanted == "fp32" else f"no units for {wanted}: runs as fp32"
        return Peak(flops=fp32 * _TERA, figure=figure, fallback=fallback)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(CatalogEntry):
    """A link: bandwidth per direction over all lanes, and the latency of one hop."""

    bandwidth_gbs: float
    latency_us: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second in one direction."""
        return self.bandwidth_gbs * _GIGA

    @property
    def latency_s(self) -> float:
        """Seconds before the first byte arrives."""
        return self.latency_us / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage(CatalogEntry):
    """A storage device and its sequential read bandwidth."""

    read_gbs: float

    @property
    def read_bandwidth(self) -> float:
        """Bytes per second."""
        return self.read_gbs * _GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an hour of one device cost at one place on one day. An example: the user's own price is better."""

    device: str
    dollars_per_hour: float
    date: str
    source: str
    example: bool = True


def raid0(one: Storage, count: int) -> Storage:
    """RAID 0: `count` drives read `count` times as fast, as every long piece is spread over all of them."""
    if count < 1:
        raise HardwareError(f"a RAID 0 of {count} drives reads nothing; give at least 1")
    return Storage(
        name=f"raid0-{count}x-{one.name}",
        title=f"RAID 0 of {count} × {one.title}",
        read_gbs=count * one.read_gbs,
        sources={"read_gbs": f"{count} × {one.read_gbs:g} GB/s; {one.sources.get('read_gbs', 'no source')}"},
        estimated=one.estimated,
        note="the link to the drives can be slower than the drives",
    )
