"""`laptime run`: someone's training script, recorded without an edit."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laptime.cli.options import Json, Layers, Out, granularity, step_numbers
from laptime.cli.outcome import answer, say
from laptime.cli.quiet import quiet_traces
from laptime.errors import NotJoined, RunExists

if TYPE_CHECKING:
    from laptime.views.run_view import RunView


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m, a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Everything after the script is the script's own."),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False,
    out: Out = None,
    every_step: Annotated[bool, typer.Option("--every-step", help="Layer times on every step.")] = False,
    budget: Annotated[
        float,
        typer.Option(
            "--budget", min=0.0001, max=1.0, help="The share of step time that layer times may cost."
        ),
    ] = 0.02,
    layers: Layers = "layer",
    kernels: Annotated[
        str,
        typer.Option("--kernels", metavar="STEPS", help="Steps to trace kernel by kernel: 40,41 or 40-42."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Record a training script: networks, optimizers and loaders are found as they are used.

    Options of laptime come before SCRIPT. The exit status is the script's.
    """
    division, traced = granularity(layers), step_numbers(kernels)
    from laptime.api import default_out
    from laptime.bridges.launchers import launched
    from laptime.bridges.scripts.run import run_script, run_unrecorded

    here, name = launched(), _name(script, module)
    try:
        place = here.place(out, name) if here is not None else out or default_out(name)
    except NotJoined as reason:
        say(f"laptime: {reason}")
        raise typer.Exit(run_unrecorded(Path(script), arguments or [], module=module)) from None
    leads = here is None or here.rank == 0  # one rank tells about the run of all
    if leads:
        _refuse_taken(place)
    quiet_traces()
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
    view = _recorded(absolute)
    if as_json:
        from laptime.views.run_document import document

        answer((document(view) if view else {"run": None}) | {"exit_status": status})
    elif view:
        _tell(place, view)
    raise typer.Exit(status)


def _refuse_taken(out: Path) -> None:
    """Refuse an output directory that holds a run before the script starts, not after hours of training."""
    if (out / "run.json").exists():
        raise RunExists(f"{out} already holds a run; give another directory with --out")


def _name(script: str, module: bool) -> str:
    """What the run directory is called after."""
    name = script.rpartition(".")[2] if module else Path(script).stem
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name) or "run"


def _recorded(out: Path) -> RunView | None:
    """What was recorded; None where the script ended before there was anything."""
    if not (out / "run.json").exists():
        return None
    from laptime.runs import load
    from laptime.views.run_view import run_view

    return run_view(load(out))


def _tell(out: Path, view: RunView) -> None:
    from laptime.render.terminal.run_text import brief

    say()
    say(f"laptime: the run is in {out}")
    for line in brief(view):
        say(f"  {line}")
    say(f"  laptime show {shlex.quote(str(out))} shows all of it")


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
