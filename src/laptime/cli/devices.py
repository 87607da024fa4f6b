"""`laptime devices`: what is known of machines, and from where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from laptime.cli.outcome import Outcome, say, verb

if TYPE_CHECKING:
    from rich.text import Text

    from laptime.hardware import Cluster, Device

_NAME_HELP = "A name such as h100-sxm, a file of your own such as ./mine.toml, or a text to look for."


@verb
def devices(
    name: Annotated[str | None, Argument(metavar="NAME", help=_NAME_HELP)] = None,
    links: Annotated[bool, Option("--links", help="Links and storage instead of devices.")] = False,
    clusters: Annotated[
        bool, Option("--clusters", help="Clusters instead of devices; NAME is one, or a file.")
    ] = False,
) -> Outcome:
    """List the devices that predictions can be made for; with a NAME, every figure of one and its source.

    A device of your own is a TOML file with name, kind, memory_bandwidth_gbs and fp32 (TFLOP/s), given by its
    path or put into ~/.config/laptime/devices.
    """
    from laptime import hardware

    if links:
        return Outcome(
            document=lambda: {"links": hardware.links(), "storage": hardware.storages()}, lines=_link_lines
        )
    if clusters:
        listed = hardware.clusters() if name is None else _matching_clusters(name)
        single = name is not None and len(listed) == 1
        return Outcome(
            document=lambda: {"clusters": listed},
            lines=lambda width: _one_cluster(listed[0], width) if single else _cluster_lines(listed, width),
        )
    chosen = hardware.devices() if name is None else _matching(name)
    alone = name is not None and len(chosen) == 1
    return Outcome(
        document=lambda: {"devices": [_document(device) for device in chosen]},
        lines=lambda width: _figure_lines(chosen[0], width) if alone else _table_lines(chosen, width),
    )


def _matching(text: str) -> tuple[Device, ...]:
    """The device of that name; otherwise all whose name, title or architecture holds the text."""
    from laptime import hardware
    from laptime.errors import AmbiguousDevice, UnknownDevice

    try:
        return (hardware.device(text),)
    except (UnknownDevice, AmbiguousDevice):
        matching = tuple(
            device
            for device in hardware.devices()
            if text.lower() in f"{device.name}\n{device.title}\n{device.architecture}\n{device.kind}".lower()
        )
        if not matching:
            raise
        return matching


def _matching_clusters(text: str) -> tuple[Cluster, ...]:
    """The cluster of that name or file; otherwise all whose name, title or device holds the text."""
    from laptime import hardware
    from laptime.errors import CatalogError, HardwareError

    try:
        return (hardware.cluster(text),)
    except CatalogError:
        raise
    except HardwareError:
        matching = tuple(
            cluster
            for cluster in hardware.clusters()
            if text.lower() in f"{cluster.name}\n{cluster.title}\n{cluster.device}".lower()
        )
        if not matching:
            raise
        return matching


def _document(device: Device) -> dict[str, Any]:
    from laptime import hardware
    from laptime.errors import HardwareError
    from laptime.files.write import plain

    def peak(precision: str) -> Any:
        try:
            return device.peak_of(precision)
        except HardwareError:
            return None

    peaks = {precision: peak(precision) for precision in hardware.PRECISIONS}
    return {**plain(device), "peaks": peaks, "price": hardware.price(device)}


def _table_lines(chosen: Sequence[Device], width: int) -> Iterator[Text]:
    from laptime import hardware
    from laptime.render.terminal import paragraph
    from laptime.render.terminal.table import left_out, table_lines
    from laptime.views.table import Column, Table

    figures = {"GiB": 0, "GB/s": 0, "fp32": 0, "tf32": 2, "fp16": 0, "bf16": 1, "W": 3, "$/h": 4, "year": 5}
    columns = [Column(title=title, priority=priority, optional=True) for title, priority in figures.items()]
    rows = []
    for device in chosen:
        cost = hardware.price(device)
        speeds = (device.fp32, device.tf32, device.fp16 or device.fp16_vector, device.bf16, device.tdp_w)
        bought = (cost and f"{cost.dollars_per_hour:.2f}", device.year and str(device.year))
        rows.append(_cells(device.name, device.memory_gib, device.memory_bandwidth_gbs, *speeds, *bought))
    table = Table(name="devices", columns=[Column(title="device", words=True), *columns], rows=rows)
    yield from table_lines(table, width)
    words = "fp32 to bf16 in TFLOP/s, dense; $/h an example."
    if gone := left_out(table, width):
        words += f" No room for {', '.join(gone)}: a wider terminal or --json has them."
    for line in paragraph(f"{words} `laptime devices NAME` gives all figures and sources", width):
        say(line.plain)


def _figure_lines(device: Device, width: int) -> Iterator[Text]:
    """Every figure of a device, and where it is from."""
    from rich.text import Text

    from laptime import hardware
    from laptime.render.terminal import WIDEST, paragraph
    from laptime.views.format import name

    width = min(width, WIDEST)
    document = _document(device)
    yield Text(f"{name(device.title)} ({name(device.name)})")
    told = [("also", ", ".join(device.aliases)), ("note", device.note)]
    told += [
        (f"in {precision}", peak.fallback)
        for precision in hardware.PRECISIONS
        if (peak := document["peaks"][precision]) is not None and peak.fallback
    ]
    if (cost := document["price"]) is not None:
        kind = "example" if cost.example else "your price"
        told.append(("price", f"{cost.dollars_per_hour:.2f} $/h ({kind}, {cost.date}): {cost.source}"))
    if device.memory_gib is None:
        told.append(("memory", "not known, so whether a network fits cannot be said"))
    for title, words in told:
        if words:
            yield from paragraph(name(words), width, bullet=f"{title:<8}")
    yield from _sourced(device, width)


def _sourced(entry: Device | Cluster, width: int) -> Iterator[Text]:
    """Every figure, and below them the documents that they are said to come from."""
    from rich.text import Text

    from laptime.render.terminal import paragraph
    from laptime.render.terminal.table import table_lines
    from laptime.views.format import name
    from laptime.views.table import Column, Table

    places = {source: place for place, source in enumerate(dict.fromkeys(entry.sources.values()), 1)}
    rows = []
    for figure, source in entry.sources.items():
        unit = " (TFLOP/s)" if figure.startswith(("fp", "bf", "tf")) else ""
        estimated = "est." if figure in entry.estimated else ""
        rows.append([figure + unit, *_cells(getattr(entry, figure)), estimated, f"[{places[source]}]"])
    titles = {"figure": True, "value": False, "": True, "source": True}
    columns = [Column(title=title, words=words) for title, words in titles.items()]
    yield from (Text(), *table_lines(Table(name="figures", columns=columns, rows=rows), width), Text())
    for source, place in places.items():
        yield from paragraph(name(source), width, bullet=f"[{place}] ")


def _link_lines(width: int) -> Iterator[Text]:
    from rich.text import Text

    from laptime import hardware
    from laptime.render.terminal.table import table_lines
    from laptime.views.table import Column, Table, titled

    about = Column(title="", priority=1, words=True)
    links = [_cells(link.name, link.bandwidth_gbs, link.latency_us, link.title) for link in hardware.links()]
    drives = [_cells(drive.name, drive.read_gbs, drive.title) for drive in hardware.storages()]
    yield from table_lines(
        Table(name="links", columns=[*titled(("link", "GB/s", "µs")), about], rows=links), width
    )
    yield Text()
    yield from table_lines(
        Table(name="storage", columns=[*titled(("storage", "GB/s")), about], rows=drives), width
    )


def _cluster_lines(chosen: Sequence[Cluster], width: int) -> Iterator[Text]:
    from laptime.render.terminal import paragraph
    from laptime.render.terminal.table import left_out, table_lines
    from laptime.views.table import Column, Table

    columns = [
        Column(title="cluster", words=True),
        Column(title="size"),
        Column(title="device", words=True),
        Column(title="inside", words=True, priority=2, optional=True),
        Column(title="between", words=True, priority=1, optional=True),
        Column(title="$/h", priority=3, optional=True),
    ]
    rows = []
    for cluster in chosen:
        size = f"{cluster.nodes} × {cluster.devices_per_node}"
        rails = f"{cluster.rails} × " if cluster.rails > 1 else ""
        between = cluster.between and rails + cluster.between
        dollars = cluster.dollars_of(cluster.nodes)
        cost = dollars and f"{dollars:.2f}"
        devices = " + ".join((cluster.device, *(other.device for other in cluster.others)))
        rows.append(_cells(cluster.name, size, devices, cluster.inside, between, cost))
    table = Table(name="clusters", columns=columns, rows=rows)
    yield from table_lines(table, width)
    words = "Size: nodes × devices of a node; $/h of all nodes, an example."
    if gone := left_out(table, width):
        words += f" No room for {', '.join(gone)}: a wider terminal or --json has them."
    for line in paragraph(f"{words} --json gives all figures and sources", width):
        say(line.plain)


def _one_cluster(cluster: Cluster, width: int) -> Iterator[Text]:
    """Every figure of a cluster, and its source."""
    from rich.text import Text

    from laptime.render.terminal import WIDEST, paragraph
    from laptime.views.format import name, plural

    width = min(width, WIDEST)
    yield Text(f"{name(cluster.title)} ({name(cluster.name)})")
    for other in cluster.others:
        yield from paragraph(
            f"{plural(other.nodes, 'node')} of {name(other.device)}", width, bullet="other   "
        )
    if cluster.note:
        yield from paragraph(name(cluster.note), width, bullet="note    ")
    if cluster.node_hours_between_failures is None:
        yield from paragraph("not known, so a simulation has none", width, bullet="failures ")
    yield from _sourced(cluster, width)


def _cells(*values: Any) -> list[str]:
    from laptime.views.format import UNKNOWN, name

    return [
        UNKNOWN if value is None else name(value) if isinstance(value, str) else f"{value:.6g}"
        for value in values
    ]
