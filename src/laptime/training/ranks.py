"""The ranks of a training: which one this process is, and how they exchange values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from laptime.errors import LaptimeError, TrainingError
from laptime.recorder.backends import backend_of

# In the environment of a group's processes.
GROUP, GROUPS, GROUP_RESTARTS = "LAPTIME_GROUP", "LAPTIME_GROUPS", "LAPTIME_GROUP_RESTARTS"
GROUPS_HERE = "LAPTIME_GROUPS_HERE"  # that share this machine's devices; by default all
_TIMED_OUT = ("Timed out waiting", "collective operation timeout")  # gloo's words, and NCCL's

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the ranks, as the environment of `torchrun`, Kubernetes or SLURM says.

    Ranks of a group train in step with each other. Groups, of equal size, train through parameter servers.
    """

    rank: int = 0  # in its group
    ranks: int = 1
    group: int = 0
    groups: int = 1
    local: int = 0
    locals: int = 1  # ranks on this machine
    restarts: int = 0  # of this process' group, after it was lost

    address: str = "127.0.0.1"  # of the store through which ranks find each other
    port: int = 0
    started: bool = False  # by a launcher, this one's or another

    @classmethod
    def here(cls) -> Ranks:
        """From the environment; a single rank where it says nothing."""
        told = os.environ
        group, groups = int(told.get(GROUP, "0")), int(told.get(GROUPS, "1"))
        restarts = int(told.get(GROUP_RESTARTS, "0"))
        if "RANK" in told and "WORLD_SIZE" in told:  # torchrun's, and Kubernetes' PyTorchJob
            return cls(
                group=group,
                groups=groups,
                rank=int(told["RANK"]),
                ranks=int(told["WORLD_SIZE"]),
                local=int(told.get("LOCAL_RANK", "0")),
                locals=int(told.get("LOCAL_WORLD_SIZE", "1")),
                restarts=restarts + int(told.get("TORCHELASTIC_RESTART_COUNT", "0")),
                address=told.get("MASTER_ADDR", "127.0.0.1"),
                port=int(told.get("MASTER_PORT", "29500")),
                started=True,
            )
        # A batch script has a SLURM_PROCID, too; only a task that `srun` started belongs to a step.
        if "SLURM_PROCID" in told and "SLURM_STEP_ID" in told:
            return cls(**_slurm(told))
        return cls(group=group, groups=groups, locals=int(told.get(GROUPS_HERE, groups)), restarts=restarts)

    @property
    def several(self) -> bool:
        """Whether the group has more than one rank."""
        return self.ranks > 1

    @property
    def number(self) -> int:
        """This rank among those of all groups."""
        return self.group * self.ranks + self.rank

    @property
    def all(self) -> int:
        """Ranks of all groups."""
        return self.groups * self.ranks

    @contextmanager
    def joined(self, device: torch.device, *, timeout_s: float) -> Iterator[None]:
        """Join the process group while this lasts. A rank that waits longer for another one fails."""
        if not self.several:
            yield
            return
        backend = backend_of(device)
        dist.init_process_group(
            backend.collectives,
            store=self.store(),
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=timeout_s),
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
            self.address,
            self.port,
            self.ranks if first else None,
            is_master=first and self.rank == 0 and not hosted,
            wait_for_workers=first,
        )
        return PrefixStore(f"laptime-{self.restarts}-{name}", store)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.several:
            dist.barrier()

    def wait_for_long_work(self, name: str) -> None:
        """Wait until all ranks are here, also where one has work of hours, such as fetching data."""
        if self.several:
            store = self.store(name, first=False)
            store.set(str(self.rank), "done")
            store.wait([str(rank) for rank in range(self.ranks)], timedelta(days=7))

    def of_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank; so is the error that it raises."""
        if not self.several:
            return make()
        made: list[Any] = [None, None]
        if self.rank == 0:
            try:
                made[0] = make()
            except LaptimeError as error:
                made[1] = str(error)
        dist.broadcast_object_list(made, src=0)
        if made[1] is not None:
            raise TrainingError(made[1])
        value: T = made[0]
        return value

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values


def waited_in_vain(error: BaseException) -> bool:
    """Whether a rank failed because another one did not answer in time."""
    return exchange_failed(error) and any(
        words in str(each) for each in _chain(error) for words in _TIMED_OUT
    )


def exchange_failed(error: BaseException) -> bool:
    """Whether an error comes from the exchange with other ranks; gloo's are told by where they arose."""
    return any(isinstance(each, dist.DistError) or "/gloo/" in str(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it; torch's pipelines raise one without words."""
    while error is not None:
        yield error
        error = error.__cause__


# -- SLURM ---------------------------------------------------------------------------------------------------


def _slurm(told: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a task that `srun` has started; all tasks of a step choose the same port."""
    ranks = int(told.get("SLURM_STEP_NUM_TASKS") or told["SLURM_NTASKS"])
    nodes = told.get("SLURM_STEP_NODELIST") or told.get("SLURM_JOB_NODELIST", "")
    job, step = int(told.get("SLURM_JOB_ID", "0")), told["SLURM_STEP_ID"]
    return {
        "rank": int(told["SLURM_PROCID"]),
        "ranks": ranks,
        "local": int(told.get("SLURM_LOCALID", "0")),
        "locals": _slurm_locals(told),
        "address": first_slurm_host(nodes) or told.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
        "started": ranks > 1,  # one task may be a launcher itself
        "port": 20_000 + (job * 16 + int(step if step.isdecimal() else "0")) % 10_000,
    }


def _slurm_locals(told: Mapping[str, str]) -> int:
    """Tasks on this node: SLURM writes `4(x2),3` for three nodes with 4, 4 and 3."""
    by_node: list[int] = []
    tasks = told.get("SLURM_STEP_TASKS_PER_NODE") or told.get("SLURM_NTASKS_PER_NODE", "1")
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        by_node += [int(count)] * int(times or "1")
    node = int(told.get("SLURM_NODEID", "0"))
    return by_node[min(node, len(by_node) - 1)]


def first_slurm_host(nodes: str) -> str:
    """The first of a list as SLURM writes it: `gpu[07-09,12],login` begins with `gpu07`."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""
