"""What the prediction page asks, from a URL's query: every value within bounds, or one line that names it.

The bounds keep an answer cheap: its cost grows with the number of devices alone, and no name is a path.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from laptime.errors import PredictionError
from laptime.estimate.largest_batch import MOST
from laptime.files.text import one_line

# Rentable today, each with an example price in the catalog: from 16 to 192 GiB, one or two of every
# generation since Turing, and one of AMD's. Slowest first.
DOZEN = (
    *("t4", "l4", "a10g", "rtx-3090", "rtx-4090", "rtx-5090"),
    *("l40s", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "mi300x"),
)
LIMITS: Mapping[str, tuple[float, float]] = {
    "batch": (1, MOST),
    "gpus": (1, 8),
    "samples": (1, 10**12),
    "epochs": (1, 10**6),
    "price_per_hour": (1e-6, 1e6),
    "compute": (0.25, 8),
    "bandwidth": (0.25, 8),
    "link": (0.25, 8),
    "host": (0.25, 8),
    "loader": (1e-3, 1e9),
}
"""The least and the most of each number: what sliders and fields of a page take too."""
FACTORS: Mapping[str, str] = {
    "compute": "multiprocessors: every peak FLOP/s, and what kernels take beyond their roofline",
    "bandwidth": "bytes a second of the device's memory",
    "link": "bytes a second between the GPUs of a node; its latency stays",
    "host": "the speed of Python and of launching kernels",
}
"""What each factor multiplies."""
PRECISIONS = ("fp32", "bf16", "fp16")
SORTS = ("cost", "time")
MOST_DEVICES = 32
LONGEST_NAME = 80  # characters of a device's name
_WHOLE = ("batch", "gpus", "samples", "epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a network, and what-if factors; 1 is the machine as it is."""

    batch: int | None = None  # of one GPU; None: the workload's own
    precision: str | None = None  # None: the workload's own
    devices: tuple[str, ...] = ()  # none: a run's own device, and DOZEN
    shown: str | None = (
        None  # whose layers, memory and curves; None: the first that was named, or of the rows
    )
    sort: str | None = None  # None: by cost where the whole training is asked for, else by time
    gpus: int = 1  # of one node, each with its own batch
    samples: int | None = None  # in an epoch
    epochs: int | None = None
    price_per_hour: float | None = None  # of one GPU; None: the catalog's example
    compute: float = field(default=1.0)
    bandwidth: float = field(default=1.0)
    link: float = field(default=1.0)
    host: float = field(default=1.0)
    loader: float | None = None  # samples a second that the data comes in, for the whole node

    def __post_init__(self) -> None:
        """Refuses what lies outside of the bounds."""
        for name in LIMITS:
            _within(name, getattr(self, name), optional=_DEFAULTS_NONE[name])
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("sort", self.sort, SORTS)
        if len(self.devices) > MOST_DEVICES:
            raise PredictionError(f"devices has {len(self.devices)} names; give {MOST_DEVICES} at most")
        for device in (*self.devices, *([] if self.shown is None else [self.shown])):
            _named(device)
        if self.epochs is not None and self.samples is None:
            raise PredictionError("epochs is given without samples; give the samples of an epoch too")

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Question:
        """From the flat text of a URL's query; what is empty counts as not given."""
        known = [option.name for option in fields(cls)]
        given: dict[str, Any] = {}
        for name, text in query.items():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise PredictionError(f"nothing can be asked by {_short(name)}; {hint}")
            if not isinstance(text, str):
                raise PredictionError(f"{name} is {_short(text)}; give it as text")
            if text.strip():
                given[name] = _read(name, text.strip())
        return cls(**given)

    @property
    def imagines(self) -> bool:
        """Whether it asks for anything but the machine as it is."""
        return self.loader is not None or any(getattr(self, name) != 1 for name in FACTORS)

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"devices": list(self.devices)}


_DEFAULTS_NONE = {option.name: option.default is None for option in fields(Question)}


def _read(name: str, text: str) -> Any:
    if name == "devices":
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if name not in LIMITS:
        return text
    try:
        if len(text) > 30 or (name in _WHOLE and not (text.isascii() and text.isdecimal())):
            raise ValueError
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        raise PredictionError(f"{name} is {_short(text)}; {_wanted(name)}") from None


def _within(name: str, value: Any, *, optional: bool) -> None:
    if value is None and optional:
        return
    kinds = int if name in _WHOLE else int | float
    low, high = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise PredictionError(f"{name} is {_short(value)}; {_wanted(name)}")


def _wanted(name: str) -> str:
    low, high = LIMITS[name]
    kind = "whole number" if name in _WHOLE else "number"
    ends = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (low, high))
    return f"give a {kind} from {' to '.join(ends)}"


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise PredictionError(f"{name} is {_short(value)}; give {', '.join(known[:-1])} or {known[-1]}")


def _named(name: Any) -> None:
    """A device's name, never a file's: whoever asks over a network must not read files here."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        raise PredictionError(
            f"devices has {_short(name)}; give names of `laptime devices`, {LONGEST_NAME} characters at most"
        )
    if "/" in name or "\\" in name or name.strip().lower().endswith(".toml"):
        raise PredictionError(f"devices has {_short(name)}, a file; give names of `laptime devices`")


def _short(value: object) -> str:
    shown = one_line(repr(value) if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
