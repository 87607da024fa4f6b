"""`laptime devices`: what is known of machines, and from where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import Json
from laptime.cli.outcome import answer, print_out, say

if TYPE_CHECKING:
    from laptime.hardware import Device

_NAME = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A name such as h100-sxm, a file of your own such as ./mine.toml, or a text to look for.",
        show_default=False,
    ),
]


def devices(
    name: _NAME = None,
    links: Annotated[bool, typer.Option("--links", help="Links and storage instead of devices.")] = False,
    as_json: Json = False,
) -> None:
    """List the devices that predictions can be made for; with a NAME, every figure of one and its source.

    A device of your own is a TOML file with name, kind, memory_bandwidth_gbs and fp32 (TFLOP/s), given by its
    path or put into ~/.config/laptime/devices.
    """
    from laptime import hardware

    if links:
        _show_links(as_json)
        return
    found = hardware.devices() if name is None else _matching(name)
    if as_json:
        answer({"devices": [_document(one) for one in found]})
    elif name is not None and len(found) == 1:
        _print_one(found[0])
    else:
        _print_table(found)


def _matching(text: str) -> tuple[Device, ...]:
    """The device of that name; otherwise all whose name, title or architecture holds the text."""
    from laptime import hardware
    from laptime.errors import AmbiguousDevice, UnknownDevice

    try:
        return (hardware.device(text),)
    except (UnknownDevice, AmbiguousDevice):
        wanted = text.lower()
        found = tuple(
            one
            for one in hardware.devices()
            if any(wanted in str(word).lower() for word in (one.name, one.title, one.architecture, one.kind))
        )
        if not found:
            raise
        return found


def _document(one: Device) -> dict[str, Any]:
    from laptime import hardware
    from laptime.files.write import plain

    peaks = {precision: _peak(one, precision) for precision in hardware.PRECISIONS}
    document: dict[str, Any] = plain(one)
    return {**document, "peaks": peaks, "price": hardware.price(one)}


def _peak(one: Device, precision: str) -> Any:
    from laptime.errors import HardwareError

    try:
        return one.peak_of(precision)
    except HardwareError:
        return None


def _print_table(found: Sequence[Device]) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.columns import Column, left_out, paragraph, table

    costs = {one.name: hardware.price(one) for one in found}
    columns: list[tuple[str, int, Callable[[Device], Any]]] = [
        ("GiB", 0, lambda one: one.memory_gib),
        ("GB/s", 0, lambda one: one.memory_bandwidth_gbs),
        ("fp32", 0, lambda one: one.fp32),
        ("tf32", 2, lambda one: one.tf32),
        ("fp16", 0, lambda one: one.fp16 or one.fp16_vector),
        ("bf16", 1, lambda one: one.bf16),
        ("W", 3, lambda one: one.tdp_w),
        ("$/h", 4, lambda one: (cost := costs[one.name]) and f"{cost.dollars_per_hour:.2f}"),
        ("year", 5, lambda one: one.year and str(one.year)),
    ]
    to = run_text.console()
    first = Column(title="device", cells=[one.name for one in found], words=True)
    rest = [
        Column(title=title, cells=[_cell(read(one)) for one in found], needed=needed)
        for title, needed, read in columns
    ]
    run_text.print_lines(table([first, *rest], to.width), to)
    words = "fp32 to bf16 in TFLOP/s, dense; $/h an example."
    if gone := left_out([first, *rest], to.width):
        words += f" No room for {', '.join(gone)}: a wider terminal or --json has them."
    for line in paragraph(f"{words} `laptime devices NAME` gives all figures and sources", to.width):
        say(line.plain)


def _print_one(one: Device) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.columns import Column, paragraph, table

    to = run_text.console()
    width = min(to.width, 140)
    document = _document(one)
    print_out(f"{one.title} ({one.name})")
    told = [("also", ", ".join(one.aliases)), ("note", one.note)]
    told += [
        (f"in {precision}", peak.fallback)
        for precision in hardware.PRECISIONS
        if (peak := document["peaks"][precision]) is not None and peak.fallback
    ]
    if (cost := document["price"]) is not None:
        kind = "example" if cost.example else "your price"
        told.append(("price", f"{cost.dollars_per_hour:.2f} $/h ({kind}, {cost.date}): {cost.source}"))
    if one.memory_gib is None:
        told.append(("memory", "not known, so whether a network fits cannot be said"))
    for title, words in told:
        if words:
            run_text.print_lines(paragraph(words, width, bullet=f"{title:<8}"), to)
    print_out()
    figures = list(one.sources)
    run_text.print_lines(
        table(
            [
                Column(title="figure", cells=[_figure(figure) for figure in figures], words=True),
                Column(title="value", cells=[_cell(getattr(one, figure)) for figure in figures]),
                Column(title="", cells=["est." if f in one.estimated else "" for f in figures], words=True),
                Column(title="source", cells=_numbered(one.sources.values()), words=True),
            ],
            width,
        ),
        to,
    )
    print_out()
    for place, source in enumerate(dict.fromkeys(one.sources.values()), 1):
        run_text.print_lines(paragraph(source, width, bullet=f"[{place}] "), to)


def _figure(name: str) -> str:
    return f"{name} (TFLOP/s)" if name.startswith(("fp", "bf", "tf")) else name


def _numbered(sources: Any) -> list[str]:
    places = {source: f"[{place}]" for place, source in enumerate(dict.fromkeys(sources), 1)}
    return [places[source] for source in sources]


def _show_links(as_json: bool) -> None:
    from laptime import hardware
    from laptime.render.terminal import run_text
    from laptime.render.terminal.columns import Column, table

    links, storage = hardware.links(), hardware.storages()
    if as_json:
        answer({"links": links, "storage": storage})
        return
    to = run_text.console()
    joints = [
        Column(title="link", cells=[one.name for one in links], words=True),
        Column(title="GB/s", cells=[_cell(one.bandwidth_gbs) for one in links]),
        Column(title="µs", cells=[_cell(one.latency_us) for one in links]),
        Column(title="", cells=[one.title for one in links], needed=1, words=True),
    ]
    drives = [
        Column(title="storage", cells=[one.name for one in storage], words=True),
        Column(title="GB/s", cells=[_cell(one.read_gbs) for one in storage]),
        Column(title="", cells=[one.title for one in storage], needed=1, words=True),
    ]
    run_text.print_lines(table(joints, to.width), to)
    print_out()
    run_text.print_lines(table(drives, to.width), to)


def _cell(value: Any) -> str:
    from laptime.views.format import UNKNOWN, name

    if value is None:
        return UNKNOWN
    return name(value) if isinstance(value, str) else f"{value:.6g}"
