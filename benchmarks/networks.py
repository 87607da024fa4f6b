"""The configurations of the table: fp32 with PyTorch's defaults, SGD with momentum, data on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from laptime.training.networks.registry import build, entry

Batch = tuple[torch.Tensor, ...]
Bound = Literal["device", "launch"]

TARGETS: dict[Bound, float] = {"device": 0.01, "launch": 0.05}  # issue 2: slow-down, layers on every step
BUDGET_TARGET = 0.02
GPT2_TOKENS = 50257
# Small, so that a thousand steps on one batch leave the weights, and with them the arithmetic, as they were.
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One row of the table."""

    name: str
    network: str
    label: str
    batch: int
    bound: Bound  # "launch" also stands for a step of a few milliseconds on the CPU
    tokens: int = 0
    weight: float = 1.0  # of the time given to each configuration: longer steps need more of it

    @property
    def target(self) -> float:
        """The most that layer marks on every step may slow a step down."""
        return TARGETS[self.bound]


@dataclass(frozen=True, slots=True)
class Workload:
    """A network, its optimizer, a batch, and the statements of one training step."""

    network: nn.Module
    optimizer: Optimizer
    batch: Batch
    device: torch.device
    step: Callable[[Batch], None]

    def synchronize(self) -> None:
        """Wait for the device; on the CPU nothing is outstanding."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


CPU = (
    Configuration(name="alexnet-b64", network="alexnet", label="AlexNet b64", batch=64, bound="device"),
    Configuration(
        name="vgg11-b12", network="vgg11", label="VGG-11 b12", batch=12, bound="device", weight=2.2
    ),
    Configuration(
        name="resnet50-b16", network="resnet50", label="ResNet-50 b16", batch=16, bound="device", weight=1.7
    ),
    Configuration(
        name="gpt2-b1",
        network="gpt2",
        label="GPT-2 small b1×128",
        batch=1,
        tokens=128,
        bound="device",
        weight=0.7,
    ),
    Configuration(
        name="zener4-b32",
        network="zener4",
        label="Zener four-layer b32",
        batch=32,
        bound="launch",
        weight=0.5,
    ),
)

CUDA = (
    Configuration(name="alexnet-b128", network="alexnet", label="AlexNet b128", batch=128, bound="device"),
    Configuration(name="vgg11-b12", network="vgg11", label="VGG-11 b12", batch=12, bound="device"),
    Configuration(name="vgg11-b64", network="vgg11", label="VGG-11 b64", batch=64, bound="device"),
    Configuration(
        name="resnet50-b128", network="resnet50", label="ResNet-50 b128", batch=128, bound="device"
    ),
    Configuration(
        name="gpt2-b8", network="gpt2", label="GPT-2 small b8×512", batch=8, tokens=512, bound="device"
    ),
    *(  # a host that is shared drifts by a tenth, so these take more rounds
        Configuration(
            name=f"{network}-b{batch}",
            network=network,
            label=f"{label} b{batch}",
            batch=batch,
            bound="launch",
            weight=2.0,
        )
        for network, label, batch in (
            ("alexnet", "AlexNet", 16),
            ("alexnet", "AlexNet", 64),
            ("resnet50", "ResNet-50", 32),
            ("googlenet", "GoogLeNet", 64),
        )
    ),
)


def configurations(device: str) -> tuple[Configuration, ...]:
    """The rows measured on this kind of device."""
    return CUDA if device.startswith("cuda") else CPU


def configuration(name: str, device: str) -> Configuration:
    """The row of this name."""
    known = {one.name: one for one in configurations(device)}
    if name not in known:
        raise SystemExit(f"no configuration is called {name!r} on {device}; one of {', '.join(known)}")
    return known[name]


def workload(one: Configuration, device: str, *, narrow: bool = False) -> Workload:
    """Network, optimizer and batch on the device, with fresh random weights and data.

    `narrow`: as many layers, but hardly any arithmetic in them; for GPT-2 alone.
    """
    torch.manual_seed(0)
    place = torch.device(device)
    if one.network == "gpt2":
        network, batch, loss = _language(one, place, NARROW if narrow else {})
    else:
        network, batch, loss = _images(one, place)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def step(batch: Batch) -> None:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(network, optimizer, batch, place, step)


Loss = Callable[[Batch], torch.Tensor]


def _images(one: Configuration, device: torch.device) -> tuple[nn.Module, Batch, Loss]:
    network = build(one.network).to(device)
    images = torch.randn(one.batch, *entry(one.network).input, device=device)
    labels = torch.randint(entry(one.network).classes, (one.batch,), device=device)

    def loss(batch: Batch) -> torch.Tensor:
        output = network(batch[0])
        if isinstance(output, torch.Tensor):
            return F.cross_entropy(output, batch[1])
        # GoogLeNet's auxiliary heads count 0.3 each (Szegedy et al., "Going deeper with convolutions").
        logits, *auxiliary = (F.cross_entropy(each, batch[1]) for each in output)
        return logits + 0.3 * (auxiliary[0] + auxiliary[1])

    return network, (images, labels), loss


NARROW: dict[str, Any] = {
    "n_embd": 24,
    "vocab_size": 64,
    "n_positions": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _language(
    one: Configuration, device: torch.device, sizes: dict[str, Any]
) -> tuple[nn.Module, Batch, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    network: Any = GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes))
    network.loss_type = "ForCausalLM"  # what it falls back to anyway, with a warning
    network.to(device).train()
    tokens = min(one.tokens, sizes.get("n_positions", one.tokens))
    ids = torch.randint(sizes.get("vocab_size", GPT2_TOKENS), (one.batch, tokens), device=device)

    def loss(batch: Batch) -> torch.Tensor:
        found: torch.Tensor = network(input_ids=batch[0], labels=batch[0]).loss
        return found

    return network, (ids,), loss
