"""`laptime`: one file per verb. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option
from typer.core import TyperCommand

from laptime import __version__
from laptime.cli.calibrate import calibrate
from laptime.cli.collect import collect
from laptime.cli.compare import CompareCommand, compare
from laptime.cli.data import data
from laptime.cli.demo import demo
from laptime.cli.devices import devices
from laptime.cli.doctor import doctor
from laptime.cli.export import export
from laptime.cli.launch import launch
from laptime.cli.outcome import Commands, forgive_encoding, print_out
from laptime.cli.predict import predict
from laptime.cli.profile import profile
from laptime.cli.query import query
from laptime.cli.report import report
from laptime.cli.run import run
from laptime.cli.serve import serve
from laptime.cli.show import show
from laptime.cli.simulate import simulate
from laptime.cli.train import train

app = typer.Typer(
    name="laptime",
    cls=Commands,
    help="Where every millisecond of a neural-network training step goes.",
    epilog="Start with `laptime demo`. Every verb takes --help and --json.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # help in plain text: `rich` alone would take longer to import than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_VERBS: dict[Callable[..., None], str] = {
    demo: "train a small network here and show where its time goes",
    run: "record a training script, unedited",
    train: "train as a configuration file says, and record it",
    launch: "train on other hosts, a Ray cluster, or machines to rent",
    profile: "time a network on made-up data",
    show: "the tables of recorded runs",
    report: "one HTML file with every figure of a run, or of several side by side",
    compare: "two runs or groups of runs, with intervals and a verdict",
    collect: "a run from saved profiler traces or a training log",
    serve: "a folder of runs in a browser, while they train",
    export: "recorded runs for spreadsheets, Perfetto, TensorBoard or MLflow",
    query: "SQL over many runs",
    predict: "a training step on machines that are not here: time, memory, money",
    simulate: "a training on a cluster that is not here: step, memory, failures, money",
    calibrate: "time single operations on this machine, for predictions to rest on",
    devices: "what is known of machines, and from where",
    doctor: "check this machine and its settings",
}
for _verb, _words in _VERBS.items():
    app.command(
        short_help=_words,
        # Everything after the script belongs to the script, dashes and all.
        context_settings={"allow_interspersed_args": False} if _verb is run else None,
        cls=CompareCommand if _verb is compare else TyperCommand,
    )(_verb)
app.add_typer(data, short_help="bring image folders, or write one of Zener cards")


def _print_version(wanted: bool) -> None:
    if wanted:
        print_out(f"laptime {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `laptime` itself."""


def main() -> None:
    """The entry point."""
    forgive_encoding()
    app()
