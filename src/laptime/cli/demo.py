"""`laptime demo`: the Zener network, trained and recorded on this machine."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laptime.cli.options import Out
from laptime.cli.outcome import Outcome, print_out, say, show_run, verb
from laptime.cli.progress import progress, waiting
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.runs import Run
    from laptime.training.config import Config
    from laptime.views.run_view import RunView

CARDS, UNSEEN_CARDS = 4000, 500
BATCH = 32
TRACED = 3


@verb
def demo(
    out: Out = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often to go through the cards.")] = 4,
) -> Outcome:
    """Train a small network on this machine's CPU and show where its time went. Takes seconds."""
    quiet_torch()
    with waiting("drawing Zener cards"):
        from laptime.api import default_out  # which also lets a run draw itself
        from laptime.training.session import train

        place = out or default_out("demo")
    steps = epochs * (CARDS // BATCH)
    try:
        with progress("training", steps) as tell:
            run = train(
                configuration(epochs),
                out=place,
                watch=lambda now: tell(f"epoch {now.epoch + 1}/{epochs}") if now.stage == "train" else None,
            )
    except KeyboardInterrupt:
        say(f"the run so far is in {place}")
        raise
    from laptime.views.run_document import document
    from laptime.views.run_view import run_view

    view = run_view(run)
    results = view.validation and view.validation.results
    accuracy = (results and results.values["top1"]) or 0.0
    page = _page(run)
    return Outcome(
        document=document(view) | {"accuracy": accuracy, "report": page and str(page)},
        show=lambda: _print(view, accuracy, place, page),
    )


def configuration(epochs: int) -> Config:
    """The four-layer Zener network; layers on every step, and kernels on a few of the last epoch."""
    from laptime.training.config import Config

    batches = CARDS // BATCH
    middle = (epochs - 1) * (batches + -(-UNSEEN_CARDS // BATCH)) + batches // 2
    return Config.model_validate(
        {
            "name": "demo",
            "network": {"name": "zener4"},
            "data": {"kind": "zener", "samples": CARDS, "validation_samples": UNSEEN_CARDS},
            # More threads gain little in a step of 7 ms, and on a busy machine wait for one another.
            "train": {"batch": BATCH, "epochs": epochs, "device": "cpu", "threads": 1},
            "optimizer": {"lr": 0.05},
            "schedule": {"name": "linear", "final": 0.02},
            "record": {"kernels": tuple(range(middle, middle + TRACED))},
        }
    )


def _page(run: Run) -> Path | None:
    """The report's file; None where what draws it is not installed, which is said."""
    from laptime.errors import MissingExtra

    try:
        with waiting("drawing"):
            return run.report()
    except MissingExtra as error:
        say(f"no report was drawn: {error}")
        return None


def command() -> str:
    """How this shell calls laptime: by its name, else by the path that it was started with."""
    started = Path(sys.argv[0])
    if started.name != "laptime":
        return f"{shlex.quote(sys.executable)} -m laptime"
    on_path = shutil.which("laptime")
    same = on_path is not None and Path(on_path).resolve() == started.resolve()
    return "laptime" if same else shlex.quote(str(started))


def _print(view: RunView, accuracy: float, out: Path, page: Path | None) -> None:
    show_run(view)
    where, laptime = shlex.quote(str(out)), command()
    drawn = f", every figure of it in {page}" if page else ""
    print_out(f"""
The network tells {accuracy * 100:.1f} % of {UNSEEN_CARDS} unseen cards apart (guessing: 20 %).
The run is in {out}{drawn}

Next
  {laptime} show {where}
      these tables again; --json for programs
  {laptime} serve {shlex.quote(str(out.parent))}
      all runs of the folder in a browser, also while they train
  {laptime} export {where} --perfetto
      a trace for https://ui.perfetto.dev
  {laptime} run your_script.py
      record your own training script, unedited

Or two lines in your own loop
  with laptime.record(model, optimizer, out="runs/mine") as recording:
      for images, labels in recording.steps(loader):""")
