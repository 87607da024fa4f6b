"""Every effective value of a configuration, why it has it, and what it means."""

from __future__ import annotations

from collections.abc import Iterator

from laptime.training.config import fields
from laptime.training.config.network import NamedNetwork, look_up
from laptime.training.config.notation import written
from laptime.training.config.reading import Resolved
from laptime.training.config.schema import Config

Row = tuple[str, str, str, str]


def explain(resolved: Resolved) -> list[Row]:
    """Rows of key, value, why and meaning. What the configuration leaves open is decided as the loop does."""
    config = resolved.config
    network, _ = look_up({"network.name": config.network.name, "data.kind": config.data.kind})
    return list(_rows(resolved, network))


def _rows(resolved: Resolved, network: NamedNetwork) -> Iterator[Row]:
    config = resolved.config
    for key, why in resolved.sources.items():
        known = fields.find(key, config.data.kind)
        if known is None:  # an option: listed below its network
            continue
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section) if section else config, name)
        shown = written(value)
        if value is None:
            shown, why = _left_open(key, config, network)
        meaning = known.meaning or " ".join((type(config.data).__doc__ or "").split())
        yield key, shown, why, meaning
        if key == "network.name":
            yield from _options(resolved, network)


def _options(resolved: Resolved, network: NamedNetwork) -> Iterator[Row]:
    """All options of the network, given or default."""
    given = resolved.config.network.options
    meaning = f"An option of {network.name}."
    for name in [*given, *(option for option in network.options if option not in given)]:
        key = f"{fields.OPTIONS}.{name}"
        if name in given:
            yield key, written(given[name]), resolved.sources[key], meaning
        elif name == "num_classes":
            yield key, "as the data has", f"default of network {network.name}", meaning
        else:
            yield key, written(network.options[name]), f"default of network {network.name}", meaning


def _left_open(key: str, config: Config, network: NamedNetwork) -> tuple[str, str]:
    """The value that is used where the configuration has none, and why."""
    own = f"default of network {network.name}"
    if key == "optimizer.lr":
        return written(config.optimizer.rate), f"default of {config.optimizer.name}"
    if key in ("train.device", "loader.pin_memory"):
        return _device(key, config)
    if key == "train.threads":
        import torch

        return str(torch.get_num_threads()), "torch's choice on this machine"
    if key == "data.shape" and network.input is not None:
        return written(network.input), own
    if key == "data.classes":
        known = network.entry and network.entry.classes
        classes = config.network.options.get("num_classes", known)
        return written(classes), f"{fields.OPTIONS}.num_classes" if classes != known else own
    if key == "optimizer.eps":
        return "torch's own", f"default of {config.optimizer.name}"
    if key in ("loss.name", "network.dropout", "data.flat"):
        return "the network's own", own
    return "none", "default"


def _device(key: str, config: Config) -> tuple[str, str]:
    from laptime.errors import UnsupportedDevice
    from laptime.training.device_setup import choose_device

    try:
        device, why = choose_device(config.train.device)
    except UnsupportedDevice as error:  # one that this machine lacks, another may have
        return "none", str(error)
    return (
        (str(device), why) if key == "train.device" else (written(device.type == "cuda"), f"device {device}")
    )
