"""TOML into devices, links, storage, clusters and prices. Impossible values raise a one-line error."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, get_args

from laptime.errors import CatalogError, HardwareError
from laptime.files.parse import parse_toml
from laptime.files.read import read_bytes
from laptime.files.text import first_line
from laptime.hardware.cluster import Cluster, OtherNodes
from laptime.hardware.device import PEAKS, CatalogEntry, Device, Kind, Link, Price, Storage, raid0

Table = Mapping[str, Any]
Part = TypeVar("Part", bound=CatalogEntry)


# Unit, and what no machine reaches: past it the figure is in another unit, such as FLOP/s for TFLOP/s.
_FIGURES: dict[str, tuple[str, float]] = {
    "memory_gib": ("GiB", 1e5),
    "memory_bandwidth_gbs": ("GB/s", 1e5),
    "l2_mib": ("MiB", 1e4),
    "sms": ("processors", 1e5),
    "clock_mhz": ("MHz", 1e4),
    **dict.fromkeys(PEAKS, ("TFLOP/s", 1e5)),
    "tdp_w": ("W", 1e5),
    "bandwidth_gbs": ("GB/s", 1e5),
    "latency_us": ("µs", 1e6),
    "read_gbs": ("GB/s", 1e4),
    "dollars_per_hour": ("dollars", 1e5),
    "year": ("years", 2100),
    "node_hours_between_failures": ("hours", 1e9),
}
# Figures of a cluster without a unit. Cluster itself says which values they can have.
_COUNTS = ("nodes", "devices_per_node", "rails", "pod_nodes")
_RATIOS = ("oversubscription", "slow_share", "slowdown")
_WHOLE = ("sms", "year")
_LINKS = ("host_link", "gpu_link", "inside", "between")
# What else of a cluster has a source: names, no figures.
_NAMES = ("device", "wiring", "storage")


def read_toml(path: Path | Traversable, where: str) -> dict[str, Any]:
    """The tables of a file on the disk, or inside a wheel."""
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


@contextmanager
def _located(where: str) -> Iterator[None]:
    """What is wrong with a value, and where it stands."""
    try:
        yield
    except ValueError as error:
        raise CatalogError(f"{where}: {error}") from None


def read_part(
    kind: type[Part], table: Table, where: str, documents: Table, links: Collection[str] = ()
) -> Part:
    """A device, link or storage from its table: keys are its fields, and the source of what has none.

    `documents` are the sources that a catalog's rows refer to by a short name. `read_cluster` reads clusters.
    """
    if kind is Device:
        table = {"title": table.get("name"), **table}
    known = {field.name: field for field in fields(kind) if field.name not in ("links", "others")}
    given: dict[str, Any] = {}
    with _located(where):
        _only(table, (*known, "source"))
        name = _text(table, "name")
        plain = re.sub(r"[^a-z0-9+.]+", "-", name.lower()).strip("-")
        if name != plain:
            raise ValueError(f"name is {name!r}; write it as {plain or 'my-box'!r}")
        for key, field in known.items():
            if key in ("aliases", "estimated"):
                given[key] = _texts(table, key)
            elif key != "sources" and (key in table or field.default is MISSING):
                given[key] = _value(table, key)
        if kind is Device:
            if given["kind"] not in get_args(Kind):
                raise ValueError(f"kind is {given['kind']!r}; give 'gpu' or 'cpu'")
            if not any(key in table for key in PEAKS):
                raise ValueError(f"no peak; give fp32, or another of {', '.join(PEAKS)}, in TFLOP/s")
        used_links = [key for key in _LINKS if key in given]
        for key in used_links:
            _one_of(links, given, key, "link")
        named = used_links + [key for key in _NAMES if kind is Cluster and key in given]
        figures = [key for key in given if key in (*_FIGURES, *_COUNTS, *_RATIOS)]
        own = table.get("sources", {})
        if not isinstance(own, dict):
            raise ValueError(f"sources is {own!r}; give a table such as {{ fp32 = 'data sheet' }}")
        _only(own, [*figures, *named], "sources: ")
        _only(given["estimated"], figures, "estimated: ")
        general = _text(table, "source")
    sources = {key: str(own.get(key, general)) for key in (*figures, *named)}
    given["sources"] = {key: str(documents.get(source, source)) for key, source in sources.items()}
    try:
        return kind(**given)
    except HardwareError as error:  # a cluster that cannot be
        raise CatalogError(f"{where}: {error}") from None


def read_cluster(
    table: Table, where: str, documents: Table, links: Collection[str], storage: Collection[str]
) -> Cluster:
    """A cluster from its table: links of its own under [[link]], nodes with another device under [[other]].

    Devices are not looked up.
    """
    table = {"title": table.get("name"), **table}
    own = _read_links(table.pop("link", []), table, where, links)
    others = _read_others(table.pop("other", []), where)
    cluster = read_part(Cluster, table, where, documents, [*links, *(link.name for link in own)])
    with _located(where):
        if cluster.storage is not None:
            _one_of(storage, {"storage": cluster.storage}, "storage", "storage")
        try:
            return replace(cluster, links=own, others=others)
        except HardwareError as error:
            raise ValueError(error) from None


def _rows_under(noun: str, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{noun} is {rows!r}; write each {noun} under a line [[{noun}]]")
    return rows


def _read_others(rows: Any, where: str) -> tuple[OtherNodes, ...]:
    """The nodes of a cluster's file that have another device."""
    others = []
    with _located(where):
        for row in _rows_under("other", rows):
            _only(row, [field.name for field in fields(OtherNodes)], "other: ")
            price = _figure(row, "dollars_per_hour") if "dollars_per_hour" in row else None
            try:
                others.append(
                    OtherNodes(
                        device=_text(row, "device"), nodes=_value(row, "nodes"), dollars_per_hour=price
                    )
                )
            except HardwareError as error:
                raise ValueError(f"other: {error}") from None
    return tuple(others)


def _read_links(rows: Any, table: Table, where: str, taken: Collection[str]) -> tuple[Link, ...]:
    """The links of a cluster's file; what names no source has the cluster's."""
    with _located(where):
        rows = _rows_under("link", rows)
    links: dict[str, Link] = {}
    for row in rows:
        row = {"title": row.get("name"), "source": table.get("source"), **row}
        link = read_part(Link, row, f"{where}: link {row.get('name', '')}".rstrip(), {})
        if link.name in taken or link.name in links:
            raise CatalogError(f"{where}: {link.name!r} is a link already; choose another name")
        links[link.name] = link
    return tuple(links.values())


def read_storage(table: Table, where: str, documents: Table, known: Mapping[str, Storage]) -> Storage:
    """Storage from its table; `of` and `count` make a RAID 0 of drives that came before."""
    if "of" in table:
        return raid0(known[table["of"]], table["count"])
    return read_part(Storage, table, where, documents)


def read_price(table: Table, where: str) -> Price:
    """A price from its table; what names no source has the file."""
    table = {"source": where, "example": True, "date": "no date", **table}
    with _located(where):
        _only(table, [field.name for field in fields(Price)])
        if not isinstance(table["example"], bool):
            raise ValueError(f"example is {table['example']!r}; give true or false")
        return Price(
            device=_text(table, "device"),
            dollars_per_hour=_figure(table, "dollars_per_hour"),
            date=str(table["date"]),
            source=_text(table, "source"),
            example=table["example"],
        )


def _only(keys: Iterable[str], known: Collection[str], within: str = "") -> None:
    for key in keys:
        if key not in known:
            raise ValueError(f"{within}{key!r} is no key; {_nearest(key, known, cutoff=0.5)}")


def _one_of(known: Collection[str], given: Table, key: str, what: str) -> None:
    if given[key] not in known:
        hint = _nearest(given[key], known, cutoff=0.3)
        raise ValueError(f"{key} is {given[key]!r}, which is no {what}; {hint}")


def _nearest(name: str, known: Collection[str], cutoff: float) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _value(table: Table, key: str) -> Any:
    if key in _COUNTS:
        return _number(table, key, "a whole number of at least 1")
    if key in _RATIOS:
        return float(_number(table, key, "a number"))
    return _figure(table, key) if key in _FIGURES else _text(table, key)


def _number(table: Table, key: str, wanted: str) -> Any:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {'missing' if value is None else repr(value)}; give {wanted}")
    return value


def _figure(table: Table, key: str) -> Any:
    unit, most = _FIGURES[key]
    if key not in table:
        raise ValueError(f"{key} is missing; give it in {unit}")
    value = _number(table, key, f"a number in {unit}")
    if value <= 0:
        raise ValueError(f"{key} is {value:g}; give more than 0 {unit}, or leave it out if unknown")
    if value > most:
        raise ValueError(f"{key} is {value:g}; that is too much for {unit}: check the unit")
    if key in _WHOLE and value != int(value):
        raise ValueError(f"{key} is {value:g}; give a whole number")
    return int(value) if key in _WHOLE else float(value)


def _text(table: Table, key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {'missing' if value is None else repr(value)}; give a text")
    return value


def _texts(table: Table, key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{key} is {value!r}; give a list of texts")
    return tuple(value)
