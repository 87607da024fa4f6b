"""`laptime demo`: the Zener network, trained and recorded on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laptime.cli.options import Json, Out
from laptime.cli.outcome import answer, print_out, say
from laptime.cli.progress import progress, waiting
from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from laptime.recorder.recorder import Recorder
    from laptime.runs import Run

CARDS, UNSEEN_CARDS = 4000, 500
BATCH = 32
TRACED = 3


def demo(
    out: Out = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often to go through the cards.")] = 4,
    as_json: Json = False,
) -> None:
    """Train a small network on this machine's CPU and show where its time went. Takes seconds."""
    quiet_torch()
    with waiting("drawing Zener cards"):
        from laptime.api import default_out
        from laptime.training.data import zener

        place = out or default_out("demo")
        loaders = _loader(zener.dataset(CARDS, seed=1)), _loader(zener.dataset(UNSEEN_CARDS, seed=2))
    try:
        run = train(place, *loaders, epochs)
    except KeyboardInterrupt:
        say(f"the run so far is in {place}")
        raise
    from laptime.views.run_view import content

    found = content(run)
    accuracy = found["validation"]["results"]["top1"]
    page = _page(run)
    if as_json:
        answer(found | {"accuracy": accuracy, "report": page and str(page)})
    else:
        _print(found, accuracy, place, page)


def _page(run: Run) -> Path | None:
    """The report's file; None where what draws it is not installed, which is said."""
    from laptime.errors import MissingExtra

    try:
        with waiting("drawing"):
            return run.report()
    except MissingExtra as error:
        say(f"no report was drawn: {error}")
        return None


def _loader(cards: Any) -> DataLoader[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(cards, batch_size=BATCH, shuffle=True)


def train(out: Path, cards: DataLoader[Any], unseen: DataLoader[Any], epochs: int) -> Run:
    """Train the four-layer Zener network, layers on every step and kernels on a few of the last epoch."""
    import torch

    from laptime.api import record

    torch.manual_seed(0)
    torch.set_num_threads(1)  # more gain little in a step of 7 ms, and on a busy machine wait for one another
    training = Training.start(epochs * len(cards))
    an_epoch = len(cards) + len(unseen)
    middle = (epochs - 1) * an_epoch + len(cards) // 2
    recording = record(
        training.network,
        training.optimizer,
        out=out,
        every_step=True,
        kernels=range(middle, middle + TRACED),
        config={"command": "demo", "network": "zener4", "epochs": epochs, "batch": BATCH, "cards": CARDS},
    )
    with progress("training", epochs * an_epoch) as tell, recording:
        for epoch in range(epochs):
            words = f"epoch {epoch + 1}/{epochs}"
            for _ in training.train(recording, cards):
                tell(words)
            for _ in training.validate(recording, unseen):
                tell(words)
    return recording.run


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A loop as anyone would write it; `recording.steps` and `recording.log` are all that laptime needs."""

    network: Any
    optimizer: Any
    schedule: Any

    @classmethod
    def start(cls, steps: int) -> Training:
        """A fresh network, and a learning rate that falls to nearly nothing over `steps`."""
        from torch.optim import SGD
        from torch.optim.lr_scheduler import LinearLR

        from laptime.training.networks import build

        network = build("zener4")
        optimizer = SGD(network.parameters(), lr=0.05, momentum=0.9)
        return cls(
            network=network, optimizer=optimizer, schedule=LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
        )

    def train(self, recording: Recorder, cards: DataLoader[Any]) -> Iterator[None]:
        """One epoch; yields after each step."""
        from torch.nn import functional as F

        self.network.train()
        for images, labels in recording.steps(cards):
            scores = self.network(images)
            loss = F.cross_entropy(scores, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            recording.log(loss=loss, top1=_share_right(scores, labels))
            yield

    def validate(self, recording: Recorder, unseen: DataLoader[Any]) -> Iterator[None]:
        """One pass over cards that were never trained on; yields after each step."""
        import torch
        from torch.nn import functional as F

        self.network.eval()
        for images, labels in recording.steps(unseen, stage="validation"):
            with torch.no_grad():
                scores = self.network(images)
                recording.log(loss=F.cross_entropy(scores, labels), top1=_share_right(scores, labels))
            yield


def _share_right(scores: Any, labels: Any) -> Any:
    return (scores.argmax(dim=1) == labels).float().mean()


def _print(found: dict[str, Any], accuracy: float, out: Path, page: Path | None) -> None:
    from laptime.render.terminal import run_text

    run_text.show(found, run_text.console())
    where = shlex.quote(str(out))
    drawn = f", every figure of it in {page}" if page else ""
    print_out(f"""
The network tells {accuracy * 100:.1f} % of {UNSEEN_CARDS} unseen cards apart (guessing: 20 %).
The run is in {out}{drawn}

Next
  laptime show {where}
      these tables again; --json for programs
  laptime serve {shlex.quote(str(out.parent))}
      all runs of the folder in a browser, also while they train
  laptime export {where} --perfetto
      a trace for https://ui.perfetto.dev
  laptime run your_script.py
      record your own training script, unedited

Or two lines in your own loop
  with laptime.record(model, optimizer, out="runs/mine") as recording:
      for images, labels in recording.steps(loader):""")
