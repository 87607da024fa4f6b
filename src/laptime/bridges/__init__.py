"""Recording inside of what others wrote: Lightning, transformers, unedited scripts, launched ranks.

Trainers that have a callback of ours have one entry each here; importing this imports none of them. A bridge
is a module with a callback class, which records every training of its trainer and gives its `run`, and a
function `follow(trainer, recorder, network, drive)`, by which `laptime run` lets a trainer that runs cut the
steps of a recording.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerBridge:
    """A trainer and the module of ours that records it."""

    callback: str  # the name of the callback, in `bridge` and in `laptime`
    bridge: str
    homes: tuple[str, ...]  # modules that define its class `Trainer`, under every name it is installed by


TRAINERS = (
    TrainerBridge(
        callback="LightningCallback",
        bridge="laptime.bridges.lightning",
        homes=("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    ),
    TrainerBridge(
        callback="TrainerCallback",
        bridge="laptime.bridges.transformers",
        homes=("transformers.trainer",),
    ),
)
