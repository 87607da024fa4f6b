"""Clusters: nodes of devices, the links within and between them, storage, price, faults. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from laptime.errors import HardwareError
from laptime.hardware.device import CatalogEntry, Link

Wiring = Literal["switch", "mesh", "pairs", "host"]

THIS_MACHINE = ("cpu", "cuda")
"""Names of the CPU and the GPU at hand, as `laptime calibrate` measured them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNodes:
    """The last nodes of a cluster, where they have another device than the first."""

    device: str
    nodes: int
    dollars_per_hour: float | None = None  # of one node

    def __post_init__(self) -> None:
        if type(self.nodes) is not int or self.nodes < 1:
            raise HardwareError(
                f"nodes of {self.device} is {self.nodes!r}; give a whole number of at least 1"
            )
        if self.dollars_per_hour is not None and not 0 < self.dollars_per_hour < math.inf:
            raise HardwareError(
                f"dollars_per_hour of {self.device} is {self.dollars_per_hour:g}; give more than 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(CatalogEntry):
    """Nodes with equally many devices. Values that no cluster can have raise HardwareError.

    device  a name of the catalog, a device file, or one of THIS_MACHINE
    nodes   all of them; the last ones may be `others`, with another device
    inside, between, storage  names of the catalog; a link's may be one of `links` instead
    wiring  of a node: a switch gives every device its whole link at once (NVSwitch); a mesh links each
            directly with some others; pairs are linked by two, the rest meets over the host's link; host:
            all share the host's link
    """

    device: str
    nodes: int
    devices_per_node: int
    inside: str | None = None  # the link of a device to the others of its node; None: one device a node
    wiring: Wiring = "switch"
    between: str | None = None  # a link of a node to the network; None: one node
    rails: int = 1  # such links of a node
    oversubscription: float = 1.0  # bandwidth of all nodes over that of the network's core
    pod_nodes: int | None = None  # that reach each other without its core; None: all cross it
    storage: str | None = None  # of a node; None: data is in memory
    dollars_per_hour: float | None = None  # of one node
    node_hours_between_failures: float | None = None  # hours × nodes ÷ interruptions
    slow_share: float = 0.0  # of the nodes
    slowdown: float = 1.0  # of a slow node: times as long
    links: tuple[Link, ...] = ()  # that the cluster's own file describes
    others: tuple[OtherNodes, ...] = ()

    def __post_init__(self) -> None:
        for figure in ("nodes", "devices_per_node", "rails"):
            count = getattr(self, figure)
            if type(count) is not int or count < 1:
                raise HardwareError(f"{figure} is {count!r}; give a whole number of at least 1")
        if self.pod_nodes is not None and (type(self.pod_nodes) is not int or self.pod_nodes < 1):
            raise HardwareError(f"pod_nodes is {self.pod_nodes!r}; give a whole number of at least 1")
        if self.wiring not in get_args(Wiring):
            raise HardwareError(f"wiring is {self.wiring!r}; give one of {', '.join(get_args(Wiring))}")
        for figure, meaning in (
            ("oversubscription", "1 is a network that carries what all nodes send"),
            ("slowdown", "a slow node takes that many times as long"),
        ):
            factor = getattr(self, figure)
            if not 1 <= factor < math.inf:
                raise HardwareError(f"{figure} is {factor:g}; give at least 1: {meaning}")
        if not 0 <= self.slow_share <= 1:
            raise HardwareError(f"slow_share is {self.slow_share:g}; give a share of the nodes from 0 to 1")
        for figure in ("dollars_per_hour", "node_hours_between_failures"):
            amount = getattr(self, figure)
            if amount is not None and not 0 < amount < math.inf:
                raise HardwareError(f"{figure} is {amount:g}; give more than 0, or leave it out if unknown")
        if self.nodes <= sum(other.nodes for other in self.others):
            raise HardwareError(
                f"{self.name} has {self.nodes} nodes, all with other devices than {self.device}; "
                "give more nodes, or fewer under [[other]]"
            )
        self._check_joined()

    def _check_joined(self) -> None:
        """Every device must reach every other."""
        if self.nodes > 1 and self.between is None:
            raise HardwareError(
                f"{self.name} has {self.nodes} nodes and no link between them; "
                "give between, such as 'infiniband-ndr', or 1 node"
            )
        if self.devices_per_node > 1 and self.inside is None:
            raise HardwareError(
                f"{self.name} has {self.devices_per_node} devices a node and no link inside; "
                "give inside, such as 'nvlink-4' or 'pcie-4-x16'"
            )

    @property
    def devices(self) -> int:
        """In all nodes."""
        return self.nodes * self.devices_per_node

    def device_of(self, node: int) -> str:
        """The device of a node."""
        last = self.nodes
        for other in reversed(self.others):
            last -= other.nodes
            if node >= last:
                return other.device
        return self.device

    def dollars_of(self, nodes: int) -> float | None:
        """An hour of the first so many nodes; None where one of their prices is not known."""
        prices = {other.device: other.dollars_per_hour for other in self.others}
        prices[self.device] = self.dollars_per_hour
        each = [prices[self.device_of(node)] for node in range(nodes)] if self.others else None
        if each is None:
            return None if self.dollars_per_hour is None else self.dollars_per_hour * nodes
        known = [price for price in each if price is not None]
        return sum(known) if len(known) == nodes else None
