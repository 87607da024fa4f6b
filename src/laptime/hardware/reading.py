"""TOML into devices, links, storage and prices. Impossible values raise a one-line error."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

from laptime.errors import CatalogError
from laptime.files.parse import parse_toml
from laptime.files.read import read_bytes
from laptime.files.text import first_line, one_line
from laptime.hardware.device import Device, Kind, Link, Price, Storage, raid0

Table = Mapping[str, Any]


class Readable(Protocol):
    """A file on the disk or inside a wheel."""

    def read_bytes(self) -> bytes:
        """The whole file."""
        ...


# Unit, and what no machine reaches: past it the figure is in another unit, such as FLOP/s for TFLOP/s.
_PEAKS = ("fp64", "fp32", "fp16_vector", "fp32_matrix", "tf32", "fp16", "bf16")
_FIGURES: dict[str, tuple[str, float]] = {
    "memory_gib": ("GiB", 1e5),
    "memory_bandwidth_gbs": ("GB/s", 1e5),
    "l2_mib": ("MiB", 1e4),
    "sms": ("processors", 1e5),
    "clock_mhz": ("MHz", 1e4),
    **dict.fromkeys(_PEAKS, ("TFLOP/s", 1e5)),
    "tdp_w": ("W", 1e5),
    "bandwidth_gbs": ("GB/s", 1e5),
    "latency_us": ("µs", 1e6),
    "read_gbs": ("GB/s", 1e4),
    "dollars_per_hour": ("dollars", 1e5),
    "year": ("years", 2100),
}
_WHOLE = ("sms", "year")
_LINKS = ("host_link", "gpu_link")
_DEVICE_FIGURES = (
    "memory_gib", "memory_bandwidth_gbs", "l2_mib", "sms", "clock_mhz", *_PEAKS, "tdp_w", "year",
)  # fmt: skip
_WORDS = ("name", "title", "note", "source")
_DEVICE_KEYS = (
    *_WORDS, "aliases", "kind", "vendor", "architecture", *_DEVICE_FIGURES, *_LINKS, "sources", "estimated",
)  # fmt: skip


def read_toml(path: Readable, where: str) -> dict[str, Any]:
    """The file as tables."""
    try:
        return parse_toml(read_bytes(path) if isinstance(path, Path) else path.read_bytes())
    except FileNotFoundError:
        raise CatalogError(f"{where} does not exist; check the path") from None
    except OSError as error:
        raise CatalogError(f"{where} cannot be read: {first_line(error)}; check the path") from None
    except UnicodeDecodeError:
        raise CatalogError(f"{where} is not UTF-8; save it as such") from None
    except ValueError as error:
        raise CatalogError(f"{where} is not TOML: {first_line(error)}; mend that line") from None


def user_device(path: Path, links: Collection[str]) -> Device:
    """The one device of a user's file. What has no source of its own has the file."""
    where = one_line(path)
    return read_device({"source": where, **read_toml(path, where)}, where, links)


def read_device(table: Table, where: str, links: Collection[str], documents: Table | None = None) -> Device:
    """A device from its table. `documents` are the sources that a catalog's rows refer to by a short name."""
    _only(table, _DEVICE_KEYS, where)
    name = _name(table, where)
    kind = _text(table, "kind", where)
    if kind not in get_args(Kind):
        raise CatalogError(f"{where}: kind is {kind!r}; give 'gpu' or 'cpu'")
    _figure(table, "memory_bandwidth_gbs", where)
    figures = {key: _figure(table, key, where) for key in _DEVICE_FIGURES if key in table}
    if not any(key in table for key in _PEAKS):
        raise CatalogError(f"{where}: no peak; give fp32, or another of {', '.join(_PEAKS)}, in TFLOP/s")
    joints: dict[str, Any] = {key: _joint(table, key, where, links) for key in _LINKS if key in table}
    told: dict[str, Any] = {
        key: _text(table, key, where) for key in ("vendor", "architecture", "note") if key in table
    }
    return Device(
        name=name,
        title=_text({"title": name, **table}, "title", where),
        kind=kind,
        aliases=_texts(table, "aliases", where),
        sources=_sources(table, (*figures, *joints), where, documents or {}),
        estimated=_estimated(table, figures, where),
        **figures,
        **joints,
        **told,
    )


def read_link(table: Table, where: str, documents: Table) -> Link:
    """A link from its table."""
    figures = ("bandwidth_gbs", "latency_us")
    _only(table, (*_WORDS, "aliases", *figures, "sources", "estimated"), where)
    return Link(**_part(table, figures, where, documents))


def read_storage(table: Table, where: str, documents: Table, known: Mapping[str, Storage]) -> Storage:
    """Storage from its table; `of` and `count` make a RAID 0 of drives that came before."""
    if "of" in table:
        _only(table, ("of", "count"), where)
        return raid0(known[table["of"]], table["count"])
    _only(table, (*_WORDS, "aliases", "read_gbs", "sources", "estimated"), where)
    return Storage(**_part(table, ("read_gbs",), where, documents))


def read_price(table: Table, where: str) -> Price:
    """A price from its table."""
    _only(table, ("device", "dollars_per_hour", "date", "source", "example"), where)
    example = table.get("example", True)
    if not isinstance(example, bool):
        raise CatalogError(f"{where}: example is {example!r}; give true or false")
    return Price(
        device=_text(table, "device", where),
        dollars_per_hour=_figure(table, "dollars_per_hour", where),
        date=str(table.get("date", "no date")),
        source=_text({"source": where, **table}, "source", where),
        example=example,
    )


def _part(table: Table, keys: Collection[str], where: str, documents: Table) -> dict[str, Any]:
    figures = {key: _figure(table, key, where) for key in keys}
    return {
        "name": _name(table, where),
        "title": _text(table, "title", where),
        "aliases": _texts(table, "aliases", where),
        "sources": _sources(table, figures, where, documents),
        "estimated": _estimated(table, figures, where),
        "note": table.get("note"),
        **figures,
    }


def _only(table: Table, known: Collection[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise CatalogError(f"{where}: {key!r} is no key; {hint}")


def _figure(table: Table, key: str, where: str) -> Any:
    unit, most = _FIGURES[key]
    if key not in table:
        raise CatalogError(f"{where}: {key} is missing; give it in {unit}")
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CatalogError(f"{where}: {key} is {value!r}; give a number in {unit}")
    if value <= 0:
        raise CatalogError(
            f"{where}: {key} is {value:g}; give more than 0 {unit}, or leave it out if unknown"
        )
    if value > most:
        raise CatalogError(f"{where}: {key} is {value:g}; that is too much for {unit}: check the unit")
    if key in _WHOLE:
        if value != int(value):
            raise CatalogError(f"{where}: {key} is {value:g}; give a whole number")
        return int(value)
    return float(value)


def _text(table: Table, key: str, where: str) -> Any:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise CatalogError(f"{where}: {key} is {'missing' if value is None else repr(value)}; give a text")
    return value


def _texts(table: Table, key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CatalogError(f"{where}: {key} is {value!r}; give a list of texts")
    return tuple(value)


def _name(table: Table, where: str) -> str:
    name: str = _text(table, "name", where)
    plain = re.sub(r"[^a-z0-9+.]+", "-", name.lower()).strip("-")
    if name != plain:
        raise CatalogError(f"{where}: name is {name!r}; write it as {plain or 'my-box'!r}")
    return name


def _joint(table: Table, key: str, where: str, links: Collection[str]) -> str:
    name: str = _text(table, key, where)
    if name not in links:
        near = difflib.get_close_matches(name, links, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(links)}"
        raise CatalogError(f"{where}: {key} is {name!r}, which is no link; {hint}")
    return name


def _sources(table: Table, figures: Collection[str], where: str, documents: Table) -> dict[str, str]:
    own = table.get("sources", {})
    if not isinstance(own, dict):
        raise CatalogError(f"{where}: sources is {own!r}; give a table such as {{ fp32 = 'data sheet' }}")
    _only(own, figures, f"{where}: sources")
    general = _text(table, "source", where)
    named = {figure: str(own.get(figure, general)) for figure in figures}
    return {figure: str(documents.get(source, source)) for figure, source in named.items()}


def _estimated(table: Table, figures: Collection[str], where: str) -> tuple[str, ...]:
    named = _texts(table, "estimated", where)
    _only(dict.fromkeys(named), figures, f"{where}: estimated")
    return named
