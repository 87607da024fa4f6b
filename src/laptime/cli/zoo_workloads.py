"""The zoo's networks as the dashboard asks for them. torch is imported when the first is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from laptime.cli.quiet import quiet_torch

if TYPE_CHECKING:
    from laptime.model import Workload

Read = Callable[[int, str], "Workload"]


class ZooWorkloads(Mapping[str, Read]):
    """By name of a network, a function that reads its training step at a batch and precision."""

    def __getitem__(self, name: str) -> Read:
        """The reader of a network."""
        if name not in _names():
            raise KeyError(name)

        def read(batch: int, precision: str) -> Workload:
            from laptime import api

            return api.workload(name, batch=batch, precision=precision)

        return read

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())


def zoo_workloads() -> ZooWorkloads | None:
    """None where torch is absent; it is looked for, not imported."""
    return ZooWorkloads() if find_spec("torch") is not None else None


@cache
def _names() -> tuple[str, ...]:
    quiet_torch()
    from laptime.training.networks.registry import entries

    return tuple(entries())
