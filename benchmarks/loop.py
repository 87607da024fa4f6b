"""The training loop against others: `python -m benchmarks.loop [--device cuda] [--seconds S]`.

The same network (the very object: another one lies elsewhere in memory, which alone makes 15 % on two cores),
data, order and optimizer in one process, taking turns: a plain hand-written loop, the same with loss, top-1
and top-5 kept each step (as laptime does), laptime's with and without layer times, Lightning's Trainer and
Hugging Face's. Each step is timed from the end of the one before; a turn's figure is its mean step, the first
steps left out, the device waited for before the first and after the last; the result is the median over
rounds of the ratio to the same round's plain loop. Then one long training: the last 20 of 400 epochs against
epochs 5 to 25.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from laptime.model import summarize
from laptime.training.build import Ready, ready
from laptime.training.config import Config
from laptime.training.device_setup import DeviceSetup
from laptime.training.loop import Progress, TrainingLoop
from laptime.training.ranks import Ranks

SKIPPED = 10  # first steps of a turn
AN_EPOCH = 8  # steps: few, so that the data is small enough to stay on a GPU
Case = dict[str, Any]


def _case(network: str, batch: int, steps: int, *, pixels: int | None = None) -> Case:
    size = {"shape": (3, pixels, pixels), "classes": 10} if pixels else {}
    kind = "synthetic" if pixels else "zener"
    return {"network": network, "data": kind, "size": size, "batch": batch, "steps": steps}


CASES: dict[str, dict[str, Case]] = {
    "cpu": {
        "zener4 b32": _case("zener4", 32, 160),
        "resnet18 b16, 64 pixels": _case("resnet18", 16, 40, pixels=64),
    },
    "cuda": {
        "alexnet b128": _case("alexnet", 128, 80, pixels=224),
        "resnet50 b64": _case("resnet50", 64, 40, pixels=224),
        "zener4 b32": _case("zener4", 32, 160),  # bound by the host
    },
}


class Ends(list[float]):
    """When each step ended."""

    def __init__(self, case: Case, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._now = now
        self._waited = SKIPPED, case["steps"] - 1

    def step(self, *_: Any) -> None:
        """Now; at the edges of what is measured, after all that the device was given."""
        if len(self) in self._waited and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.append(self._now())


def configured(case: Case, device: str, *, profile: bool = True, epochs: int | None = None) -> Config:
    """Some epochs without validation or checkpoints."""
    options = {"num_classes": case["size"]["classes"]} if "classes" in case["size"] else {}
    samples = case["batch"] * AN_EPOCH
    return Config.model_validate(
        {
            "network": {"name": case["network"], "options": options},
            "data": {"kind": case["data"], "samples": samples, "validation_samples": 0, **case["size"]},
            "train": {
                "batch": case["batch"],
                "epochs": epochs or case["steps"] // AN_EPOCH,
                "device": device,
            },
            "checkpoint": {"every": 0, "best": False},
            "validation": {"every": 0},
            "record": {"profile": profile},
        }
    )


def batches(case: Case, made: Ready) -> Iterator[Any]:
    """What every loop is given, epoch after epoch."""
    for epoch in range(case["steps"] // AN_EPOCH):
        yield from made.batches.epoch(epoch)


def plain(case: Case, made: Ready, _: Path, *, accuracies: bool = False) -> list[float]:
    """What anyone would write."""
    network, optimizer = made.network, made.optimizers["all"]
    ends = Ends(case)
    kept = []
    for inputs, targets in batches(case, made):
        scores = network(inputs)
        loss = F.cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if accuracies:
            found = scores.detach().topk(5, dim=1).indices == targets[:, None]
            kept.append((loss.detach(), found[:, 0].float().mean(), found.any(dim=1).float().mean()))
        ends.step()
    return ends


def ours(case: Case, made: Ready, out: Path, *, profile: bool) -> list[float]:
    """`laptime train`."""
    config = configured(case, made.setup.device.type, profile=profile)
    ends = Ends(case)
    TrainingLoop(config, made, out=out, watch=ends.step).run()
    return ends


def lightning(case: Case, made: Ready, out: Path) -> list[float]:
    """Lightning's Trainer without logger, bar and checkpoints."""
    import lightning as pl

    found = batches(case, made)
    ends = Ends(case)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = made.network

        def training_step(self, batch: Any, index: int) -> Any:
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return made.optimizers["all"]

        def on_train_batch_end(self, *_: Any) -> None:
            ends.step()

    trainer = pl.Trainer(
        accelerator=made.setup.device.type.replace("cuda", "gpu"),
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
    )
    trainer.fit(Module(), _Epoch(found, case["steps"]))
    return ends


class _Epoch:
    """Batches that are there already, as a loader."""

    def __init__(self, found: Iterator[Any], count: int) -> None:
        self._found, self._count = found, count

    def __iter__(self) -> Iterator[Any]:
        return self._found

    def __len__(self) -> int:
        return self._count


class _Labelled(nn.Module):
    """A network as Hugging Face's Trainer wants it: labels in, loss out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        scores = self.network(inputs)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


def hugging_face(case: Case, made: Ready, out: Path) -> list[float]:
    """Hugging Face's Trainer without logging and saving."""
    import transformers

    found = batches(case, made)
    ends = Ends(case)

    class Steps(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.step()

    class OwnLoader(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return _Epoch(({"inputs": one, "labels": two} for one, two in found), case["steps"])

    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=case["steps"],
        per_device_train_batch_size=case["batch"],
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=made.setup.device.type == "cpu",
        max_grad_norm=0.0,
        dataloader_pin_memory=False,
    )
    optimizer = made.optimizers["all"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = OwnLoader(
        _Labelled(made.network),
        arguments,
        train_dataset=_Epoch(iter(()), 1),
        optimizers=(optimizer, schedule),
        callbacks=[Steps()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return ends


LOOPS: dict[str, Callable[[Case, Ready, Path], list[float]]] = {
    "plain loop": plain,
    "plain loop with accuracies": lambda case, made, out: plain(case, made, out, accuracies=True),
    "laptime train": lambda case, made, out: ours(case, made, out, profile=True),
    "laptime train --no-profile": lambda case, made, out: ours(case, made, out, profile=False),
    "Lightning Trainer": lightning,
    "Hugging Face Trainer": hugging_face,
}


def compare(case: Case, device: str, seconds: float) -> dict[str, list[list[float]]]:
    """Seconds of each step of each loop, round by round."""
    found: dict[str, list[list[float]]] = {name: [] for name in LOOPS}
    made = ready(configured(case, device), DeviceSetup.of(device, Ranks()))
    plain(case, made, Path())  # warm
    until = time.monotonic() + seconds
    rounds = 0
    while rounds < 4 or time.monotonic() < until:
        order = list(LOOPS.items())
        for name, loop in order[:: -1 if rounds % 2 else 1]:
            _home(made)
            with tempfile.TemporaryDirectory() as folder:
                ends = loop(case, made, Path(folder) / "run")
            found[name].append([b - a for a, b in pairwise(ends[SKIPPED:])])
        rounds += 1
    return found


def _home(made: Ready) -> None:
    """Bring network and optimizer back to their device: Lightning leaves them on the CPU."""
    made.network.to(made.setup.device)
    for optimizer in made.optimizers.values():
        for state in optimizer.state.values():
            for key, value in state.items():
                state[key] = value.to(made.setup.device) if isinstance(value, torch.Tensor) else value


def flatness(device: str, epochs: int = 400) -> tuple[float, float]:
    """The last 20 epochs over epochs 5 to 25: by the median step, and by that over a fixed piece of work.

    A shared machine is half as fast again for a minute or two, all accounts alike; the piece of work shows
    that. It runs within the last step of each epoch, which is left out.
    """
    case = CASES[device]["zener4 b32"]
    config = configured(case, device, epochs=epochs)
    matrix, pieces = torch.randn(256, 256), list[float]()

    def piece(now: Progress) -> None:
        if now.step % AN_EPOCH == 0:
            begin = time.perf_counter()
            for _ in range(8):
                matrix @ matrix
            pieces.append(time.perf_counter() - begin)

    with tempfile.TemporaryDirectory() as folder:
        made = ready(config, DeviceSetup.of(device, Ranks()))
        run = TrainingLoop(config, made, out=Path(folder) / "run", watch=piece).run()
        table = run.steps.table
        epoch, wall = table["epoch"].to_numpy(), table["wall_s"].to_numpy()
    kept = np.arange(len(wall)) % AN_EPOCH != AN_EPOCH - 1

    def median(first: int, last: int) -> tuple[float, float]:
        steps = float(np.median(wall[kept & (epoch >= first) & (epoch < last)]))
        return steps, steps / float(np.median(pieces[first:last]))

    early, late = median(5, 25), median(epochs - 20, epochs)
    return late[0] / early[0], late[1] / early[1]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each network")
    parser.add_argument("--device", default="cpu", choices=sorted(CASES))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print("| network | loop | step ms | speed of a plain loop (95 %) | by the lowest tenth of the steps |")
    print("| --- | --- | ---: | ---: | ---: |")
    for label, case in CASES[options.device].items():
        found = compare(case, options.device, options.seconds)
        means = {name: [float(np.mean(one)) for one in rounds] for name, rounds in found.items()}
        # Whatever else runs on a shared machine only ever adds to a step.
        low = {name: np.quantile(np.concatenate(rounds), 0.1) for name, rounds in found.items()}
        for name in LOOPS:
            ratios = summarize([a / b for a, b in zip(means["plain loop"], means[name], strict=True)])
            speed = f"{ratios.median:.3f} ({ratios.low:.3f}–{ratios.high:.3f})"
            cells = [label, name, f"{np.median(means[name]) * 1e3:.2f}", speed]
            print("| " + " | ".join([*cells, f"{low['plain loop'] / low[name]:.3f}"]) + " |", flush=True)
    steps, over_piece = flatness(options.device)
    print(f"\nthe last 20 of 400 epochs against epochs 5 to 25: {steps:.3f} times by the median step,")
    print(f"{over_piece:.3f} times by that over a fixed piece of work on the host")


if __name__ == "__main__":
    main()
