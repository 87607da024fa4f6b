"""A training on other machines, over ssh: checked, started, watched, its run gathered, and all of it ended.

Every host has a folder while the training lasts, with the configuration and the run of the host's own ranks.
When one host fails, all start again from the checkpoint, as `session.py` does on one machine. No torch here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laptime.errors import ConfigError, TrainingError
from laptime.files.parse import build, parse_json
from laptime.files.text import one_line
from laptime.runs.directory import LAST_CHECKPOINT, refuse_if_taken
from laptime.runs.writer import add_notes
from laptime.training.launch.host_folders import (
    RUN,
    HostFolder,
    HostTask,
    gather,
    left_behind,
    make_folders,
    remember,
)
from laptime.training.launch.host_process import ALIVE, KILL, STOP
from laptime.training.launch.node import RESTARTED, FailedRank, Node
from laptime.training.launch.ssh_hosts import CHECK_S, NO_CONNECTION, HostFacts, Ssh, check_hosts, last_line
from laptime.training.stop_signals import INTERRUPTED, StopRequests

if TYPE_CHECKING:
    from laptime.training.config.reading import Resolved

FOLLOW_S = 20.0  # in which hosts notice by themselves that another has failed
BEAT_S = 5.0
LOOK_S = 0.1


# -- what the hosts are to do --------------------------------------------------------------------------------


def host_files(resolved: Resolved) -> tuple[dict[str, Path], list[str]]:
    """Files that a configuration needs on a host, by their names there, and settings that find things there.

    Data is expected on every host at the path that it has here.
    """
    config, files = resolved.config, {resolved.path.name: resolved.path}
    settings = [f"data.{name}={value}" for name, value in config.data if isinstance(value, Path)]
    module, _, attribute = config.network.name.partition(":")
    if module.endswith(".py"):
        files[Path(module).name] = Path(module)
        settings.append(f"network.name={Path(module).name}:{attribute}")
    elif attribute:  # a module beside the configuration, or where the command was given
        top = module.partition(".")[0]
        places = [folder / name for folder in (Path(), resolved.path.parent) for name in (top, f"{top}.py")]
        files |= {place.name: place for place in places if place.exists()}
    if missing := next((path for path in files.values() if not path.exists()), None):
        raise ConfigError(f"there is no file {one_line(missing)}; give its path, or module:callable")
    return files, settings


# -- the training --------------------------------------------------------------------------------------------


def launch_on_hosts(
    task: HostTask,
    names: Sequence[str],
    ssh: Ssh,
    *,
    out: Path,
    resume: bool,
    say: Callable[[str], None],
) -> None:
    """Train on all hosts, and bring the run back to `out`, also one that failed or was interrupted."""
    facts = check_hosts(names, ssh, laptime=task.laptime, starts=task.restarts + 1)
    if len(names) > 1 and facts[0].address.startswith("127."):
        raise TrainingError(
            f"{names[0]} is reached by {facts[0].address}, where no other host reaches it; "
            "name it by its address in their network"
        )
    if resume:
        gather(left_behind(out), ssh, out, say)
        if not (out / LAST_CHECKPOINT).exists():
            raise TrainingError(f"there is no checkpoint in {one_line(out)}; start without --resume")
    else:
        out.mkdir(parents=True, exist_ok=True)
        refuse_if_taken(out, 0)
    folders: list[HostFolder] = []
    notes: list[str] = []
    try:
        make_folders(names, folders, task, ssh, out if resume else None)
        remember(folders, out)
        _HostTraining(task=task, folders=folders, facts=facts, ssh=ssh, say=say, notes=notes).run(resume)
    finally:
        gather(folders, ssh, out, say)
        add_notes(out, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostTraining:
    """Starts all hosts, and again from the checkpoint if one of them fails."""

    task: HostTask
    folders: Sequence[HostFolder]
    facts: Sequence[HostFacts]
    ssh: Ssh
    say: Callable[[str], None]
    notes: list[str]  # for the run: what was lost

    def run(self, resume: bool) -> None:
        saved = self._saved()
        for start in range(self.task.restarts + 1):
            failed, stops = self._once(start, resume)
            stops.check()
            if not failed:
                return
            now = self._saved()
            cause = min(failed, key=lambda each: (not each.lost, not each.final, each.at))
            if cause.trace:
                self.say(cause.trace)
            if cause.final or now == saved or start == self.task.restarts:
                self.notes.append(cause.line)
                raise TrainingError(f"{cause.line}{cause.advice}")
            self.notes.append(f"{cause.line}; {RESTARTED}")
            self.say(self.notes[-1])
            saved, resume = now, True

    def _saved(self) -> str:
        """When the last checkpoint was written, by the host of rank 0; empty where there is none."""
        last = shlex.quote(f"{self.folders[0].path}/{RUN}/{LAST_CHECKPOINT}")
        return self.ssh.answer(self.folders[0].host, f"stat -c %.9Y {last}", CHECK_S)[1]

    def _once(self, start: int, resume: bool) -> tuple[list[FailedRank], StopRequests]:
        """One start of all hosts, until all have ended: those that failed, and the signals that came."""
        meeting = f"{self.facts[0].address}:{self.facts[0].ports[start]}"
        stops = _HostStops(self.say)
        with stops.listening():
            for number, (folder, facts) in enumerate(zip(self.folders, self.facts, strict=True)):
                node = Node(number=number, nodes=len(self.folders), address=facts.address, meeting=meeting)
                if not stops.times:
                    stops.running.append(self._started(folder, node, resume))
            _wait(stops.running)
        failed = [failure for process in stops.running if (failure := process.failure()) is not None]
        return failed, stops

    def _started(self, folder: HostFolder, node: Node, resume: bool) -> HostProcess:
        environment = [f"{key}={value}" for key, value in node.environment().items()]
        words = ["env", *environment, self.ssh.python, "-m", "laptime.training.launch.host_process"]
        words += [*self.task.arguments, "--workers", str(self.task.workers)]
        words += ["--resume"] if resume else []
        script = f"cd {shlex.quote(folder.path)} && exec {shlex.join(words)}"
        process = self.ssh.start(
            folder.host, script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return HostProcess(folder.host, process, self.say if node.number == 0 else lambda _: None)


class HostProcess:
    """A launcher on a host, at the other end of an ssh connection."""

    def __init__(self, host: str, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
        self.host = host
        self._process, self._say = process, say
        self._output = b""
        self._lines: deque[str] = deque(maxlen=20)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._listen)]
        for reader in self._readers:
            reader.start()

    @property
    def status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def tell(self, word: bytes) -> None:
        """Say something to the process on the host."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), word)  # unbuffered: a signal may come in between

    def cut(self) -> None:
        """End the connection."""
        self._process.kill()

    def failure(self) -> FailedRank | None:
        """Why its ranks failed; None if they did not. It has ended."""
        for reader in self._readers:
            reader.join()
        status = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        if status == 0:
            return None
        with suppress(ValueError):
            failed = build(FailedRank, parse_json(self._output))
            return replace(failed, line=f"{self.host}: {failed.line}")
        said = last_line(list(self._lines))
        if status == NO_CONNECTION or status < 0:  # ssh itself was killed
            line = f"the ssh connection to {self.host} broke ({said})"
            return FailedRank(line=line, final=True, lost=True)
        return FailedRank(line=f"{self.host} ended with status {status} ({said})")

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._output = self._process.stdout.read()

    def _listen(self) -> None:
        """Pass on what the host says, but for the line on its end, which is told with its cause."""
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            line = raw.decode("utf-8", "replace").rstrip()
            self._lines.append(line)
            if not line.startswith("laptime: "):
                self._say(line)


class _HostStops(StopRequests):
    """Hands every request to stop on to the hosts; the second one ends them at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.running: list[HostProcess] = []

    def _act(self) -> None:
        for process in self.running:
            process.tell(STOP if self.times == 1 else KILL)


def _wait(running: Sequence[HostProcess]) -> None:
    """Wait until all hosts have ended. When one fails, the others are given some time, then ended."""
    beaten = time.monotonic()
    failed: float | None = None
    while any(process.status is None for process in running):
        time.sleep(LOOK_S)
        now = time.monotonic()
        if failed is None and any(process.status not in (None, 0, *INTERRUPTED) for process in running):
            failed = now
        if now - beaten >= BEAT_S:
            beaten = now
            for process in running:
                process.tell(KILL if failed is not None and now - failed > FOLLOW_S else ALIVE)
        if failed is not None and now - failed > 2 * FOLLOW_S:  # out of reach
            for process in running:
                process.cut()
