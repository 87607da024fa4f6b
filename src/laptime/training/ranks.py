"""The ranks of a training: which one this process is, and what they exchange."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from laptime.recorder.backends import backend_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the ranks, as the environment of `torchrun` says."""

    rank: int = 0
    ranks: int = 1
    local: int = 0
    locals: int = 1  # ranks on this machine
    restarts: int = 0

    @classmethod
    def here(cls) -> Ranks:
        """From the environment; a single rank where it says nothing."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return cls()
        return cls(
            rank=int(os.environ["RANK"]),
            ranks=int(os.environ["WORLD_SIZE"]),
            local=int(os.environ.get("LOCAL_RANK", "0")),
            locals=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    @property
    def several(self) -> bool:
        """Whether there is more than one rank."""
        return self.ranks > 1

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Join the process group while this lasts."""
        if not self.several:
            yield
            return
        backend = backend_of(device)
        dist.init_process_group(
            backend.collectives,
            store=self.store(),
            rank=self.rank,
            world_size=self.ranks,
            device_id=device if backend.accelerator else None,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()

    def store(self, name: str = "ranks", *, first: bool = True) -> PrefixStore:
        """The store through which ranks find each other; without `first`, a further connection to it.

        After a restart it still holds the addresses of dead ranks. Gloo connected to those about every
        third time (torch 2.13), hence a prefix for each attempt.
        """
        hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by the launcher
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.ranks if first else None,
            is_master=first and self.rank == 0 and not hosted,
            wait_for_workers=first,
        )
        return PrefixStore(f"laptime-{self.restarts}-{name}", store)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.several:
            dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def mean(self, sums: list[float]) -> list[float]:
        """The mean over all ranks of a few numbers."""
        if not self.several:
            return sums
        columns = self.gather(sums)
        return [sum(column) / self.ranks for column in zip(*columns, strict=True)]
