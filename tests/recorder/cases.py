"""Small instances of the networks that a recording must work on, each with a batch and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Case:
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    call: Callable[[nn.Module, Any], torch.Tensor] = lambda network, batch: network(batch)

    def targets(self, output: torch.Tensor) -> torch.Tensor:
        return torch.zeros(output.shape[0], dtype=torch.long)


def images(size: int, channels: int = 3, count: int = 2) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(count, channels, size, size)


def zoo(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from laptime.training.networks import registry as zoo

        return zoo.build(name, **options)

    return build


def alexnet() -> nn.Module:
    """AlexNet with narrow linear layers: 55 million weights there took more time than all the rest."""
    with torch.device("meta"):
        network = zoo("alexnet", num_classes=5)()
    for index, inputs, outputs in ((1, 256 * 6 * 6, 16), (4, 16, 16), (6, 16, 5)):
        network.classifier[index] = nn.Linear(inputs, outputs)
    for layer in network.features:
        if isinstance(layer, nn.Conv2d):
            layer.to_empty(device="cpu").reset_parameters()
    return network


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.recur = kind(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output, _ = self.recur(self.embed(tokens))
        return self.head(output[:, -1])


class FunctionalAttention(nn.Module):
    """Projections that are never called as modules, and functional operations in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.feed = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + F.gelu(self.feed(self.norm(x)))
        return self.head(x.mean(1))


class Twice(nn.Module):
    """One module used twice, and a weight tied to another layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 16)
        self.shared = nn.Linear(16, 16)
        self.out = nn.Linear(16, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens % 5).mean(1)
        return self.out(torch.relu(self.shared(torch.relu(self.shared(x)))))


def tokens() -> torch.Tensor:
    return torch.randint(0, 20, (2, 7))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
        )
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            vocab_size=50,
            num_labels=5,
        )
    )


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            num_labels=5,
        )
    )


def convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=5, image_size=32)
    )


def logits(network: nn.Module, batch: Any) -> torch.Tensor:
    return network(batch).logits


def language(network: nn.Module, batch: Any) -> torch.Tensor:
    return network(batch).logits[:, -1]


def auxiliary(network: nn.Module, batch: Any) -> torch.Tensor:
    output = network(batch)
    return output if isinstance(output, torch.Tensor) else output.logits + output.aux1 + output.aux2


CASES = [
    Case("zener4", zoo("zener4"), images(32, 1)),
    Case("alexnet", alexnet, images(64)),
    Case("googlenet", zoo("googlenet", num_classes=5), images(32), auxiliary),
    Case("resnet50", zoo("resnet50", num_classes=5), images(32)),
    Case("rnn", lambda: Recurrent(nn.RNN), tokens),
    Case("lstm", lambda: Recurrent(nn.LSTM), tokens),
    Case("attention", FunctionalAttention, tokens),
    Case("twice", Twice, tokens),
    Case("gpt2", gpt2, tokens, language),
    Case("bert", bert, tokens, logits),
    Case("vit", vit, images(32), logits),
    Case("convnext", convnext, images(32), logits),
]
