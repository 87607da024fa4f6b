"""Clusters: nodes of devices, the links within and between them, storage, price, faults. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laptime.hardware.device import CatalogEntry

Wiring = Literal["switch", "mesh", "pairs", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(CatalogEntry):
    """Equal nodes of equal devices; names of devices, links and storage are the catalog's.

    wiring  of a node: a switch gives every device its whole link at once (NVSwitch); a mesh links each
            directly with some others; pairs are linked by two, the rest meets over the host's link; host:
            all share the host's link
    """

    device: str
    nodes: int
    devices_per_node: int
    inside: str  # the link of a device to the others of its node
    wiring: Wiring = "switch"
    between: str | None = None  # a link of a node to the network; None: one node
    rails: int = 1  # such links of a node
    oversubscription: float = 1.0  # bandwidth of all nodes over that of the network's core
    storage: str | None = None  # of a node; None: data is in memory
    dollars_per_hour: float | None = None  # of one node
    node_hours_between_failures: float | None = None
    slow_share: float = 0.0  # of the nodes
    slowdown: float = 1.0  # of a slow node: times as long

    @property
    def devices(self) -> int:
        """In all nodes."""
        return self.nodes * self.devices_per_node
