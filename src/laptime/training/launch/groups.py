"""Groups of ranks that train through parameter servers: each is started, watched and replaced by itself.

Groups are processes of this machine, or Ray places them on the nodes of a cluster. One that is lost does not
stop the others. It is started again, on a cluster wherever there is room, goes on after the last step that
its run has on disk, and takes the parameters that the servers have by then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from laptime.errors import LaptimeError, TrainingError
from laptime.files.read import read_json
from laptime.files.write import replacing
from laptime.runs import load
from laptime.runs.directory import CHECKPOINT_FOLDER, LAST_CHECKPOINT, new_id, refuse_if_taken
from laptime.runs.document import RUN_FILE
from laptime.runs.exporters.csv_files import write_csv
from laptime.runs.writer import CSV_ROWS, add_notes, set_status
from laptime.training.launch.node import REPORTS
from laptime.training.launch.ray_cluster import (
    ADDRESS,
    AUTH_MODE,
    IN_FILE,
    check_nodes,
    check_reach,
    check_room,
    connected,
    ray_module,
)
from laptime.training.launch.ray_head import DIRECT_CALLS
from laptime.training.launch.ray_process import NodeTask, RayProcess
from laptime.training.parameter_server import ParameterServer
from laptime.training.ranks import GROUP, GROUP_RESTARTS, GROUPS, GROUPS_HERE
from laptime.training.stop_signals import INTERRUPTED, Process, Relay, end_with_parent

ROOM_S = 60.0  # in which a node must have room for a group that is started again
END_S = 10.0  # for a server to remove its snapshot
SERVERS = "LAPTIME_SERVERS"  # in a group's environment: what its servers are called, but for their numbers


def server_name(out: Path, number: int) -> str:
    """What a run's server is called in its Ray cluster."""
    return f"{os.environ.get(SERVERS, out.absolute())}-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of a training, and the parameter servers between them."""

    groups: int
    size: int  # ranks in each
    servers: int
    out: Path
    restarts: int = 3  # of one group

    def ranks(self, number: int) -> tuple[int, ...]:
        """Those of a group."""
        return tuple(range(number * self.size, (number + 1) * self.size))

    def called(self, number: int) -> str:
        """A group in messages."""
        ranks = self.ranks(number)
        return f"worker {number}" if self.size == 1 else f"group {number} (ranks {ranks[0]} to {ranks[-1]})"

    def environment(self, number: int, restarts: int) -> dict[str, str]:
        """What tells a process that it is this group."""
        return {GROUP: str(number), GROUPS: str(self.groups), GROUP_RESTARTS: str(restarts)}


# -- on this machine -----------------------------------------------------------------------------------------


def launch_groups(arguments: Sequence[str], plan: Groups, *, say: Callable[[str], None]) -> None:
    """Run `laptime ARGUMENTS` once for each group, and parameter servers between them."""
    end_with_parent()
    relay = Relay(say)
    with tempfile.TemporaryDirectory(prefix="laptime-") as folder, relay.listening():
        reports = Path(folder)

        def start(number: int, restarts: int) -> Process:
            told = plan.environment(number, restarts)
            told |= {REPORTS: folder, ADDRESS: f"{IN_FILE}{reports / 'ray'}"}
            if not {AUTH_MODE, ADDRESS} & os.environ.keys():
                told[AUTH_MODE] = "token"  # as Ray does for a cluster that it makes, which comes later
            told |= {name: value for name, value in DIRECT_CALLS.items() if name not in os.environ}
            os.environ |= told
            try:
                command = [sys.executable, "-m", "laptime", *arguments]
                with open(reports / f"group-{number}.log", "ab") as log:
                    told_to = None if number == 0 else log  # a progress bar is the first group's
                    return relay.start(command, stdout=subprocess.DEVNULL, stderr=told_to)
            finally:
                for name in told:
                    del os.environ[name]

        # The groups first: they start while Ray does.
        running = [_Group(number, start(number, 0)) for number in range(plan.groups)]
        names = [server_name(plan.out, number) for number in range(plan.servers)]
        with connected() as cluster, _servers(names, plan.out.absolute() / CHECKPOINT_FOLDER) as servers:
            with replacing(reports / "ray") as file:
                file.write(cluster.encode())
            watch = _Watch(start=start, relay=relay, reports=reports, plan=plan, servers=servers, say=say)
            try:
                watch.run(running)
            finally:
                add_notes(plan.out, watch.notes)
    relay.check()


# -- on a Ray cluster ----------------------------------------------------------------------------------------


def launch_groups_on_ray(
    task: NodeTask, plan: Groups, *, address: str, laptime: str, resume: bool, say: Callable[[str], None]
) -> None:
    """The same on the nodes of a cluster. `task` is that of any group, `laptime` this machine's version."""
    end_with_parent()
    relay, out = Relay(say), plan.out
    check_reach(address)
    with tempfile.TemporaryDirectory(prefix="laptime-") as folder, connected(address) as cluster:
        check_nodes(laptime)
        task = replace(task, need=check_room(task.need, plan.groups))
        if resume and not (out / LAST_CHECKPOINT).exists():
            raise TrainingError(f"there is no checkpoint in {out}; start without --resume")
        if not resume:
            out.mkdir(parents=True, exist_ok=True)
            refuse_if_taken(out, 0)
        name = f"laptime-servers-{new_id()}"
        told = {ADDRESS: cluster, SERVERS: name, GROUPS_HERE: "1", **DIRECT_CALLS, **task.environment}

        def start(number: int, restarts: int) -> Process:
            relay.check()
            if restarts and number == 0:
                set_status(out, "interrupted", instead_of="running")  # though its last heartbeat is young
            process = RayProcess(
                replace(
                    task,
                    ranks=plan.ranks(number),
                    reports=True,
                    environment={**told, **plan.environment(number, restarts)},
                ),
                say=say if number == 0 else lambda _: None,
                room_s=ROOM_S if restarts else None,
                wanted=out / RUN_FILE if number and not (resume or restarts) else None,
                reports=Path(folder),
            )
            relay.adopt(process)
            return process

        names = [f"{name}-{number}" for number in range(plan.servers)]
        with _servers(names, Path(name)) as servers:
            watch = _Watch(
                start=start, relay=relay, reports=Path(folder), plan=plan, servers=servers, say=say
            )
            try:
                with relay.listening():
                    watch.run([_Group(number, start(number, 0)) for number in range(plan.groups)])
            finally:
                add_notes(out, watch.notes)
                with suppress(LaptimeError, OSError):  # `laptime export` can make them at any time
                    write_csv(load(out), most_rows=CSV_ROWS)  # the first group's have its own rows
                with suppress(OSError):  # it has a run
                    out.rmdir()
    relay.check()


# -- either way ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    number: int
    process: Process
    starts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """Waits until every group has ended, and replaces those that are lost."""

    start: Callable[[int, int], Process]
    relay: Relay
    reports: Path
    plan: Groups
    servers: Sequence[Any]
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)  # for the run: what was lost

    def run(self, running: list[_Group]) -> None:
        finished = 0
        while running:
            self.relay.pause()
            for group in [group for group in running if group.process.poll() is not None]:
                running.remove(group)
                status = group.process.returncode
                if status == 0:
                    finished += 1
                    self._leave(group, returns=False)  # a server that died since has forgotten
                elif status in INTERRUPTED:
                    self._leave(group, returns=False)  # it alone was asked to stop
                elif not self.relay.times:
                    running += self._replaced(group, status)
        if not finished and not self.relay.times:
            raise TrainingError("every worker was lost; --resume goes on from the last checkpoint")

    def _replaced(self, group: _Group, status: int | None) -> list[_Group]:
        """A group was lost: it starts again, unless it would end in the same way."""
        line, final = self._report(group.number, status or 0)
        if final:
            raise TrainingError(line)
        returns = group.starts <= self.plan.restarts
        self._leave(group, returns=returns)
        how = "the others went on, and it was started again" if returns else "the others went on without it"
        self.notes.append(f"{self.plan.called(group.number)} was lost ({line}); {how}")
        self.say(self.notes[-1])
        if not returns:
            return []
        return [_Group(group.number, self.start(group.number, group.starts), group.starts + 1)]

    def _leave(self, group: _Group, *, returns: bool) -> None:
        """Tell the servers that nobody is to wait for a group."""
        for server in self.servers:
            server.leave.remote(group.number, returns=returns)

    def _report(self, group: int, status: int) -> tuple[str, bool]:
        """What a rank of a group said of its end, and whether it would happen again."""
        names = [f"group-{group}.json", *(f"rank-{rank}.json" for rank in self.plan.ranks(group))]
        for file in (self.reports / name for name in names):  # its launcher's, or a rank's
            if file.exists():
                told = read_json(file, inside=self.reports)
                file.unlink()
                return str(told["line"]), bool(told["final"])
        return f"signal {-status}" if status < 0 else f"status {status}", False


@contextmanager
def _servers(names: Sequence[str], snapshots: Path) -> Iterator[list[Any]]:
    """Parameter servers, which end with this process at the latest."""
    ray = ray_module()
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)(ParameterServer)
    made = [
        actor.options(name=name).remote(str(snapshots / f"server-{number}.pt"))
        for number, name in enumerate(names)
    ]
    try:
        yield made
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.get([server.forget.remote() for server in made], timeout=END_S)
        for server in made:
            with suppress(Exception):
                ray.kill(server)
