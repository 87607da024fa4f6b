"""`laptime devices`: what is known of machines, and from where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.outcome import Outcome, say, verb

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
    from laptime.runs.files import plain

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
    from laptime.render.terminal.columns import Column, left_out, table
    from laptime.render.terminal.fit import paragraph

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
    first = Column(title="device", cells=[device.name for device in chosen], words=True)
    rest = [
        Column(title=title, cells=[_cell(read(device)) for device in chosen], needed=needed)
        for title, needed, read in columns
    ]
    run_text.print_lines(table([first, *rest], to.width), to)
    words = "fp32 to bf16 in TFLOP/s, dense; $/h an example."
    if gone := left_out([first, *rest], to.width):
        words += f" No room for {', '.join(gone)}: a wider terminal or --json has them."
    for line in paragraph(f"{words} `laptime devices NAME` gives all figures and sources", to.width):
        say(line.plain)


def _print_one(device: Device) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.columns import Column, table
    from laptime.render.terminal.fit import paragraph

    to = run_text.console()
    width = min(to.width, 140)
    document = _document(device)
    print(f"{device.title} ({device.name})")
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
            run_text.print_lines(paragraph(words, width, bullet=f"{title:<8}"), to)
    print()
    figures = list(device.sources)
    run_text.print_lines(
        table(
            [
                Column(title="figure", cells=[_figure(figure) for figure in figures], words=True),
                Column(title="value", cells=[_cell(getattr(device, figure)) for figure in figures]),
                Column(
                    title="", cells=["est." if f in device.estimated else "" for f in figures], words=True
                ),
                Column(title="source", cells=_numbered(device.sources.values()), words=True),
            ],
            width,
        ),
        to,
    )
    print()
    for place, source in enumerate(dict.fromkeys(device.sources.values()), 1):
        run_text.print_lines(paragraph(source, width, bullet=f"[{place}] "), to)


def _figure(name: str) -> str:
    return f"{name} (TFLOP/s)" if name.startswith(("fp", "bf", "tf")) else name


def _numbered(sources: Any) -> list[str]:
    places = {source: f"[{place}]" for place, source in enumerate(dict.fromkeys(sources), 1)}
    return [places[source] for source in sources]


def _print_links() -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.columns import Column, table

    links, storage = hardware.links(), hardware.storages()
    to = run_text.console()
    joints = [
        Column(title="link", cells=[link.name for link in links], words=True),
        Column(title="GB/s", cells=[_cell(link.bandwidth_gbs) for link in links]),
        Column(title="µs", cells=[_cell(link.latency_us) for link in links]),
        Column(title="", cells=[link.title for link in links], needed=1, words=True),
    ]
    drives = [
        Column(title="storage", cells=[drive.name for drive in storage], words=True),
        Column(title="GB/s", cells=[_cell(drive.read_gbs) for drive in storage]),
        Column(title="", cells=[drive.title for drive in storage], needed=1, words=True),
    ]
    run_text.print_lines(table(joints, to.width), to)
    print()
    run_text.print_lines(table(drives, to.width), to)


def _cell(value: Any) -> str:
    from laptime.views.format import UNKNOWN, name

    if value is None:
        return UNKNOWN
    return name(value) if isinstance(value, str) else f"{value:.6g}"
