"""One machine among several that train together: what its launcher is told, and what it tells of a failure.

No torch here: the launcher that starts the machines reads both.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

NODE, NODES = "LAPTIME_NODE", "LAPTIME_NODES"
ADDRESS, MEETING = "LAPTIME_NODE_ADDRESS", "LAPTIME_MEETING"
RESTARTED = "all ranks started again from the last checkpoint"
REPORTS = "LAPTIME_RANKS"  # in a rank's environment: the folder where it tells its launcher why it ended
_SIOCGIFADDR = 0x8915  # linux/sockios.h: the address of an interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with ranks of a training that spans several."""

    number: int
    nodes: int
    address: str  # its own, at which the others reach it
    meeting: str  # address and port, on the first machine, where all find each other

    @classmethod
    def here(cls) -> Node | None:
        """From the environment; None where a training has one machine."""
        told = os.environ
        if NODE not in told:
            return None
        return cls(
            number=int(told[NODE]),
            nodes=int(told[NODES]),
            address=told[ADDRESS],
            meeting=told[MEETING],
        )

    def environment(self) -> Mapping[str, str]:
        """What tells a launcher on this machine that it is this node."""
        return {
            NODE: str(self.number),
            NODES: str(self.nodes),
            ADDRESS: self.address,
            MEETING: self.meeting,
        }

    def interface(self) -> str | None:
        """The network interface that has this address; None where the system does not tell."""
        with suppress(ImportError, OSError):
            import fcntl

            wanted = socket.inet_aton(self.address)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for _, name in socket.if_nameindex():
                    with suppress(OSError):  # one without an address
                        asked = struct.pack("256s", name.encode()[:15])
                        if fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, asked)[20:24] == wanted:
                            return name
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRank:
    """A rank that failed, and why."""

    line: str
    advice: str = ""
    trace: str = ""
    final: bool = False  # a restart would fail in the same way
    lost: bool = False  # killed or out of reach: what other ranks report follows from it
    waited: bool = False  # in vain, for another rank
    at: float = field(default_factory=time.time)
