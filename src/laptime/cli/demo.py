"""`laptime demo`: the Zener network, trained and recorded on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from laptime.cli.options import Out
from laptime.cli.outcome import Outcome, laptime_command, progress, quiet_torch, say, verb, waiting
from laptime.errors import MissingExtra

if TYPE_CHECKING:
    from laptime.training.config import Config

CARDS, UNSEEN_CARDS = 4000, 500
BATCH = 32
TRACED = 3


@verb
def demo(
    out: Out = None,
    epochs: Annotated[int, Option(min=1, help="How often to go through the cards.")] = 4,
) -> Outcome:
    """Train a small network on this machine's CPU and show where its time went. Takes seconds."""
    quiet_torch()
    with waiting("drawing Zener cards"):
        from laptime.runs.directory import default_out
        from laptime.training.session import train
        from laptime.views.run_view import run_view

        place = out or default_out("demo")
    try:
        with progress("training", epochs * (CARDS // BATCH)) as tell:
            run = train(
                configuration(epochs),
                out=place,
                watch=lambda now: tell(f"epoch {now.epoch + 1}/{epochs}"),
            )
    except KeyboardInterrupt:
        say(f"the run so far is in {place}")
        raise
    view = run_view(run)
    results = view.validation and view.validation.results
    accuracy = (results and results.values["top1"]) or 0.0
    try:
        with waiting("drawing"):
            from laptime.render.html.run_page import write_report

            page = write_report(run, None)
    except MissingExtra as error:
        say(f"no report was drawn: {error}")
        page = None
    told = _next_steps(accuracy, place, page)
    return Outcome.of_run(view, below=[told], accuracy=accuracy, report=page and str(page))


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


def _next_steps(accuracy: float, out: Path, page: Path | None) -> str:
    where, laptime = shlex.quote(str(out)), laptime_command()
    drawn = f", every figure of it in {page}" if page else ""
    return f"""
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
      for images, labels in recording.steps(loader):"""
