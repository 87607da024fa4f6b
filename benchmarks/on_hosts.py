"""Trainings on hosts made of network namespaces (`tools.testbed`): one command on each, or one on Ray.

Ranks have one thread each. They share the processors of this machine: with more ranks than cores, computing
does not get faster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.testbed import FOLDER, RAY_PORT, Host, ray_command

from laptime.runs import Run, load
from laptime.training.launch.ray_head import DIRECT_CALLS

PORT = 29_617
SERVED = ("asynchronous", "mixed")
STOPPED_S, RUNNING_S = 0.02, 0.01  # of a slow rank, in turn: a third of its speed
LIMIT_S = 300.0
_FOR_RAY = ("RAY_AUTH_MODE=disabled", "OMP_NUM_THREADS=1")
RAY_NODE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **DIRECT_CALLS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training and how it is spread."""

    config: str
    strategy: str
    settings: tuple[str, ...] = ()
    ranks_per_host: int = 1
    slow: int | None = None  # the rank that runs at a third of its speed

    def words(self) -> list[str]:
        """The settings as arguments of `laptime train`."""
        settings = (f"parallel.strategy={self.strategy}", *self.settings)
        return [word for setting in settings for word in ("--set", setting)]


class TrainingFailed(Exception):
    """A training ended with an error; the text is its last line."""


def train(hosts: Sequence[Host], plan: Plan, read: Callable[[Run], object]) -> object:
    """Train on all hosts, and read what is wanted from the run. Served strategies need `start_ray` before."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:  # a host with a Ray node has another /tmp
        folder = Path(name)
        (folder / "config.toml").write_text(plan.config)
        words = [sys.executable, "-m", "laptime", "train", str(folder / "config.toml"), "--json"]
        words += ["--out", str(folder / "run"), *plan.words()]
        start = _start_on_ray if plan.strategy in SERVED else _start_ranks
        processes = start(hosts, plan, words, folder)
        with _slowed(hosts, plan) if plan.slow is not None else nullcontext():
            try:
                statuses = [process.wait(timeout=LIMIT_S) for process in processes]
            except subprocess.TimeoutExpired as error:
                raise TrainingFailed(f"it did not end within {LIMIT_S:g} s") from error
            finally:
                for process in processes:
                    process.kill()
        if any(statuses):
            lines = (folder / "said").read_text(errors="replace").strip().splitlines()
            raise TrainingFailed(lines[-1] if lines else "it said nothing")
        return read(load(folder / "run"))


def _start_ranks(
    hosts: Sequence[Host], plan: Plan, words: Sequence[str], folder: Path
) -> list[subprocess.Popen[bytes]]:
    """One process for each rank, as `torchrun` would start them."""
    count = len(hosts) * plan.ranks_per_host
    told = {"WORLD_SIZE": str(count), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT)}
    told |= {"LOCAL_WORLD_SIZE": str(plan.ranks_per_host), "GLOO_SOCKET_IFNAME": "eth0"}
    started = []
    with open(folder / "said", "wb") as said:
        for rank in range(count):
            host, local = hosts[rank // plan.ranks_per_host], rank % plan.ranks_per_host
            mine = {"RANK": str(rank), "LOCAL_RANK": str(local), "OMP_NUM_THREADS": "1"}
            environment = {**os.environ, **(told if count > 1 else {}), **(mine if count > 1 else {})}
            environment["OMP_NUM_THREADS"] = "1"
            started.append(
                subprocess.Popen(
                    host.command(*words), env=environment, stdout=subprocess.DEVNULL, stderr=said
                )
            )
    return started


def _start_on_ray(
    hosts: Sequence[Host], plan: Plan, words: Sequence[str], folder: Path
) -> list[subprocess.Popen[bytes]]:
    """One launcher on the first host, which asks the cluster for the others."""
    where = ["--ray", f"{hosts[0].address}:{RAY_PORT}", "--workers", str(len(hosts) * plan.ranks_per_host)]
    with open(folder / "said", "wb") as said:
        command = ray_command(hosts[0], "env", *_FOR_RAY, *words, *where)
        return [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)]


# -- a rank that is slow -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SlowRank:
    """Stops and continues a process in turn until it ends or `over` is set."""

    wanted: Callable[[], int | None]
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while (pid := self.wanted()) is None:
            if self.over.wait(0.2):
                return
        with suppress(ProcessLookupError):
            while not self.over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                self.over.wait(RUNNING_S)


@contextmanager
def _slowed(hosts: Sequence[Host], plan: Plan) -> Iterator[None]:
    assert plan.slow is not None
    slow = _SlowRank(lambda: _process_of(hosts, plan))
    thread = threading.Thread(target=slow.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        slow.over.set()
        thread.join()


def _process_of(hosts: Sequence[Host], plan: Plan) -> int | None:
    """The process of the slow rank in whichever host it is; None while it has not started."""
    assert plan.slow is not None
    size = len(hosts) * plan.ranks_per_host // 2 if plan.strategy == "mixed" else 1
    wanted = {"RANK": str(plan.slow)}
    if plan.strategy in SERVED:
        wanted = {"LAPTIME_GROUP": str(plan.slow // size)}
        wanted |= {"RANK": str(plan.slow % size)} if size > 1 else {}
    for host in hosts:
        listed = subprocess.run(
            ["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False
        )
        for pid in map(int, listed.stdout.split()):
            if _environment(pid).items() >= wanted.items() and b"laptime" in _command(pid):
                return pid
    return None


def _environment(pid: int) -> Mapping[str, str]:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)
    return {}


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
