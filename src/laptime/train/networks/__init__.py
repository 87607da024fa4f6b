"""The zoo: networks by name. A new network is one file here and one row in `_ZOO`.

Nothing here imports torch until `build` is called, so commands that only list or describe networks start
fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from laptime.errors import UnknownNetwork

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "default_input", "names", "num_classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a network's class lives, and what is known of it without importing torch."""

    module: str
    cls: str
    input: tuple[int, ...]
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)


_IMAGENET = (3, 224, 224)

_ZOO: dict[str, Entry] = {
    "alexnet": Entry(module="alexnet", cls="AlexNet", input=_IMAGENET, classes=1000),
    "vgg11": Entry(module="vgg", cls="VGG", input=_IMAGENET, classes=1000, options={"depth": 11}),
    "googlenet": Entry(module="googlenet", cls="GoogLeNet", input=_IMAGENET, classes=1000),
    "resnet50": Entry(module="resnet", cls="ResNet", input=_IMAGENET, classes=1000, options={"depth": 50}),
    "zener4": Entry(module="zener", cls="ZenerNet", input=(1, 32, 32), classes=5),
}


def build(name: str, **options: Any) -> nn.Module:
    """The named network with fresh weights, in training mode.

    `options` go to the network's class on top of its row's own; every class takes `num_classes`.
    """
    entry = _entry(name)
    cls = getattr(import_module(f"{__name__}.{entry.module}"), entry.cls)
    network: nn.Module = cls(**{"num_classes": entry.classes, **entry.options, **options})
    return network


def names() -> tuple[str, ...]:
    """Every name that `build` knows, in the order of the table."""
    return tuple(_ZOO)


def default_input(name: str) -> tuple[int, ...]:
    """The shape of one sample, without the batch, that the named network is published for."""
    return _entry(name).input


def num_classes(name: str) -> int:
    """How many classes the named network tells apart unless `build` is told otherwise."""
    return _entry(name).classes


def _entry(name: str) -> Entry:
    try:
        return _ZOO[name]
    except KeyError:
        raise UnknownNetwork(name, known=names()) from None
