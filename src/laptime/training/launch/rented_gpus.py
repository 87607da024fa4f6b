"""GPUs as SkyPilot names them, and the devices of our catalog that they are. No torch here.

Names are those of SkyPilot's catalogs of August 2026 (github.com/skypilot-org/skypilot-catalog, v8). A bare
name can stand for another card elsewhere: an H100 is the SXM card, and at RunPod the PCIe card.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from laptime.errors import ConfigError, HardwareError
from laptime.files.text import one_line
from laptime.hardware import Price, device, price
from laptime.hardware.lookup import key

_GPUS: Mapping[str, str | None] = {
    "A10": "a10",
    "A100": "a100-sxm-40gb",
    "A100-80GB": "a100-sxm-80gb",
    "A10G": "a10g",
    "A40": "a40",
    "A6000": "rtx-a6000",
    "B200": "b200",
    "B300": None,  # not in our catalog
    "GH200": "gh200-96gb",
    "H100": "h100-sxm",
    "H200": "h200",
    "K80": "k80",
    "L4": "l4",
    "L40": "l40",
    "L40S": "l40s",
    "M60": "m60",
    "MI300X": "mi300x",
    "P100": "p100-pcie-16gb",
    "P4": "p4",
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX5090": "rtx-5090",
    "RTX6000": None,  # the Turing card
    "RTX6000-Ada": "rtx-6000-ada",
    "RTXPRO6000": "rtx-pro-6000-server",
    "T4": "t4",
    "V100": "v100-sxm2-16gb",
    "V100-32GB": "v100-sxm2-32gb",
}
_AT_CLOUD: Mapping[str, Mapping[str, str | None]] = {
    "gcp": {"H100-MEGA": None},  # H100s with a faster network
    "runpod": {
        "A100-80GB": "a100-pcie-80gb",
        "A100-80GB-SXM": "a100-sxm-80gb",
        "H100": "h100-pcie",
        "H100-NVL": "h100-nvl",
        "H100-SXM": "h100-sxm",
        "H200-SXM": "h200",
        "RTXA4000": "rtx-a4000",
        "RTXA5000": "rtx-a5000",
        "RTXA6000": "rtx-a6000",
        "RTXPRO6000-WK": "rtx-pro-6000",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedGpu:
    """A GPU to rent: SkyPilot's name of it, and what an hour of one costs where that is known."""

    name: str
    price: Price | None


def rented_gpu(text: str, cloud: str) -> RentedGpu:
    """The GPU that SkyPilot, or our catalog, calls `text`; `cloud` is a name, or `any`."""
    meant = {**_GPUS, **_AT_CLOUD.get(cloud, {})}
    everywhere = sorted({*_GPUS, *(name for names in _AT_CLOUD.values() for name in names)})
    name: str | None = text if text in everywhere else {key(name): name for name in meant}.get(key(text))
    # `h100-sxm` is a card of our catalog, which most clouds call H100, and also RunPod's own name of it.
    name = name or _by_device(text, cloud, meant) or {key(name): name for name in everywhere}.get(key(text))
    if name is None:
        near = difflib.get_close_matches(text.upper(), everywhere, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}; all: " if near else "known: "
        raise ConfigError(f"--gpu {one_line(text)}: no such GPU can be rented; {hint}{', '.join(everywhere)}")
    known = meant.get(name)
    return RentedGpu(name=name, price=price(known) if known else None)


def _by_device(text: str, cloud: str, meant: Mapping[str, str | None]) -> str | None:
    """SkyPilot's name of a device of our catalog; None where it has none."""
    try:
        wanted = device(text).name
    except HardwareError:
        return None
    here = {of: name for name, of in meant.items()}.get(wanted)  # a cloud's own name comes after the common
    others = {
        where: {of: name for name, of in names.items()}[wanted]
        for where, names in _AT_CLOUD.items()
        if wanted in names.values()
    }
    if cloud == "any" and others and {here} != set(others.values()):
        names = [*([f"{here} at most clouds"] if here else []), *(f"{n} at {c}" for c, n in others.items())]
        raise ConfigError(f"--gpu {one_line(text)} is {' and '.join(names)}; give the name, or --cloud")
    return here
