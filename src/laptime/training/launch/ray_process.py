"""A process on a node of a Ray cluster: its scheduler chooses the node, and the run comes here as it grows.

An actor keeps a folder on the node, with what the process needs and the run that it writes. Every few seconds
new files are brought here, so that little is lost with a node. No torch here.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from laptime.files.text import first_line, one_line
from laptime.files.write import replacing, write_json
from laptime.training.launch.host_folders import RUN, rank_of
from laptime.training.launch.host_process import ALIVE, KILL, STOP
from laptime.training.launch.node import REPORTS, FailedRank
from laptime.training.launch.ray_cluster import NODE_ADDRESS, Need, node_is_alive, ray_module
from laptime.training.launch.ssh_hosts import last_line

LISTEN_S = 1.0  # that an actor waits for something to tell
COLLECT_S = 5.0  # between two looks at what a run has grown by
COLLECT_SHARE = 0.2  # of the time, at most, for bringing it here
RETRY_S = 1.0  # until a node that is out of reach is asked again
KILL_S = 15.0  # in which a process that is to end at once has ended
PIECE_BYTES = 8 * 2**20
LOST = -int(signal.SIGKILL)  # the status of a process whose node is gone

_REPORTS, _SAID, _STATUS = "reports", "said", "status"  # in the folder on the node
# Ray kills the children of an actor, so the process is a grandchild. Once the actor has ended, in whatever
# way, its end of the pipe is closed: the process ends by that, and the folder is removed.
_SCRIPT = f'exec 3<&0; ( "$@"; echo $? >{_STATUS}; cat >/dev/null; rm -rf "$PWD" ) <&3 & wait'


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask:
    """A process to be placed on a node."""

    arguments: tuple[str, ...]  # of laptime; files and run are in the current directory
    files: Mapping[str, Path]  # by their names there; a folder stands for all inside
    out: Path  # where its run is here
    ranks: tuple[int, ...]  # of the process: it sends what these have written
    need: Need
    environment: Mapping[str, str]
    reports: bool = False  # its ranks write files on why they end, instead of saying so

    def archive(self) -> bytes:
        """What is in the folder at first: the files, and the run to go on with."""

        def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if Path(member.name).name.startswith(".") or "__pycache__" in member.name else member

        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name, path in {**self.files, RUN: self.out}.items():
                if path.exists():
                    archive.add(path, arcname=name, filter=wanted)
        return file.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a process has told since it was last asked."""

    lines: tuple[str, ...]
    status: int | None  # once it has ended
    reports: Mapping[str, bytes]  # of its launcher and ranks, on why they ended: files by their names


class NodeActor:
    """What Ray places: it starts the process on the node and answers for it."""

    def __init__(self, task: NodeTask, archive: bytes) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="laptime-"))
        self._run, self._ranks = self._folder / RUN, task.ranks
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(self._folder, filter="data")
        for name in (RUN, _REPORTS):
            (self._folder / name).mkdir(exist_ok=True)
        self._sent = self._listing()
        told = {NODE_ADDRESS: self.address()}
        told |= {REPORTS: str(self._folder / _REPORTS)} if task.reports else {}
        words = [sys.executable, "-m", "laptime.training.launch.host_process", *task.arguments]
        with open(self._folder / _SAID, "wb") as said:
            self._process = subprocess.Popen(
                ["sh", "-c", _SCRIPT, "sh", *words],
                cwd=self._folder,
                env={**os.environ, **task.environment, **told},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        self._said = open(self._folder / _SAID, encoding="utf-8", errors="replace")  # noqa: SIM115

    def address(self) -> str:
        """Of the node."""
        address: str = ray_module().util.get_node_ip_address()
        return address

    def listen(self, word: bytes, seconds: float) -> Heard:
        """Pass a word of the launcher on; what there is to tell, waited for so long."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), word)
        until = time.monotonic() + seconds
        while (status := self._status()) is None and time.monotonic() < until:
            time.sleep(0.05)
        reports = (
            {}
            if status is None
            else {file.name: file.read_bytes() for file in (self._folder / _REPORTS).glob("*.json")}
        )
        return Heard(lines=tuple(self._said.read().splitlines()), status=status, reports=reports)

    def _status(self) -> int | None:
        with suppress(OSError, ValueError):  # it has not ended, or the number is being written
            return int((self._folder / _STATUS).read_text())
        return None if self._process.poll() is None else self._process.returncode

    def give(self, name: str, content: bytes) -> None:
        """Put a file into the run."""
        with replacing(self._run / name) as file:
            file.write(content)

    def changes(self) -> Iterator[tuple[str, ...] | bytes]:
        """The names of all files of the run, then an archive of those that have changed, in pieces."""
        now = self._listing()
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name in [name for name, state in now.items() if self._sent.get(name) != state]:
                    with suppress(FileNotFoundError):  # merged with others meanwhile
                        archive.add(self._run / name, arcname=name)
            self._sent = now
            file.seek(0)
            yield tuple(now)
            while piece := file.read(PIECE_BYTES):
                yield piece

    def _listing(self) -> dict[str, tuple[int, int]]:
        listed = {}
        for path in files_of(self._run, self._ranks):
            with suppress(FileNotFoundError):
                status = path.stat()
                listed[path.relative_to(self._run).as_posix()] = status.st_mtime_ns, status.st_size
        return listed


def files_of(run: Path, ranks: Sequence[int]) -> list[Path]:
    """The files of a run that these ranks write; those that no name tells of are rank 0's."""
    listed = []
    for path in run.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(run).parts)
        if not hidden and path.is_file() and (rank_of(path) or 0) in ranks:
            listed.append(path)
    return listed


# -- here ----------------------------------------------------------------------------------------------------


class RayProcess:
    """A process on a node, for its launcher: what `subprocess.Popen` answers, as far as it is asked.

    A thread follows the process: it passes lines and requests to stop on, and brings the run here.
    """

    def __init__(
        self,
        task: NodeTask,
        *,
        say: Callable[[str], None] = lambda _: None,
        begun: Callable[[str], None] = lambda _: None,
        room_s: float | None = None,
        wanted: Path | None = None,
        reports: Path | None = None,
    ) -> None:
        ray = ray_module()
        self.returncode: int | None = None  # once it has ended and its run is here
        self._said: deque[str] = deque(maxlen=20)  # its last lines
        self._reports = reports  # a folder for what its ranks say of their end
        self._task, self._say, self._begun, self._room_s = task, say, begun, room_s
        self._wanted = wanted  # a file of the run, here, that the process waits for
        self._stops = 0
        self._due, self._node = 0.0, ""
        make = ray.remote(num_cpus=task.need.cpus, num_gpus=task.need.gpus, scheduling_strategy="SPREAD")
        self._actor = make(NodeActor).remote(task, ray.put(task.archive()))
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        """None while it runs."""
        return self.returncode

    def terminate(self) -> None:
        """Ask it to stop after its step; a second time, to end at once. Signal handlers may call this."""
        self._stops += 1

    def kill(self) -> None:
        """End it at once."""
        self._stops = max(2, self._stops + 1)

    def wait(self) -> int:
        """The status, once it has ended; one that does not end is left to its node."""
        self._thread.join(KILL_S)
        return LOST if self.returncode is None else self.returncode

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""
        return last_line(list(self._said)).removeprefix("laptime: ")

    def _follow(self) -> None:
        ray, status = ray_module(), LOST
        try:
            status = self._placed() or self._watched()
        except ray.exceptions.RayActorError as error:
            gone = bool(self._node) and not node_is_alive(self._node)
            why = f"the Ray node {self._node} is gone" if gone else f"Ray ended it: {first_line(error)}"
            self._said.append(why)
        except Exception as error:  # the connection to the cluster has ended, or the disk here is full
            self._said.append(f"it cannot be followed: {first_line(error)}")
        finally:
            with suppress(Exception):
                ray.kill(self._actor)
            if status and self._reports is not None:
                file = self._reports / f"rank-{self._task.ranks[0]}.json"
                if not any((self._reports / f"rank-{rank}.json").exists() for rank in self._task.ranks):
                    write_json(file, asdict(FailedRank(line=self.reason)))
            self.returncode = status

    def _placed(self) -> int:
        """Wait for a node; the status of a process that none took, else 0."""
        ray = ray_module()
        asked, began = self._actor.address.remote(), time.monotonic()
        while not ray.wait([asked], timeout=0.2)[0]:
            if self._stops:
                return -int(signal.SIGTERM)
            if self._room_s is not None and time.monotonic() - began > self._room_s:
                self._said.append(f"no Ray node had room for it within {self._room_s:g} s")
                return 1
        self._node = ray.get(asked)
        self._begun(self._node)
        return 0

    def _watched(self) -> int:
        """The status of a process that has ended, with its run brought here."""
        ray = ray_module()
        while True:
            try:
                heard = self._hear(LISTEN_S)
                if heard.status is not None or time.monotonic() > self._due:
                    self._collect()
                if heard.status is not None:
                    self._keep(heard.reports)
                    return heard.status
            except ray.exceptions.ActorUnavailableError:  # the network may be back soon
                time.sleep(RETRY_S)

    def _keep(self, reports: Mapping[str, bytes]) -> None:
        if self._reports is not None:
            for name, content in reports.items():
                with replacing(self._reports / name) as file:
                    file.write(content)

    def _hear(self, seconds: float) -> Heard:
        word = (ALIVE, STOP, KILL)[min(2, self._stops)]
        heard: Heard = ray_module().get(self._actor.listen.remote(word, seconds))
        for line in heard.lines:
            self._said.append(line)
            if not line.startswith("laptime: "):  # told with the cause of its end
                self._say(one_line(line))
        return heard

    def _collect(self) -> None:
        """Bring here what the run has grown by, and remove what is gone there."""
        ray, out, began = ray_module(), self._task.out, time.monotonic()
        if self._wanted is not None and self._wanted.exists():
            ray.get(self._actor.give.remote(self._wanted.name, self._wanted.read_bytes()))
            self._wanted = None
        pieces = self._actor.changes.options(num_returns="streaming").remote()
        names = set(ray.get(next(pieces)))
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".ray-", dir=out) as folder:
            with tempfile.TemporaryFile(dir=folder) as file:
                for piece in pieces:
                    file.write(ray.get(piece))
                    self._hear(0)  # a long one is not to look like silence
                file.seek(0)
                with tarfile.open(fileobj=file) as archive:
                    archive.extractall(folder, filter="data")
            for path in [path for path in Path(folder).rglob("*") if path.is_file()]:
                target = out / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
        for path in files_of(out, self._task.ranks):
            if path.relative_to(out).as_posix() not in names:
                path.unlink()
        waits = self._wanted is not None or not names
        spent = time.monotonic() - began
        self._due = time.monotonic() + (0.0 if waits else max(COLLECT_S, spent / COLLECT_SHARE))
