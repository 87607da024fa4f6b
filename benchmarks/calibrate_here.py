"""Predicted against measured here: `python -m benchmarks.calibrate_here [--device cpu] [--steps 15]`.

Training steps of networks that no calibration has seen, predicted from the single operations of `laptime
calibrate` and then run. Run that first, with the same threads and the same settings of the allocator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laptime.api import workload
from laptime.estimate import device_speed
from laptime.estimate.predict import predict
from laptime.training.networks.registry import entry
from laptime.training.target import network as build

ZOO = (("zener4", 32), ("alexnet", 16), ("resnet18", 8), ("vgg11", 4), ("fcn5", 64))
# Of transformers, at 64 pixels. These were looked at only after everything was settled.
VISION = ("MobileNetV2", "ViT", "ConvNext")
WARM_UP_S = 2.0
TRIES = 4
STEADY = 0.2  # of the median: a wider middle half is another process, not the network

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network and its batch."""

    name: str
    network: nn.Module
    batch: Any
    loss: Loss


def subjects(device: torch.device) -> list[Callable[[], Subject]]:
    """Made one after the other, so that only one takes memory."""
    made: list[Callable[[], Subject]] = [
        lambda name=name, size=size: _of_zoo(name, size, device)  # type: ignore[misc]
        for name, size in ZOO
    ]
    words = [lambda: _bert(device, 0.1), lambda: _bert(device, 0.0), lambda: _gpt2(device)]
    unseen = [lambda name=name: _vision(name, device) for name in VISION]
    return [*made, *words, *unseen]


def _of_zoo(name: str, size: int, device: torch.device) -> Subject:
    known = entry(name)
    goal = known.goal(None)
    batch = torch.randn(size, *known.input, device=device), torch.randint(known.classes, (size,)).to(device)
    return Subject(
        name=f"{name} b{size}",
        network=build(name).to(device),
        batch=batch,
        loss=lambda net, given: goal.judge(net, given).loss,
    )


def _own_loss(network: nn.Module, batch: Any) -> Tensor:
    return network(**batch).loss  # type: ignore[no-any-return]


def _on(device: torch.device, network: nn.Module) -> nn.Module:
    return network.to(device)


def _bert(device: torch.device, dropout: float) -> Subject:
    import transformers

    config = transformers.BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        vocab_size=8000,
        attention_probs_dropout_prob=dropout,
    )
    ids = torch.randint(8000, (8, 128), device=device)
    return Subject(
        name=f"bert 4x256 b8 s128{'' if dropout else ', attention without dropout'}",
        network=_on(device, transformers.BertForMaskedLM(config)),
        batch={"input_ids": ids, "labels": ids},
        loss=_own_loss,
    )


def _gpt2(device: torch.device) -> Subject:
    import transformers

    config = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=8000, attn_pdrop=0.0)
    ids = torch.randint(8000, (4, 256), device=device)
    return Subject(
        name="gpt2 4x256 b4 s256, attention without dropout",
        network=_on(device, transformers.GPT2LMHeadModel(config)),
        batch={"input_ids": ids, "labels": ids},
        loss=_own_loss,
    )


def _vision(name: str, device: torch.device) -> Subject:
    import transformers

    sizes = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
    options: dict[str, dict[str, Any]] = {
        "MobileNetV2": {"image_size": 64},
        "ViT": {"image_size": 64, "patch_size": 8, **sizes},
        "ConvNext": {"image_size": 64, "depths": [2, 2, 4, 2], "hidden_sizes": [48, 96, 192, 384]},
    }
    config = getattr(transformers, f"{name}Config")(**options[name], num_labels=10)
    network = getattr(transformers, f"{name}ForImageClassification")(config)
    return Subject(
        name=f"{name} of transformers, b16, never looked at before",
        network=_on(device, network),
        batch={
            "pixel_values": torch.randn(16, 3, 64, 64, device=device),
            "labels": torch.randint(10, (16,), device=device),
        },
        loss=_own_loss,
    )


def measured(subject: Subject, device: torch.device, steps: int) -> list[float]:
    """Seconds of training steps after a warm-up."""
    optimizer = torch.optim.SGD(subject.network.parameters(), lr=1e-4, momentum=0.9)
    subject.network.train()

    def step() -> float:
        begin = time.perf_counter()
        subject.loss(subject.network, subject.batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    end = time.monotonic() + WARM_UP_S
    step()
    while time.monotonic() < end:
        step()
    return [step() for _ in range(steps)]


def _steady(subject: Subject, device: torch.device, steps: int) -> tuple[list[float], bool]:
    """The steps of the first try that nobody disturbed, or of the last."""
    times: list[float] = []
    for _ in range(TRIES):
        times = measured(subject, device, steps)
        low, high = np.quantile(times, [0.25, 0.75])
        if high - low < STEADY * median(times):
            return times, True
    return times, False


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    place = torch.device(options.device)
    known = device_speed.device(options.device)
    errors = []
    print("| step | predicted ms | measured ms (half within) | error % |")
    print("| --- | ---: | ---: | ---: |")
    for make in subjects(place):
        subject = make()
        asked = workload(subject.network, example=subject.batch, loss=subject.loss, name=subject.name)
        found = predict(asked, known).step_s
        times, steady = _steady(subject, place, options.steps)
        low, high = np.quantile(times, [0.25, 0.75]) * 1e3
        error = found / median(times) - 1
        if steady:
            errors.append(error)
        told = f"{median(times) * 1e3:.2f} ({low:.2f} to {high:.2f})"
        note = "" if steady else ", disturbed: not counted"
        print(f"| {subject.name} | {found * 1e3:.2f} | {told} | {error * 100:+.0f}{note} |", flush=True)
    if not errors:
        print("\nnothing could be measured undisturbed")
        return
    sizes = np.abs(errors) * 100
    mean, most = sizes.mean(), np.quantile(sizes, 0.9)
    print(f"\n{len(sizes)} steps: mean {mean:.1f} %, p90 {most:.1f} % (target: 15, 30)")


if __name__ == "__main__":
    main()
