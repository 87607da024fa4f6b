"""The networks of the measured steps, built without memory. timm and torchvision must be on the path."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.data_sheet.rows import Asked

# Sizes: the papers' tables of BERT, GPT-2, GPT-3 and OPT. GPT-3's XL has 24 heads of 128 in a width of 2048,
# which GPT-2's code cannot have; 24 x 128 = 3072 is the width that it can, and that the times speak for.
GPT: dict[str, dict[str, int]] = {
    "gpt2_large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt3_xl": {"n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048},
    "gpt3_27": {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048},
}
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
OPT_13 = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32}


def built(asked: Asked) -> tuple[nn.Module, Any]:
    """A network and a batch for it."""
    library, _, name = asked.network.partition(":")
    images = torch.empty(asked.batch, 3, asked.size, asked.size, device="meta")
    if library == "timm":
        import_module("timm.layers").set_fused_attn(asked.fused_attention)
        network = _timm(name, asked.size, asked.fused_attention)
        if asked.channels_last:
            images = images.to(memory_format=torch.channels_last)
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network, (images,)
    if library == "torch7":
        return _torch7(name), (images,)
    ids = torch.zeros(asked.batch, asked.size, dtype=torch.long, device="meta")
    if library == "nvidia":
        return _nvidia(), (ids,)
    example = {"input_ids": ids} if asked.mode == "inference" else {"input_ids": ids, "labels": ids}
    return _neusight(name), example


def _timm(name: str, size: int, fused: bool) -> nn.Module:
    """On the meta device where its initialisers allow that; at another size than its own where it must."""
    make: Any = import_module("timm").create_model
    for options in ({}, {"img_size": size}):
        for device in ("meta", "cpu"):
            try:
                with torch.device(device):
                    network: nn.Module = make(name, **options)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                continue
            own = getattr(getattr(network, "patch_embed", None), "img_size", None)
            if not options and own is not None and tuple(own) != (size, size):
                break  # a transformer made for another size
            return network
    raise RuntimeError(f"timm cannot build {name} for {size} pixels")


@cache
def _neusight(name: str) -> nn.Module:
    """NeuSight's transformers: attention operation by operation."""
    transformers: Any = import_module("transformers")
    eager = {"attn_implementation": "eager"}
    with torch.device("meta"):
        if name in GPT:
            made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT[name], **eager))
        elif name == "bert_large":
            config = transformers.BertConfig(**BERT_LARGE, intermediate_size=4096, **eager)
            made = transformers.BertForMaskedLM(config)
        else:
            config = transformers.OPTConfig(**OPT_13, ffn_dim=8192, word_embed_proj_dim=2048, **eager)
            made = transformers.OPTForCausalLM(config)
    network: nn.Module = made
    return network


class _Answering(nn.Module):
    """BERT that scores every token as the beginning and the end of an answer."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert
        self.ends = nn.Linear(1024, 2)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.ends(self.bert(ids)[0])
        return scores


@cache
def _nvidia() -> nn.Module:
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(**BERT_LARGE, intermediate_size=4096, attn_implementation="eager")
    with torch.device("meta"):
        return _Answering(transformers.BertModel(config, add_pooling_layer=False))


def _caffe_alexnet() -> nn.Module:
    """Caffe's: convolutions in two groups, local response normalisation after pooling."""

    def block(c: int, o: int, k: int, **more: Any) -> list[nn.Module]:
        return [nn.Conv2d(c, o, k, **more), nn.ReLU(inplace=True)]

    def pooled() -> list[nn.Module]:
        return [nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5)]

    return nn.Sequential(
        *block(3, 96, 11, stride=4, padding=2),
        *pooled(),
        *block(96, 256, 5, padding=2, groups=2),
        *pooled(),
        *block(256, 384, 3, padding=1),
        *block(384, 384, 3, padding=1, groups=2),
        *block(384, 256, 3, padding=1, groups=2),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(9216, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )


class _Inception(nn.Module):
    """Four branches side by side: 1x1, 3x3, 5x5 and pooling, the last three with a 1x1 of their own."""

    def __init__(self, c: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:
        super().__init__()

        def conv(c: int, o: int, k: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(c, o, k, padding=k // 2), nn.ReLU(inplace=True))

        self.branches = nn.ModuleList(
            [
                conv(c, one, 1),
                nn.Sequential(conv(c, three[0], 1), conv(three[0], three[1], 3)),
                nn.Sequential(conv(c, five[0], 1), conv(five[0], five[1], 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv(c, pool, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _inception_v1() -> nn.Module:
    """GoogLeNet as in the paper, without batch norm and without the two side heads."""

    def shrink() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.ReLU(inplace=True),
        shrink(),
        nn.LocalResponseNorm(5),
        nn.Conv2d(64, 64, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 192, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5),
        shrink(),
        _Inception(192, 64, (96, 128), (16, 32), 32),
        _Inception(256, 128, (128, 192), (32, 96), 64),
        shrink(),
        _Inception(480, 192, (96, 208), (16, 48), 64),
        _Inception(512, 160, (112, 224), (24, 64), 64),
        _Inception(512, 128, (128, 256), (24, 64), 64),
        _Inception(512, 112, (144, 288), (32, 64), 64),
        _Inception(528, 256, (160, 320), (32, 128), 128),
        shrink(),
        _Inception(832, 256, (160, 320), (32, 128), 128),
        _Inception(832, 384, (192, 384), (48, 128), 128),
        nn.AvgPool2d(7),
        nn.Flatten(),
        nn.Linear(1024, 1000),
    )


@cache
def _torch7(name: str) -> nn.Module:
    """Caffe's AlexNet and VGG, GoogLeNet, and fb.resnet.torch's ResNets (200 layers: pre-activation)."""
    make: Any = import_module("timm").create_model
    own: dict[str, Callable[[], nn.Module]] = {"AlexNet": _caffe_alexnet, "Inception-V1": _inception_v1}
    with torch.device("meta"):
        if name in own:
            return own[name]()
        if name == "ResNet-200":
            layers = import_module("timm.models.resnetv2")
            made: nn.Module = layers.ResNetV2(
                (3, 24, 36, 3), stem_type="", norm_layer=import_module("timm.layers").BatchNormAct2d
            )
            return made
        if name.startswith("VGG"):  # timm's has convolutions where Caffe's has fully connected layers
            make = getattr(import_module("torchvision.models"), name.lower().replace("-", ""))
            network: nn.Module = make()
        else:
            network = make(name.lower().replace("-", ""))
        return network
