"""`laptime doctor`: what this machine is, and whether times taken on it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from laptime.cli.outcome import Outcome, verb, waiting

if TYPE_CHECKING:
    from rich.text import Text


@verb
def doctor() -> Outcome:
    """Check versions, devices, clocks and settings, and say what would make times steadier."""
    with waiting("examining this machine"):
        from laptime.recorder.machine import examine

        machine = examine()
    return Outcome(
        document=lambda: machine,
        lines=lambda width: _lines(machine, min(width, 100)),
        status=0 if machine["ready"] else 1,
    )


def _lines(machine: Mapping[str, Any], width: int) -> Iterator[Text]:
    from rich.text import Text

    from laptime.render.terminal import paragraph

    advice = [("advice", line) for line in machine["advice"]]
    for title, words in (*_facts(machine), *advice):
        yield from paragraph(words, width, bullet=f"{title:<12}")
    yield from (Text(), *paragraph(f"Verdict: {machine['verdict']}.", width, style="bold"))


def _facts(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def told(versions: Mapping[str, str | None]) -> str:
        return ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())

    def memory(size: int | None) -> str:
        return "memory unknown" if size is None else f"{size / 2**30:.1f} GiB"

    cores, here = machine["cores"], machine.get("environment", {})
    if here:
        yield "laptime", f"{here['laptime']}, Python {here['python']}, torch {here['torch']}"
    yield "packages", told(machine["packages"])
    for extra, versions in machine["extras"].items():
        yield (
            "extra",
            told(versions) + ("" if all(versions.values()) else f": pip install 'laptime[{extra}]'"),
        )
    threads = f", {here['threads']} torch threads" if here else ""
    load = "" if cores["load"] is None else f", load {cores['load']:.1f}"
    yield "cores", f"{cores['usable']} usable of {cores['all']}{threads}{load}"
    if not here:
        return
    yield "system", here["platform"]
    for device, facts in machine["devices"].items():
        more = f"{here['cpu_capability']}, {memory(here['memory_bytes'])}"
        if device != "cpu":
            more = f"{memory(facts['memory_bytes'])}, CUDA {facts['cuda']}, capability {facts['capability']}"
        yield device, f"{facts['name']}, {more}"
    variables = [f"{name}={value}" for name, value in here["variables"].items()]
    yield "variables", ", ".join(variables) or "none that matter are set"
    for clock in machine["clocks"]:
        ticks = f"the host's clock ticks in {clock['resolution_s'] * 1e9:.0f} ns"
        yield "clock", f"{clock['device']}: a mark costs {clock['mark_s'] * 1e6:.2f} µs, {ticks}"
    steady = machine["steadiness"]
    half = f"half of {steady['count']} equal pieces of work within ±{steady['spread'] / 2:.1%}"
    yield "steadiness", f"{steady['noise']}: {half}"
