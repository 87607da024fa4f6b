"""`laptime doctor`: what this machine is, and whether times taken on it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laptime.cli.outcome import Outcome, print_out, verb
from laptime.cli.progress import waiting


@verb
def doctor() -> Outcome:
    """Check versions, devices, clocks and settings, and say what would make times steadier."""
    with waiting("examining this machine"):
        from laptime.cli.doctor_checks import examine

        machine = examine()
        machine["verdict"] = verdict(machine)
    return Outcome(document=machine, show=lambda: _print(machine), status=0 if machine["ready"] else 1)


def verdict(machine: Mapping[str, Any]) -> str:
    """One sentence on whether recording works here, and how well."""
    if not machine["ready"]:
        return (
            f"not ready: {machine['problem']}; pip install torch (runs can be shown and queried without it)"
        )
    ready = f"ready to record on {', '.join(machine['devices'])}"
    count = len(machine["advice"])
    if not count:
        return f"{ready}; nothing to change"
    return f"{ready}; {'one thing' if count == 1 else f'{count} things'} above would make times better"


def _print(machine: Mapping[str, Any]) -> None:
    from laptime.render.terminal import run_text
    from laptime.render.terminal.fit import paragraph

    to = run_text.console()
    width = min(to.width, 100)
    advice = [("advice", line) for line in machine["advice"]]
    for title, words in (*_facts(machine), *advice):
        run_text.print_lines(paragraph(words, width, bullet=f"{title:<12}"), to)
    print_out()
    run_text.print_lines(paragraph(f"Verdict: {machine['verdict']}.", width, style="bold"), to)


def _facts(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cores = machine["cores"]
    threads = "" if not machine["ready"] else f", {machine['environment']['threads']} torch threads"
    load = "" if cores["load"] is None else f", load {cores['load']:.1f}"
    if machine["ready"]:
        here = machine["environment"]
        yield "laptime", f"{here['laptime']}, Python {here['python']}, torch {here['torch']}"
    yield "packages", _versions(machine["packages"])
    for extra, versions in machine["extras"].items():
        missing = any(version is None for version in versions.values())
        yield "extra", _versions(versions) + (f": pip install 'laptime[{extra}]'" if missing else "")
    yield "cores", f"{cores['usable']} usable of {cores['all']}{threads}{load}"
    if machine["ready"]:
        yield from _devices(machine)


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())


def _devices(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    here = machine["environment"]
    yield "system", here["platform"]
    for device, facts in machine["devices"].items():
        more = f"{here['cpu_capability']}, {_gibibytes(here['memory_bytes'])}"
        if device != "cpu":
            more = (
                f"{_gibibytes(facts['memory_bytes'])}, CUDA {facts['cuda']}, capability {facts['capability']}"
            )
        yield device, f"{facts['name']}, {more}"
    variables = [f"{name}={value}" for name, value in here["variables"].items()]
    yield "variables", ", ".join(variables) or "none that matter are set"
    for clock in machine["clocks"]:
        resolution, mark = clock["resolution_s"] * 1e9, clock["mark_s"] * 1e6
        yield (
            "clock",
            f"{clock['device']}: a mark costs {mark:.2f} µs, the host's clock ticks in {resolution:.0f} ns",
        )
    steady = machine["steadiness"]
    half = f"half of {steady['count']} equal pieces of work within ±{steady['spread'] / 2:.1%}"
    yield "steadiness", f"{steady['noise']}: {half}"


def _gibibytes(size: int | None) -> str:
    return "memory unknown" if size is None else f"{size / 2**30:.1f} GiB"
