"""Builds what the training loop needs from a configuration: network, objective, data, optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from laptime.errors import ConfigError, LaptimeError
from laptime.files.text import first_line
from laptime.training import target
from laptime.training.config import Config
from laptime.training.data import Data, NetworkInput, open_data
from laptime.training.device_setup import DeviceSetup
from laptime.training.loader import Batches, Order
from laptime.training.losses import criterion
from laptime.training.networks.registry import ZooEntry, classification, entry
from laptime.training.objectives import Objective
from laptime.training.optimizers import optimizer
from laptime.training.ranks import Ranks
from laptime.training.schedules import schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Everything that the training loop needs."""

    setup: DeviceSetup
    network: nn.Module
    objective: Objective
    data: Data
    batches: Batches
    validation: Batches | None
    groups: dict[str, list[nn.Parameter]]
    optimizers: dict[str, Optimizer]
    schedules: dict[str, LambdaLR]

    @property
    def samples(self) -> int:
        """Samples to train on."""
        return len(self.data.train)  # type: ignore[arg-type]


def ready(config: Config, setup: DeviceSetup, data: Data | None = None) -> Ready:
    """Build everything. `data` replaces the configured data, for a fold of it."""
    torch.manual_seed(config.train.seed)
    known = None if ":" in config.network.name else entry(config.network.name)
    data = data or open_data(config.data, wanted(config, known))
    network = build_network(config, known, data).to(setup.device)
    if config.train.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = goal(config, known)
    groups = {name: list(parameters) for name, parameters in objective.groups(network).items()}
    if not groups or not all(groups.values()):
        raise ConfigError(f"network {config.network.name} has no parameter to train; choose another")
    batches = _batches(config, data.train, setup)
    made = {
        name: optimizer(config.optimizer, parameters, share=objective.rate(name))
        for name, parameters in groups.items()
    }
    per_epoch = -(-batches.order.batches // config.train.accumulate)
    updates = min(config.train.epochs * per_epoch, config.train.steps or config.train.epochs * per_epoch)
    return Ready(
        setup=setup,
        network=network,
        objective=objective,
        data=data,
        batches=batches,
        validation=_validation(config, data, setup),
        groups=groups,
        optimizers=made,
        schedules={
            name: schedule(config.schedule, built, updates=updates, updates_per_epoch=per_epoch)
            for name, built in made.items()
        },
    )


def wanted(config: Config, known: ZooEntry | None) -> NetworkInput:
    """What the network takes, as far as that is known before it is built."""
    classes = config.network.options.get("num_classes", known.classes if known else 0)
    return NetworkInput(
        input=known.input if known else None,
        classes=int(classes or 0),
        ids=known.ids if known else 0,
        seed=config.train.seed,
    )


def build_network(config: Config, known: ZooEntry | None, data: Data) -> nn.Module:
    """The network, with as many classes as the data has unless its options say otherwise."""
    options: dict[str, Any] = dict(config.network.options)
    if known is not None and known.classes and data.classes:
        options.setdefault("num_classes", len(data.classes))
    try:
        network = target.network(config.network.name, **options)
    except LaptimeError:
        raise
    except Exception as error:  # torch refuses a size, or the network checks its options
        given = ", ".join(f"network.options.{name}" for name in config.network.options) or "network.options"
        raise ConfigError(
            f"{config.network.name} cannot be built with these options ({first_line(error)}); change {given}"
        ) from error
    if config.network.dropout is not None:
        for module in network.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = config.network.dropout
    return network


def goal(config: Config, known: ZooEntry | None) -> Objective:
    """What the network is trained for, with the loss that the configuration names."""
    named = criterion(config.loss.name) if config.loss.name is not None else None
    return (known.goal if known is not None else classification)(named)


def _batches(config: Config, dataset: Dataset[Any], setup: DeviceSetup) -> Batches:
    train, loader, ranks = config.train, config.loader, setup.ranks
    samples = len(dataset)  # type: ignore[arg-type]
    order = _order(
        samples,
        config,
        ranks,
        seed=train.seed,
        shuffle=loader.shuffle,
        drop_last=loader.drop_last,
        epochs=train.epochs,
    )
    if not order.batches:
        each = f" on each of {ranks.ranks} ranks" if ranks.several else ""
        raise ConfigError(
            f"{samples} samples do not fill one batch of {train.batch}{each}; lower train.batch, or set "
            "loader.drop_last = false"
        )
    return Batches(dataset, order, loader, setup.device)


def _validation(config: Config, data: Data, setup: DeviceSetup) -> Batches | None:
    """All held-out data, in its own order. Every rank takes its share."""
    if data.validation is None or not len(data.validation):  # type: ignore[arg-type]
        return None
    samples = len(data.validation)  # type: ignore[arg-type]
    order = _order(samples, config, setup.ranks, seed=0, shuffle=False, drop_last=False)
    return Batches(data.validation, order, config.loader, setup.device)


def _order(samples: int, config: Config, ranks: Ranks, **options: Any) -> Order:
    return Order(samples, config.train.batch, rank=ranks.rank, ranks=ranks.ranks, **options)
