"""`laptime profile`: a network by itself, on made-up data."""

from __future__ import annotations

from itertools import repeat
from typing import Annotated

from typer import Argument, Option

from laptime.cli import options
from laptime.cli.outcome import Outcome, progress, quiet_torch, say, verb, waiting
from laptime.training import target

TRACED = 2
_INPUT_HELP = (
    "One sample's shape: 3x224x224, int64:128 for token ids, int64:128@5000 for ids below 5000. Repeatable."
)


@verb
def profile(
    name: Annotated[str, Argument(metavar="TARGET", help="A network of the zoo, or module:callable.")],
    inputs: Annotated[list[str] | None, Option("--input", metavar="SAMPLE", help=_INPUT_HELP)] = None,
    batch: Annotated[int, Option(min=1, help="Samples in a step.")] = 16,
    device: options.Device = None,
    steps: Annotated[int, Option(min=1, help="Steps to record, after the warm-up.")] = 20,
    inference: options.Inference = False,
    layers: options.Layers = "layer",
    out: options.Out = None,
    every_layer: options.EveryLayer = False,
) -> Outcome:
    """Train a network for a few steps and show where the time goes.

    A network of the zoo is trained for what it is meant for, on a batch of its own data. Any other, or one
    with --input, gets made-up data and a cross-entropy on its first output. The optimizer is SGD with
    momentum.
    """
    samples, division = options.samples(inputs), options.granularity(layers)
    if not samples and ":" in name:
        target.attribute(name)  # a name that leads nowhere is the first thing to mend
        needed = f"{name} does not say what it takes; give the shape of one sample, such as 3x224x224"
        options.wrong("--input", needed)
    quiet_torch()
    with waiting("building the network"):
        from laptime.api import record
        from laptime.runs.directory import default_out
        from laptime.training.device_setup import choose_device
        from laptime.training.profiled_network import warmed_up
        from laptime.views.run_view import run_view

        place, why = choose_device(device)
        subject = warmed_up(name, target.network(name).to(place), samples, batch, place, inference)
    say(f"{name}: input {subject.shapes}, batch {batch}, device {place} ({why})")
    recording = record(
        subject.network,
        list(subject.optimizers.values()),
        out=out or default_out("profile"),
        every_step=True,
        layers=division,
        kernels=traced_steps(steps),
        config={"command": "profile", "target": name, "input": subject.shapes, "batch": batch},
    )
    stage = "train" if subject.optimizers else "validation"
    with progress(name, steps) as tell, recording:
        for _ in recording.steps(repeat(subject.batch, steps), stage=stage):
            loss = subject.step()
            if loss is not None:
                recording.log(loss=loss)
            tell("")
    return Outcome.of_run(run_view(recording.run), every_layer=every_layer)


def traced_steps(steps: int) -> list[int]:
    """Two steps late in the run, with enough after them to see whether the tracer left something behind."""
    first = max(1, steps - TRACED - 6)
    return [*range(first, first + TRACED)] if steps >= TRACED + 2 else []
