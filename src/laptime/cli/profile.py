"""`laptime profile`: a network by itself, on made-up data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli import synthetic
from laptime.cli.options import Device, EveryLayer, Granularity, Layers, Out, granularity, wrong
from laptime.cli.outcome import Outcome, say, show_run, verb
from laptime.cli.progress import progress, waiting
from laptime.cli.quiet import quiet_torch
from laptime.errors import BadTarget, LaptimeError
from laptime.training import target

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from laptime.training.objectives import Objective
    from laptime.views.run_view import RunView

WARM_UP = 3
TRACED = 2
_INPUT_HELP = (
    "One sample's shape: 3x224x224, int64:128 for token ids, int64:128@5000 for ids below 5000. Repeatable."
)


@verb
def profile(
    name: Annotated[str, typer.Argument(metavar="TARGET", help="A network of the zoo, or module:callable.")],
    inputs: Annotated[list[str] | None, typer.Option("--input", metavar="SAMPLE", help=_INPUT_HELP)] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Samples in a step.")] = 16,
    device: Device = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to record, after the warm-up.")] = 20,
    inference: Annotated[bool, typer.Option("--inference", help="Forward passes only.")] = False,
    layers: Layers = "layer",
    out: Out = None,
    every_layer: EveryLayer = False,
) -> Outcome:
    """Train a network for a few steps and show where the time goes.

    A network of the zoo is trained for what it is meant for, on a batch of its own data. Any other, or one
    with --input, gets made-up data and a cross-entropy on its first output. The optimizer is SGD with
    momentum.
    """
    samples, division = _samples(name, inputs), granularity(layers)
    quiet_torch()
    with waiting("building the network"):
        from laptime.training.device_setup import choose_device

        place, why = choose_device(device)
        subject = ProfiledNetwork.of(name, target.network(name).to(place), samples, batch, place, inference)
    say(f"{name}: input {subject.shapes}, batch {batch}, device {place} ({why})")
    from laptime.views.run_document import document

    view = _recorded(subject, steps, division, out)
    return Outcome(document=document(view), show=lambda: show_run(view, every_layer=every_layer))


def _samples(name: str, inputs: Sequence[str] | None) -> list[synthetic.Sample]:
    """What is fed to the network; nothing if a network of the zoo brings its own."""
    try:
        samples = [synthetic.parse(text) for text in inputs or ()]
    except ValueError as error:
        wrong("--input", str(error))
    if not samples and ":" in name:
        target.attribute(name)  # a name that leads nowhere is the first thing to mend
        wrong(
            "--input", f"{name} does not say what it takes; give the shape of one sample, such as 3x224x224"
        )
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledNetwork:
    """A network, the batch it gets, and one step of it."""

    name: str
    network: nn.Module
    batch: tuple[Any, ...]
    objective: Objective
    optimizers: dict[str, torch.optim.Optimizer]  # none: forward passes only
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
    ) -> ProfiledNetwork:
        """A network after its warm-up steps. One that cannot be run is refused here, in one line."""
        import torch

        torch.manual_seed(0)
        network.train(not inference)
        shapes = " and ".join(map(str, samples)) or "its own data"
        try:
            batch, objective, shapes = _fed(name, network, samples, size, device)
            with torch.no_grad():
                objective.judge(network, batch)  # gives lazy layers their parameters
            groups = {} if inference else objective.groups(network)
            if not inference and not all(groups.values()):
                raise BadTarget(f"{name} has no parameter to train; --inference times its forward passes")
            optimizers: dict[str, torch.optim.Optimizer] = {
                group: torch.optim.SGD(trained, lr=1e-3, momentum=0.9) for group, trained in groups.items()
            }
            subject = cls(
                name=name,
                network=network,
                batch=batch,
                objective=objective,
                optimizers=optimizers,
                shapes=shapes,
            )
            for _ in range(WARM_UP):
                subject.step()
        except LaptimeError:
            raise
        except Exception as error:
            raise BadTarget(_refused(name, shapes, size, error)) from error
        return subject

    def step(self) -> Tensor | None:
        """One training step, or one forward pass where there is no optimizer."""
        import torch

        from laptime.training.objectives import Moment

        if not self.optimizers:
            with torch.no_grad():
                self.objective.judge(self.network, self.batch)
            return None
        loss = None
        for part in self.objective.parts(self.network, self.batch, Moment(epoch=0, epochs=1, step=0)):
            part.loss.backward()  # type: ignore[no-untyped-call]
            self.optimizers[part.group].step()
            self.optimizers[part.group].zero_grad()
            loss = part.loss.detach() if loss is None else loss
        return loss


def _fed(
    name: str, network: nn.Module, samples: Sequence[synthetic.Sample], size: int, device: torch.device
) -> tuple[tuple[Any, ...], Objective, str]:
    """A batch, what the network is to do with it, and words for the batch."""
    if samples:
        made = tuple(synthetic.batch(sample, size, network, device) for sample in samples)
        return made, synthetic.objective(), " and ".join(map(str, samples))
    from pydantic import TypeAdapter

    from laptime.training.data import NetworkInput, open_data
    from laptime.training.data.kinds import DataConfig
    from laptime.training.loader import moved
    from laptime.training.networks.registry import entry

    known = entry(name)
    counted = {"samples": size} if known.data in ("zener", "synthetic", "trees") else {}
    config = TypeAdapter(DataConfig).validate_python({"kind": known.data, **counted})
    data = open_data(config, NetworkInput(input=known.input, classes=known.classes, ids=known.ids))
    batch = moved(data.train.__getitems__(list(range(size))), device)  # type: ignore[attr-defined]
    shape = "x".join(map(str, batch[0].shape[1:]))
    return batch, known.goal(None), f"{shape} ({known.data})"


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


def _recorded(subject: ProfiledNetwork, steps: int, division: Granularity, out: Path | None) -> RunView:
    from laptime.api import default_out, record
    from laptime.views.run_view import run_view

    place = out or default_out("profile")
    config = {
        "command": "profile",
        "target": subject.name,
        "input": subject.shapes,
        "batch": len(subject.batch[0]),
    }
    stage = "train" if subject.optimizers else "validation"
    recording = record(
        subject.network,
        list(subject.optimizers.values()),
        out=place,
        every_step=True,
        layers=division,
        kernels=traced_steps(steps),
        config=config,
    )
    tell: Callable[[str], None]
    with progress(subject.name, steps) as tell, recording:
        for _ in recording.steps(repeat(subject.batch, steps), stage=stage):
            loss = subject.step()
            if loss is not None:
                recording.log(loss=loss)
            tell("")
    return run_view(recording.run)
