"""The zoo: networks by name. A new network is one file here, which enters itself with `@network(…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "default_input", "names", "num_classes"]

# The register imports torch, so it is asked only when a network is wanted: commands start fast.


def build(name: str, **options: Any) -> nn.Module:
    """The named network with fresh weights, in training mode.

    `options` go to the network's class on top of its entry's own; those that tell classes apart take
    `num_classes`.
    """
    from laptime.training.networks.registry import entry

    known = entry(name)
    classes = {"num_classes": known.classes} if known.classes else {}
    return known.make(**classes | known.options | options)


def names() -> tuple[str, ...]:
    """Every name that `build` knows."""
    from laptime.training.networks.registry import entries

    return tuple(entries())


def default_input(name: str) -> tuple[int, ...]:
    """The shape of one sample, without the batch, that the named network is published for."""
    from laptime.training.networks.registry import entry

    return entry(name).input


def num_classes(name: str) -> int:
    """How many classes the named network tells apart unless `build` is told otherwise."""
    from laptime.training.networks.registry import entry

    return entry(name).classes
