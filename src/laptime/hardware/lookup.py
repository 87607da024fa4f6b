"""Devices, links, storage, clusters and prices by name: the catalog's, and the user's own files beside them.

A user's device is one TOML file, given as a path or put into $LAPTIME_DEVICES, or else into
~/.config/laptime/devices. A user's cluster is one TOML file, given as a path. Prices of
~/.config/laptime/prices.toml come before the examples of the catalog. Names are compared whole, never by
substrings (an L40S is not an L4), without case, blanks, dashes and words such as vendor names.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from laptime.errors import AmbiguousDevice, CatalogError, HardwareError, UnknownDevice
from laptime.files.text import one_line
from laptime.hardware import reading
from laptime.hardware.cluster import THIS_MACHINE, Cluster
from laptime.hardware.device import CatalogEntry, Device, Link, Price, Storage

_Entry = TypeVar("_Entry", bound=CatalogEntry)
_DEVICE_FILES = ("gpus-nvidia.toml", "gpus-amd.toml", "cpus.toml")
# "NVIDIA A100 Tensor Core GPU" and "Intel(R) Core(TM) i7-3820 CPU @ 3.60GHz" name an a100 and an i7-3820.
_IGNORED = frozenset(
    ("nvidia", "amd", "intel", "geforce", "tesla", "instinct", "tensor", "core", "gpu", "cpu", "processor")
)
_DECORATION = re.compile(r"\((?:r|tm)\)|[®™]|@.*$|\b\d+-core\b|\b\d+th gen\b")
_WORD = re.compile(r"[a-z0-9+]+")
_OTHER_CARD = frozenset(("ti", "super", "laptop", "mobile", "ada", "nvl"))  # an RTX 3090 Ti is no RTX 3090
_GIGABYTES = re.compile(r"^(\d+)(?:g|gb|gib)$")


def words(text: str) -> list[str]:
    """The words of a name that tell devices apart: `Tesla V100-SXM2-16G` is v100, sxm2, 16gb."""
    bare = _DECORATION.sub(" ", text.lower())
    useful = (word for word in _WORD.findall(bare) if word not in _IGNORED)
    return [_GIGABYTES.sub(r"\1gb", word) for word in useful]


def key(text: str) -> str:
    """The normalized name."""
    return "".join(words(text))


def runs(label: str) -> list[str]:
    """The keys of all runs of words in a label, longest first. A count such as `8x` is no word."""
    parts = words(re.sub(r"\b\d+x\s*(?=[a-z])", " ", label.lower()))
    ends = [end for end in range(1, len(parts)) if parts[end] not in _OTHER_CARD] + [len(parts)]
    keys = {"".join(parts[start:end]) for end in ends for start in range(end)}
    return sorted(keys, key=lambda name: (-len(name), name))


@dataclass(frozen=True, slots=True)
class _Catalog:
    devices: Mapping[str, Device]
    index: Mapping[str, tuple[str, ...]]  # key of a name or an alias -> the devices that bear it
    links: Mapping[str, Link]
    storage: Mapping[str, Storage]
    prices: Mapping[str, Price]


def device(name: str | Path | Device) -> Device:
    """The device of that name, alias or file; a device itself stays what it is.

    Case, blanks, dashes and the vendor's name do not count, so what `torch.cuda.get_device_name()` says is
    found too. `v100` is taken for the SXM2 card of 16 GB and `p100` for the PCIe one; `a100`, `h100` and
    `titan x` raise AmbiguousDevice, since their variants differ by a quarter and more.
    """
    if isinstance(name, Device):
        return name
    if _is_file(name):
        entry = _own(Path(name).expanduser())
        _merged(_shipped(), [entry])
        return entry[0]
    catalog = _known()
    candidates = catalog.index.get(key(str(name)), ())
    if len(candidates) > 1:
        raise AmbiguousDevice(str(name), candidates)
    if not candidates:
        raise UnknownDevice(str(name), catalog.devices)
    return catalog.devices[candidates[0]]


def gpu_in(label: str) -> Device:
    """The GPU that a label of someone's table names among other words: `DGX-1 (8x V100 16GB)`, `K80/CUDA 8`.

    The longest name that stands there in whole words counts. For labels of published results only: what a
    user asks for is looked up exactly, by `device`.
    """
    catalog = _shipped()
    gpus = {entry.name for entry in catalog.devices.values() if entry.kind == "gpu"}
    lengths: dict[str, int] = {}
    for run in runs(label):
        for name in catalog.index.get(run, ()):
            if name in gpus and len(run) >= max(lengths.values(), default=0):
                lengths[name] = len(run)
    if not lengths:
        raise UnknownDevice(label, gpus)
    if len(lengths) > 1:
        raise AmbiguousDevice(label, lengths)
    return catalog.devices[next(iter(lengths))]


def devices() -> tuple[Device, ...]:
    """Every device, the catalog's in the catalog's order, then the user's."""
    return tuple(_known().devices.values())


def link(name: str) -> Link:
    """The link of that name or alias."""
    return _one(name, _shipped().links, "link")


def links() -> tuple[Link, ...]:
    """Every link."""
    return tuple(_shipped().links.values())


def storage(name: str) -> Storage:
    """The storage of that name or alias."""
    return _one(name, _shipped().storage, "storage")


def storages() -> tuple[Storage, ...]:
    """Every storage."""
    return tuple(_shipped().storage.values())


def cluster(name: str | Path | Cluster, *, nodes: int | None = None) -> Cluster:
    """The cluster of that name, alias or file, with another number of nodes if one is given.

    A cluster itself stays what it is. A file may describe links of its own under [[link]].
    """
    entry = name if isinstance(name, Cluster) else _cluster(name)
    return entry if nodes is None else replace(entry, nodes=nodes)


def clusters() -> tuple[Cluster, ...]:
    """Every cluster of the catalog."""
    return tuple(_clusters().values())


def cluster_links(cluster: Cluster) -> tuple[Link | None, Link | None]:
    """The links inside a node and between nodes: the cluster's own, or else the catalog's; None for none."""
    own = {link.name: link for link in cluster.links}

    def named(name: str | None) -> Link | None:
        return None if name is None else own.get(name) or link(name)

    return named(cluster.inside), named(cluster.between)


def price(of: str | Path | Device) -> Price | None:
    """What an hour of the device costs, from the user's prices or else as an example; None if unknown."""
    wanted = device(of).name
    return _user_prices().get(wanted) or _shipped().prices.get(wanted)


def _is_file(name: str | Path) -> bool:
    return isinstance(name, Path) or name.endswith(".toml") or (os.sep in name and Path(name).is_file())


def _cluster(name: str | Path) -> Cluster:
    if _is_file(name):
        return _own_cluster(Path(name).expanduser())
    known = _clusters()
    try:
        return _one(str(name), known, "cluster")
    except UnknownDevice:
        near = difflib.get_close_matches(str(name).lower(), known, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        raise HardwareError(
            f"no cluster is called {name!r}; {hint}`laptime devices --clusters` lists all, "
            "and a file such as ./mine.toml can describe another"
        ) from None


@cache
def _clusters() -> dict[str, Cluster]:
    known = _shipped()
    entries = [
        reading.read_cluster(*row, known.links, known.storage) for row in _rows("clusters.toml", "cluster")
    ]
    return {entry.name: entry for entry in entries}


def _own_cluster(path: Path) -> Cluster:
    """The cluster of a user's file, its device by the catalog's name. What has no source has the file."""
    where = one_line(path)
    table = {"source": where, **reading.read_toml(path, where)}
    entry = reading.read_cluster(table, where, {}, _shipped().links, _shipped().storage)
    try:
        others = [replace(other, device=_own_device(other.device, path)) for other in entry.others]
        return replace(entry, device=_own_device(entry.device, path), others=tuple(others))
    except (UnknownDevice, AmbiguousDevice) as error:
        raise CatalogError(f"{where}: {error}") from None


def _own_device(name: str, path: Path) -> str:
    """The catalog's name of a device in a user's file; of a device file beside it, its path."""
    if name.lower() in THIS_MACHINE:
        return name.lower()
    if name.endswith(".toml"):
        own = path.parent / Path(name).expanduser()
        device(own)
        return str(own)
    return device(name).name


def _one(name: str, known: Mapping[str, _Entry], what: str) -> _Entry:
    for candidate in known.values():
        if key(name) in {key(candidate.name), *map(key, candidate.aliases)}:
            return candidate
    raise UnknownDevice(name, known, what=what)


def _rows(file: str, noun: str) -> Iterator[tuple[Any, str, Any]]:
    """Each row of the catalog, where it stands, and the documents that rows of its file refer to."""
    tables = _file(file)
    for row in tables[noun]:
        yield row, f"{file}: {row.get('name', row.get('of'))}", tables.get("documents", {})


@cache
def _shipped() -> _Catalog:
    every_link = [reading.read_part(Link, *row) for row in _rows("links.toml", "link")]
    links = {entry.name: entry for entry in every_link}
    storage: dict[str, Storage] = {}
    for row in _rows("storage.toml", "storage"):
        drive = reading.read_storage(*row, storage)
        storage[drive.name] = drive
    prices = [reading.read_price(row, "prices.toml") for row in _file("prices.toml")["price"]]
    several: dict[str, tuple[str, ...]] = {}
    entries: list[tuple[Device, str]] = []
    for file in _DEVICE_FILES:
        several |= {key(name): tuple(names) for name, names in _file(file).get("ambiguous", {}).items()}
        entries += [(reading.read_part(Device, *row, links), file) for row in _rows(file, "device")]
    empty = _Catalog({}, several, links, storage, {quote.device: quote for quote in prices})
    return _merged(empty, entries)


@cache
def _file(name: str) -> dict[str, Any]:
    return reading.read_toml(resources.files("laptime.hardware").joinpath("catalog", name), name)


def _merged(catalog: _Catalog, new: Iterable[tuple[Device, str]]) -> _Catalog:
    """The catalog with more devices, none of which may take a name that another has."""
    known, index = dict(catalog.devices), dict(catalog.index)
    for entry, where in new:
        for name in (entry.name, *entry.aliases):
            taken = index.get(key(name), (entry.name,))
            if taken != (entry.name,) or entry.name in known:
                owner = entry.name if entry.name in known else ", ".join(taken)
                raise CatalogError(f"{where}: {name!r} is taken by {owner} already; choose another name")
        known[entry.name] = entry
        index.update({key(name): (entry.name,) for name in (entry.name, *entry.aliases)})
    return _Catalog(known, index, catalog.links, catalog.storage, catalog.prices)


def _known() -> _Catalog:
    """Catalog and user's files. Those are read anew each time: there are few, and they are being edited."""
    given = os.environ.get("LAPTIME_DEVICES")
    folder = Path(given).expanduser() if given else _settings() / "devices"
    if given and not folder.is_dir():
        raise CatalogError(f"LAPTIME_DEVICES={given} is no folder; make it, or unset the variable")
    own = [_own(path) for path in sorted(folder.glob("*.toml"))]
    return _merged(_shipped(), own) if own else _shipped()


def _own(path: Path) -> tuple[Device, str]:
    """The one device of a user's file. What has no source of its own has the file."""
    where = one_line(path)
    table = {"source": where, **reading.read_toml(path, where)}
    return reading.read_part(Device, table, where, {}, _shipped().links), where


def _user_prices() -> dict[str, Price]:
    path = _settings() / "prices.toml"
    if not path.is_file():
        return {}
    where = one_line(path)
    rows = reading.read_toml(path, where).get("price", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CatalogError(f"{where}: price is {rows!r}; write each price under a line [[price]]")
    prices = [reading.read_price({"example": False, **row}, where) for row in rows]
    try:
        return {device(quote.device).name: quote for quote in prices}
    except (UnknownDevice, AmbiguousDevice) as error:
        raise CatalogError(f"{where}: {error}") from None


def _settings() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "laptime"
