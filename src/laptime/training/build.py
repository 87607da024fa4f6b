"""Builds what the training loop needs from a configuration: network, objective, data, optimizers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from laptime.errors import ConfigError, LaptimeError
from laptime.files.text import first_line
from laptime.training import target
from laptime.training.config import Config
from laptime.training.data import Data, NetworkInput, open_data
from laptime.training.data.datasets import folds
from laptime.training.device_setup import DeviceSetup
from laptime.training.loader import Batches, Order
from laptime.training.networks.registry import ZooEntry
from laptime.training.objectives import Objective
from laptime.training.optimizers import criterion, optimizer, schedule
from laptime.training.strategies import STRATEGIES
from laptime.training.strategies.contract import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Everything that the training loop needs."""

    setup: DeviceSetup
    network: nn.Module  # this rank's part of it
    strategy: Strategy
    objective: Objective
    data: Data
    batches: Batches
    validation: Batches | None
    optimizers: dict[str, Optimizer]
    schedules: dict[str, LambdaLR]
    updates: int  # of the whole training
    updates_per_epoch: int

    @property
    def samples(self) -> int:
        """Samples to train on."""
        return len(self.data.train)  # type: ignore[arg-type]


def ready(config: Config, setup: DeviceSetup, data: Data | None = None) -> Ready:
    """Build everything. `data` replaces the configured data, for a fold of it."""
    torch.manual_seed(config.train.seed)
    known = target.described(config.network.name)
    data = data or _data(config, known)
    network = build_network(config, known, data).to(setup.device)
    if config.train.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective = goal(config, known)
    strategy = strategy_of(config, setup)
    batches, validation = _batches(config, data, setup, strategy)
    network = strategy.place(network, objective, batches.sample)
    groups = {name: list(parameters) for name, parameters in objective.groups(network).items()}
    if not groups or not all(groups.values()):
        raise ConfigError(f"network {config.network.name} has no parameter to train; choose another")
    optimizers = {
        name: optimizer(config.optimizer, parameters, share=objective.rate(name))
        for name, parameters in groups.items()
    }
    per_epoch = -(-batches.order.batches // config.train.accumulate)
    steps = config.train.epochs * batches.order.batches
    whole, rest = divmod(min(steps, config.train.steps or steps), batches.order.batches)
    updates = whole * per_epoch + -(-rest // config.train.accumulate)
    return Ready(
        setup=setup,
        network=network,
        strategy=strategy,
        objective=objective,
        data=data,
        batches=batches,
        validation=validation,
        optimizers=optimizers,
        schedules={
            name: schedule(config.schedule, each, updates=updates, updates_per_epoch=per_epoch)
            for name, each in optimizers.items()
        },
        updates=updates,
        updates_per_epoch=per_epoch,
    )


def strategy_of(config: Config, setup: DeviceSetup) -> Strategy:
    """How this rank shares the work; a plan that cannot be carried out is refused."""
    made = STRATEGIES[config.parallel.strategy]
    if setup.ranks.all == 1 and not made.served:
        made = STRATEGIES["single"]
    made.check(config, setup.ranks.all)
    return made(config.parallel, setup.ranks, setup.device)


def _data(config: Config, known: ZooEntry) -> Data:
    """The configured data, for a network of which this much is known before it is built."""
    classes = int(config.network.options.get("num_classes", known.classes) or 0)
    wanted = NetworkInput(input=known.input or None, classes=classes, ids=known.ids, seed=config.train.seed)
    return open_data(config.data, wanted)


def held_out(config: Config, fold: int) -> Data:
    """The configured data with one of its folds held out for validation."""
    count = config.validation.folds
    if not 1 <= fold <= count:
        raise ConfigError(f"there is no fold {fold}; validation.folds is {count}")
    data = _data(config, target.described(config.network.name))
    if len(data.train) < count:  # type: ignore[arg-type]
        raise ConfigError(f"validation.folds = {count} is more than there are samples; lower it")
    chosen, held = folds(data.train, count, seed=config.train.seed)[fold - 1]
    return replace(data, train=chosen, validation=held, facts={**data.facts, "fold": fold})


def build_network(config: Config, known: ZooEntry, data: Data) -> nn.Module:
    """The network, with as many classes as the data has unless its options say otherwise."""
    options = dict(config.network.options)
    if known.classes and data.classes:
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


def goal(config: Config, known: ZooEntry) -> Objective:
    """What the network is trained for, with the loss that the configuration names."""
    named = criterion(config.loss.name) if config.loss.name is not None else None
    return known.goal(named)


def _batches(
    config: Config, data: Data, setup: DeviceSetup, strategy: Strategy
) -> tuple[Batches, Batches | None]:
    """The batches to train on, and all held-out data in its own order. Every rank takes its share."""
    train, loader, share, judged = config.train, config.loader, strategy.share, strategy.validation_share
    samples, held = len(data.train), len(data.validation or ())  # type: ignore[arg-type]
    order = Order(
        samples,
        batch=train.batch,
        rank=share.part,
        ranks=share.parts,
        seed=train.seed,
        shuffle=loader.shuffle,
        drop_last=loader.drop_last,
        epochs=train.epochs,
    )
    if not order.batches:
        each = f" on each of {share.parts} ranks" if share.parts > 1 else ""
        raise ConfigError(
            f"{samples} samples do not fill one batch of {train.batch}{each}; lower train.batch, or set "
            "loader.drop_last = false"
        )
    validation = None
    if data.validation is not None and held and judged is not None:
        held_order = Order(
            held,
            batch=train.batch,
            rank=judged.part,
            ranks=judged.parts,
            seed=0,
            shuffle=False,
            drop_last=False,
        )
        validation = Batches(data.validation, held_order, loader, setup.device)
    return Batches(data.train, order, loader, setup.device), validation
