"""`laptime run`: someone's training script, recorded without an edit."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from laptime.cli.options import Layers, Out, granularity, step_numbers
from laptime.cli.outcome import Outcome, laptime_command, quiet_torch, say, verb
from laptime.errors import NotJoined, RunExists

_ARGUMENTS_HELP = "Everything after the script is the script's own."
_BUDGET_HELP = "The share of step time that layer times may cost."
_KERNELS_HELP = "Steps to trace kernel by kernel: 40,41 or 40-42."


@verb
def run(
    script: Annotated[str, Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[list[str] | None, Argument(metavar="[ARGS]...", help=_ARGUMENTS_HELP)] = None,
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False,
    out: Out = None,
    every_step: Annotated[bool, Option("--every-step", help="Layer times on every step.")] = False,
    budget: Annotated[float, Option(min=0.0001, max=1.0, help=_BUDGET_HELP)] = 0.02,
    layers: Layers = "layer",
    kernels: Annotated[str, Option(metavar="STEPS", help=_KERNELS_HELP)] = "",
    as_json: bool = False,
) -> Outcome:
    """Record a training script: networks, optimizers and loaders are found as they are used.

    Options of laptime come before SCRIPT. The exit status is the script's.
    """
    division, traced = granularity(layers), step_numbers(kernels)
    from laptime.bridges.ranks import launched
    from laptime.bridges.scripts.run import run_script, run_unrecorded
    from laptime.runs.directory import default_out

    name = script.rpartition(".")[2] if module else Path(script).stem
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name) or "run"
    here = launched()
    try:
        place = here.place(out, name) if here is not None else out or default_out(name)
    except NotJoined as reason:
        say(f"laptime: {reason}")
        raise typer.Exit(run_unrecorded(Path(script), arguments or [], module=module)) from None
    leads = here is None or here.rank == 0  # one rank tells about the run of all
    if leads and (place / "run.json").exists():  # before the script starts, not after hours of training
        raise RunExists(f"{place} already holds a run; give another directory with --out")
    quiet_torch(traces_only=True)
    absolute = place.absolute()  # a script may change its working directory
    process = os.getpid()
    with _stdout_to_stderr() if as_json else nullcontext():
        status = run_script(
            Path(script),
            arguments or [],
            out=absolute,
            every_step=every_step,
            budget=budget,
            layers=division,
            kernels=traced,
            module=module,
        )
    if not leads or os.getpid() != process:  # a fork of the script has ended: its parent tells of the run
        raise typer.Exit(status)
    return _outcome(place, absolute, status)


def _outcome(place: Path, absolute: Path, status: int) -> Outcome:
    """What was recorded, in short: the terminal is the script's. Nothing where the script ended before."""
    if not (absolute / "run.json").exists():
        nothing = {"run": None, "exit_status": status}
        return Outcome(document=lambda: nothing, lines=lambda _: (), status=status)
    from laptime.render.terminal.run_text import brief
    from laptime.runs import load
    from laptime.views.run_document import document
    from laptime.views.run_view import run_view

    view = run_view(load(absolute))

    def lines(_: Any) -> Iterator[str]:
        say()
        say(f"laptime: the run is in {place}")
        for line in brief(view):
            say(f"  {line}")
        say(f"  {laptime_command()} show {shlex.quote(str(place))} shows all of it")
        yield from ()

    return Outcome(document=lambda: document(view) | {"exit_status": status}, lines=lines, status=status)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Keep standard output for the JSON document, also from what the script's children and C code print."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
