"""A known delay planted in one place of a training loop: the test that tiling cannot fool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import laptime
from tests.recorder.cases import Case

Delay = Callable[[], None]


class SlowBackward(torch.autograd.Function):
    """The identity, with a delay in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, delay: Delay) -> torch.Tensor:
        ctx.delay = delay
        return x.clone()  # a view could not be modified in place by the activation that follows

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.delay()
        return gradient, None


class Batches(Dataset[Any]):
    def __init__(self, batch: Any, count: int, delay: Delay | None) -> None:
        self.batch, self.count, self.delay = batch, count, delay

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self.delay:
            self.delay()
        return self.batch


class Loss(nn.CrossEntropyLoss):
    delay: Delay | None = None

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.delay:
            self.delay()
        return super().forward(output, target)


def slow_forward(module: nn.Module, delay: Delay) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        delay()
        return original(*args, **kwargs)

    module.forward = forward


def slow_backward(module: nn.Module, delay: Delay) -> None:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if isinstance(output, tuple):
            return (SlowBackward.apply(output[0], delay), *output[1:])
        return SlowBackward.apply(output, delay)

    module.forward = forward


def train(
    case: Case,
    out: Path,
    *,
    site: str = "nowhere",
    layer: str = "",
    delay: Delay = lambda: None,
    steps: int = 3,
    **options: Any,
) -> laptime.Run:
    """Record a few steps of a case with a delay at one site; the site is an account, a layer, or a gap."""
    torch.manual_seed(0)
    network = case.build().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    criterion = Loss()
    batch = case.batch()
    module = dict(network.named_modules())[layer] if layer else None
    if site == "forward":
        slow_forward(module, delay)
    elif site == "backward":
        slow_backward(module, delay)
    elif site == "loss":
        criterion.delay = delay
    elif site == "update":
        optimizer.register_step_pre_hook(lambda *_: delay())
    loader = DataLoader(Batches(batch, steps, delay if site == "data_wait" else None), batch_size=None)
    gap = {
        name: (delay if site == name else (lambda: None))
        for name in ("before", "after_forward", "after_loss", "after_backward", "after_update")
    }
    with laptime.record(network, optimizer, out=out, every_step=True, **options) as recording:
        for data in recording.steps(loader):
            gap["before"]()
            data = data.to("cpu")
            output = case.call(network, data)
            gap["after_forward"]()
            loss = criterion(output, case.targets(output))
            gap["after_loss"]()
            loss.backward()
            gap["after_backward"]()
            optimizer.step()
            gap["after_update"]()
            optimizer.zero_grad()
            recording.log(loss=loss)
    return recording.run


def charged(run: laptime.Run, step: int) -> dict[str, float]:
    """Seconds by account and by layer and phase of one step."""
    found: dict[str, float] = defaultdict(float)
    for name, value in run.steps[step].accounts().items():
        found[str(name)] += value or 0.0
    for row in run.layer_table.to_pylist():
        if row["step"] == step:
            found[f"{row['layer']}/{row['phase']}"] += row["seconds"]
    return dict(found)
