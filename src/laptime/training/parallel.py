"""The `[parallel]` section: how the ranks of a training share its work. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from laptime.training.config_section import ConfigSection, Count, OneOf, Share
from laptime.training.strategies import STRATEGIES


class ParallelConfig(ConfigSection):
    """How several ranks share the work of a training; `--workers` says how many there are."""

    strategy: Annotated[str, OneOf(STRATEGIES)] = "data"
    """What is shared: samples, parameters, layers or features; and who waits for whom."""
    groups: PositiveInt | None = None
    """Groups of ranks that `mixed` and `local` train by themselves; by default each rank is a group."""
    stages: PositiveInt | None = None
    """Stages that `model` and `hybrid` cut a network into; by default one for each rank."""
    micro_batches: PositiveInt = 4
    """Parts of a batch that follow each other through the stages."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of a stage's passes: one forward, one backward; or all forward, then all backward."""
    outer: Literal["model", "data"] = "model"
    """`model`: `hybrid` has its stages across hosts, replicas within one; `data`: the other way round."""
    average_every: PositiveInt = 8
    """Steps that a group of `local` takes by itself before parameters are averaged."""
    average: Literal["mean", "diloco"] = "mean"
    """`mean` takes the average; `diloco` moves towards it by an outer optimizer with Nesterov momentum."""
    outer_lr: Annotated[float, Field(gt=0)] = 0.7
    """Learning rate of DiLoCo's outer optimizer."""
    outer_momentum: Share = 0.9
    """Momentum of DiLoCo's outer optimizer."""
    servers: PositiveInt = 1
    """Parameter servers of `asynchronous` and `mixed`, each with a share of the parameters."""
    staleness: Count | None = None
    """Updates that a worker may be ahead of the slowest; 0: all wait for each other; by default no bound."""
    timeout: Annotated[float, Field(ge=1)] = 300.0
    """Seconds to wait for a rank that does not answer, before ranks start again or the training ends."""
    restarts: Count = 3
    """How often ranks that were lost start again, from the checkpoint; 0 ends the training at the first."""
