"""`laptime devices`: what is known of machines, and from where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.outcome import Outcome, print_out, say, verb

if TYPE_CHECKING:
    from laptime.hardware import Device

_NAME = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A name such as h100-sxm, a file of your own such as ./mine.toml, or a text to look for.",
    ),
]


@verb
def devices(
    name: _NAME = None,
    links: Annotated[bool, typer.Option("--links", help="Links and storage instead of devices.")] = False,
) -> Outcome:
    """List the devices that predictions can be made for; with a NAME, every figure of one and its source.

    A device of your own is a TOML file with name, kind, memory_bandwidth_gbs and fp32 (TFLOP/s), given by its
    path or put into ~/.config/laptime/devices.
    """
    from laptime import hardware

    if links:
        return Outcome(
            document={"links": hardware.links(), "storage": hardware.storages()}, show=_print_links
        )
    chosen = hardware.devices() if name is None else _matching(name)
    alone = name is not None and len(chosen) == 1
    return Outcome(
        document={"devices": [_document(device) for device in chosen]},
        show=lambda: _print_one(chosen[0]) if alone else _print_table(chosen),
    )


def _matching(text: str) -> tuple[Device, ...]:
    """The device of that name; otherwise all whose name, title or architecture holds the text."""
    from laptime import hardware
    from laptime.errors import AmbiguousDevice, UnknownDevice

    try:
        return (hardware.device(text),)
    except (UnknownDevice, AmbiguousDevice):
        wanted = text.lower()
        matching = tuple(
            device
            for device in hardware.devices()
            for words in ((device.name, device.title, device.architecture, device.kind),)
            if any(wanted in str(word).lower() for word in words)
        )
        if not matching:
            raise
        return matching


def _document(device: Device) -> dict[str, Any]:
    from laptime import hardware
    from laptime.files.write import plain

    peaks = {precision: _peak(device, precision) for precision in hardware.PRECISIONS}
    document: dict[str, Any] = plain(device)
    return {**document, "peaks": peaks, "price": hardware.price(device)}


def _peak(device: Device, precision: str) -> Any:
    from laptime.errors import HardwareError

    try:
        return device.peak_of(precision)
    except HardwareError:
        return None


def _print_table(chosen: Sequence[Device]) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.fit import paragraph
    from laptime.render.terminal.table import left_out, table_lines
    from laptime.views.table import Column, table_of

    costs = {device.name: hardware.price(device) for device in chosen}
    columns: list[tuple[str, int, Callable[[Device], Any]]] = [
        ("GiB", 0, lambda device: device.memory_gib),
        ("GB/s", 0, lambda device: device.memory_bandwidth_gbs),
        ("fp32", 0, lambda device: device.fp32),
        ("tf32", 2, lambda device: device.tf32),
        ("fp16", 0, lambda device: device.fp16 or device.fp16_vector),
        ("bf16", 1, lambda device: device.bf16),
        ("W", 3, lambda device: device.tdp_w),
        ("$/h", 4, lambda device: (cost := costs[device.name]) and f"{cost.dollars_per_hour:.2f}"),
        ("year", 5, lambda device: device.year and str(device.year)),
    ]
    to = run_text.console()
    names = (Column(title="device", words=True), [_cell(device.name) for device in chosen])
    rest = [
        (Column(title=title, priority=priority, optional=True), [_cell(read(device)) for device in chosen])
        for title, priority, read in columns
    ]
    table = table_of("devices", [names, *rest])
    run_text.print_lines(table_lines(table, to.width), to)
    words = "fp32 to bf16 in TFLOP/s, dense; $/h an example."
    if gone := left_out(table, to.width):
        words += f" No room for {', '.join(gone)}: a wider terminal or --json has them."
    for line in paragraph(f"{words} `laptime devices NAME` gives all figures and sources", to.width):
        say(line.plain)


def _print_one(device: Device) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.fit import paragraph
    from laptime.render.terminal.table import table_lines
    from laptime.views.format import name
    from laptime.views.table import Column, table_of

    to = run_text.console()
    width = min(to.width, 140)
    document = _document(device)
    print_out(f"{name(device.title)} ({name(device.name)})")
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
            run_text.print_lines(paragraph(name(words), width, bullet=f"{title:<8}"), to)
    print_out()
    figures = list(device.sources)
    table = table_of(
        "figures",
        [
            (Column(title="figure", words=True), [_figure(figure) for figure in figures]),
            (Column(title="value"), [_cell(getattr(device, figure)) for figure in figures]),
            (Column(title="", words=True), ["est." if f in device.estimated else "" for f in figures]),
            (Column(title="source", words=True), _numbered(device.sources.values())),
        ],
    )
    run_text.print_lines(table_lines(table, width), to)
    print_out()
    for place, source in enumerate(dict.fromkeys(device.sources.values()), 1):
        run_text.print_lines(paragraph(name(source), width, bullet=f"[{place}] "), to)


def _figure(name: str) -> str:
    return f"{name} (TFLOP/s)" if name.startswith(("fp", "bf", "tf")) else name


def _numbered(sources: Any) -> list[str]:
    places = {source: f"[{place}]" for place, source in enumerate(dict.fromkeys(sources), 1)}
    return [places[source] for source in sources]


def _print_links() -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.table import table_lines
    from laptime.views.table import Column, Table

    links, storage = hardware.links(), hardware.storages()
    to = run_text.console()
    speed, about = Column(title="GB/s"), Column(title="", priority=1, words=True)
    joints = Table(
        name="links",
        columns=[Column(title="link", words=True), speed, Column(title="µs"), about],
        rows=[[*map(_cell, (link.name, link.bandwidth_gbs, link.latency_us, link.title))] for link in links],
    )
    drives = Table(
        name="storage",
        columns=[Column(title="storage", words=True), speed, about],
        rows=[[*map(_cell, (drive.name, drive.read_gbs, drive.title))] for drive in storage],
    )
    run_text.print_lines(table_lines(joints, to.width), to)
    print_out()
    run_text.print_lines(table_lines(drives, to.width), to)


def _cell(value: Any) -> str:
    from laptime.views.format import UNKNOWN, name

    if value is None:
        return UNKNOWN
    return name(value) if isinstance(value, str) else f"{value:.6g}"
