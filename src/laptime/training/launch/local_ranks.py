"""Several ranks on this machine, by torch's elastic launcher. If one dies, all restart from the checkpoint.

There is no restart after a `LaptimeError`, which would only be repeated. On one of several machines, the
launcher that started them all decides (`hosts.py`).
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from laptime.errors import TrainingError
from laptime.files.read import MIB, open_plain, read_json
from laptime.files.write import write_json
from laptime.runs.writer import add_notes
from laptime.training import checkpoint
from laptime.training.launch.node import REPORTS, RESTARTED, FailedRank, Node
from laptime.training.ranks import GROUP
from laptime.training.stop_signals import CHILD, CLOSING_S, INTERRUPTED, Terminated, end_with_parent

JOIN_S = 120  # in which all machines of a training are to be there
TELL_S = 5.0  # in which all ranks that waited for the same one say so


class RanksFailed(TrainingError):
    """The ranks of this machine have failed."""

    def __init__(self, cause: FailedRank) -> None:
        super().__init__(f"{cause.line}{cause.advice}")
        self.cause = cause


def launch(
    arguments: Sequence[str], *, workers: int, restarts: int, out: Path, say: Callable[[str], None]
) -> None:
    """Run `laptime ARGUMENTS` as `workers` ranks, and again from their checkpoint if one of them dies."""
    from torch.distributed.elastic.multiprocessing import SignalException

    end_with_parent()
    node = Node.here()
    alone = node is None and GROUP not in os.environ
    if node is not None and (interface := node.interface()) is not None:
        # Gloo would take the address of this machine's name, which may be one that others do not reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    logging.disable(logging.ERROR)  # the agent would log every failure that is reported here
    with tempfile.TemporaryDirectory(prefix="laptime-") as name:
        told_to = os.environ.get(REPORTS)  # the launcher of several groups
        os.environ |= {REPORTS: name, CHILD: str(os.getpid())}
        command = [sys.executable, "-m", "laptime", *arguments]
        agent = _agent(command, workers, restarts, Path(name), out, say, node)
        try:
            result = agent.run()
        except SignalException as asked:
            raise (Terminated if asked.sigval == signal.SIGTERM else KeyboardInterrupt) from None
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[REPORTS], os.environ[CHILD]
            if alone:  # else the launcher of all hosts or groups knows more
                add_notes(out, agent.notes)
        if result.is_failed():
            fallen = agent.fallen or _cause(Path(name), result, workers)
            if alone:
                add_notes(out, [fallen.line])
                if fallen.trace:
                    say(fallen.trace)
            if told_to is not None:
                write_json(Path(told_to) / f"group-{os.environ[GROUP]}.json", asdict(fallen))
            raise RanksFailed(fallen)


def _agent(
    command: Sequence[str],
    workers: int,
    restarts: int,
    folder: Path,
    out: Path,
    say: Callable[[str], None],
    node: Node | None,
) -> Any:
    """Torch's agent of one machine. No restart after a `LaptimeError`, nor without a new checkpoint."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import registry as rendezvous

    offset = _offset(workers)

    class Agent(LocalElasticAgent):
        fallen: FailedRank | None = None
        notes: ClassVar[list[str]] = []  # for the run: what was lost
        saved = _saved(out)

        def _monitor_workers(self, *args: Any, **kwargs: Any) -> Any:
            self.fallen = self._waited()
            result = super()._monitor_workers(*args, **kwargs)
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                self.fallen, before = self.fallen or _cause(folder, result, workers), self.saved
                self.saved = _saved(out)
                if self.fallen.final or self.saved == before:
                    self._remaining_restarts = 0
                elif self._remaining_restarts:
                    self.notes.append(f"{self.fallen.line}; {RESTARTED}")
                    say(self.notes[-1])
                    for report in folder.glob("rank-*.json"):
                        report.unlink()
            return result

        def _waited(self) -> FailedRank | None:
            """Where ranks have waited in vain: which one for, if it is here. It is killed, since a process
            that was stopped hears nothing else, and torch's agent would wait for it."""
            told = [failed for failed in _reports(folder) if failed.waited]
            if not told:
                return None
            until, silent = time.monotonic() + TELL_S, self._worker_group.workers
            while silent and time.monotonic() < until:
                time.sleep(0.1)
                silent = [each for each in silent if not _report(folder, offset + each.global_rank).exists()]
            cause = min(told, key=lambda failed: failed.at)
            if not silent:
                return cause
            # Others may only wait for a stopped one, and have not said so yet.
            named = [each for each in silent if _stopped(each.id)] or silent
            names = ", ".join(str(offset + each.global_rank) for each in named)
            for each in silent:
                with suppress(ProcessLookupError):
                    os.kill(each.id, signal.SIGKILL)
            return replace(cause, line=f"rank {names} did not answer; {cause.line}", lost=True)

        def _assign_worker_ranks(self, store: Any, group_rank: int, *args: Any) -> Any:
            # Torch numbers machines by their addresses; the user has given an order.
            return super()._assign_worker_ranks(store, node.number if node else group_rank, *args)

    nodes, address = (1, "127.0.0.1") if node is None else (node.nodes, node.address)
    meeting = RendezvousParameters(
        backend="c10d",
        endpoint="127.0.0.1:0" if node is None else node.meeting,
        run_id="laptime",
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr=address,
        is_host=node is None or node.number == 0,
        join_timeout=JOIN_S,
    )
    spec = WorkerSpec(
        role="laptime",
        local_world_size=workers,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=rendezvous.get_rendezvous_handler(meeting),
        # Launchers of several hosts, or of a group among others, start their ranks again themselves.
        max_restarts=restarts if node is None and GROUP not in os.environ else 0,
        monitor_interval=0.1,
        local_addr=address,
    )
    # A terminal's progress bar is rank 0's; what others say is looked at when they end badly.
    first = node is None or node.number == 0
    quiet = {rank: Std.OUT if rank == 0 and first else Std.ALL for rank in range(workers)}
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=quiet)
    known = inspect.signature(LocalElasticAgent.__init__).parameters
    options: dict[str, Any] = {"shutdown_timeout": CLOSING_S} if "shutdown_timeout" in known else {}
    return Agent(spec=spec, logs_specs=logs, start_method="spawn", **options)


def _saved(out: Path) -> int | None:
    """When the last checkpoint was written."""
    try:
        return (out / checkpoint.LAST).stat().st_mtime_ns
    except OSError:
        return None


def _offset(workers: int) -> int:
    """The number of the first rank of this group, whose ranks follow those of the groups before."""
    return int(os.environ.get(GROUP, "0")) * workers


def _cause(folder: Path, result: Any, workers: int) -> FailedRank:
    """The first failure: a rank that was killed, else the earliest report, else an exit status.

    Torch counts ranks over all machines, and keeps logs by their numbers on this one.
    """
    offset = _offset(workers)
    ended = {rank: failure.exitcode for rank, failure in result.failures.items()}
    for rank, status in ended.items():
        # NCCL aborts a rank when another one is gone.
        if status < 0 and -status != signal.SIGABRT and status not in INTERRUPTED:
            name = signal.strsignal(-status) or "an unknown one"
            said = _last_line(folder, rank % workers)
            line = f"rank {offset + rank} was ended by signal {-status}, {name}{said}"
            advice = "; if memory ran out, lower train.batch or --workers"
            return FailedRank(line=line, advice=advice, lost=True)
    if told := _reports(folder):
        return min(told, key=lambda failed: failed.at)
    rank, status = next(iter(ended.items()))
    if status in INTERRUPTED:  # a signal to a rank, not to this process
        raise INTERRUPTED[status]()
    line = f"rank {offset + rank} ended with status {status}{_last_line(folder, rank % workers)}"
    return FailedRank(line=line, advice="; its own output says why")


def _stopped(process: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; False where the system does not tell."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _report(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def _reports(folder: Path) -> list[FailedRank]:
    """What ranks have said of their failure."""
    return [FailedRank(**read_json(file, inside=folder)) for file in folder.glob("rank-*.json")]


def _last_line(folder: Path, local: int) -> str:
    """The last line of the output of a rank of this machine, which may say why it ended."""
    files = sorted(folder.glob(f"logs/**/{local}/stderr.log"))
    lines = []
    if files:
        with open_plain(files[-1]) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MIB))
            lines = file.read(MIB).decode("utf-8", "replace").strip().splitlines()
    return f" ({lines[-1].strip()[:200]})" if lines else ""
