"""`laptime profile`: a network by itself, on made-up data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli import synthetic
from laptime.cli.options import EveryLayer, Granularity, Json, Layers, Out, granularity, wrong
from laptime.cli.outcome import answer, say
from laptime.cli.progress import progress, waiting
from laptime.cli.quiet import quiet_torch
from laptime.errors import BadTarget
from laptime.train import target

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WARM_UP = 3
TRACED = 2
_INPUT_HELP = (
    "One sample's shape: 3x224x224, int64:128 for token ids, int64:128@5000 for ids below 5000. Repeatable."
)


def profile(
    name: Annotated[str, typer.Argument(metavar="TARGET", help="A network of the zoo, or module:callable.")],
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="SAMPLE", help=_INPUT_HELP, show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples in a step.")] = 16,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to record, after the warm-up.")] = 20,
    inference: Annotated[bool, typer.Option("--inference", help="Forward passes only.")] = False,
    layers: Layers = "layer",
    out: Out = None,
    every_layer: EveryLayer = False,
    as_json: Json = False,
) -> None:
    """Train a network for a few steps on made-up data and show where the time goes.

    The loss is cross-entropy on the network's first output, the optimizer SGD with momentum.
    """
    samples, division = _samples(name, inputs), granularity(layers)
    quiet_torch()
    with waiting("building the network"):
        from laptime.train.place import choose_device

        place, why = choose_device(device)
        network = target.network(name).to(place)
        subject = Subject.of(name, network, samples, batch, place, inference)
    say(f"{name}: input {subject.shapes}, batch {batch}, device {place} ({why})")
    found = _recorded(subject, steps, division, out)
    if as_json:
        answer(found)
        return
    from laptime.report import terminal

    terminal.show(found, terminal.console(), every_layer=every_layer)


def _samples(name: str, inputs: Sequence[str] | None) -> list[synthetic.Sample]:
    if inputs:
        try:
            return [synthetic.parse(text) for text in inputs]
        except ValueError as error:
            wrong("--input", str(error))
    if ":" in name:
        wrong(
            "--input", f"{name} does not say what it takes; give the shape of one sample, such as 3x224x224"
        )
    from laptime.train.networks import default_input

    return [synthetic.Sample(shape=default_input(name))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network, what it is fed, and one step of it."""

    name: str
    network: nn.Module
    inputs: tuple[Tensor, ...]
    optimizer: torch.optim.Optimizer | None
    shapes: str

    @classmethod
    def of(
        cls,
        name: str,
        network: nn.Module,
        samples: Sequence[synthetic.Sample],
        size: int,
        device: torch.device,
        inference: bool,
    ) -> Subject:
        """A subject that has taken its warm-up steps: what cannot be run is told here, in one line."""
        import torch

        torch.manual_seed(0)
        shapes = " and ".join(map(str, samples))
        network.train(not inference)
        try:
            inputs = tuple(synthetic.batch(sample, size, network, device) for sample in samples)
            with torch.no_grad():
                network(*inputs)  # gives lazy layers their parameters, before the optimizer asks for them
            trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
            if not inference and not trained:
                raise BadTarget(f"{name} has no parameter to train; --inference times its forward passes")
            optimizer = None if inference else torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
            subject = cls(name=name, network=network, inputs=inputs, optimizer=optimizer, shapes=shapes)
            for _ in range(WARM_UP):
                subject.step()
        except BadTarget:
            raise
        except Exception as error:
            raise BadTarget(_refused(name, shapes, size, error)) from error
        return subject

    def step(self) -> Tensor | None:
        """One training step, or one forward pass where there is no optimizer."""
        import torch

        if self.optimizer is None:
            with torch.no_grad():
                self.network(*self.inputs)
            return None
        loss = synthetic.loss(self.network(*self.inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def _refused(name: str, shapes: str, size: int, error: Exception) -> str:
    said = target.describe(error)
    if "out of memory" in str(error):
        return f"{name} with batch {size} does not fit into the device's memory; give a smaller --batch"
    if isinstance(error, IndexError):
        return f"{name} did not take the ids of {shapes} ({said}); write --input int64:LENGTH@IDS"
    return f"{name} did not take {shapes} in batches of {size} ({said}); give another --input or --batch"


def traced_steps(steps: int) -> list[int]:
    """Two steps late in the run, with enough after them to see whether the tracer left something behind."""
    if steps < TRACED + 2:
        return []
    first = max(1, steps - TRACED - 6)
    return [*range(first, first + TRACED)]


def _recorded(subject: Subject, steps: int, division: Granularity, out: Path | None) -> dict[str, Any]:
    from laptime.api import default_out, record
    from laptime.report import content

    place = out or default_out("profile")
    config = {
        "command": "profile",
        "target": subject.name,
        "input": subject.shapes,
        "batch": len(subject.inputs[0]),
    }
    stage = "validation" if subject.optimizer is None else "train"
    recording = record(
        subject.network,
        subject.optimizer,
        out=place,
        every_step=True,
        layers=division,
        kernels=traced_steps(steps),
        config=config,
    )
    tell: Callable[[str], None]
    with progress(subject.name, steps) as tell, recording:
        for _ in recording.steps(repeat(subject.inputs, steps), stage=stage):
            loss = subject.step()
            if loss is not None:
                recording.log(loss=loss)
            tell("")
    return content(recording.run)
