"""Hosts that ssh reaches: their names, commands on them, and whether they can train. No torch here."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from laptime.errors import ConfigError, TrainingError
from laptime.files.parse import build, parse_json
from laptime.files.text import one_line

# A dead connection is noticed after 45 s. Nobody is asked for a password by many hosts at once.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15"
CHECK_S = 60.0  # for a host to answer: Python on a cold network disk takes its time
NO_CONNECTION = 255  # ssh's own status
_NO_COMMAND = (126, 127)  # a shell's

# Printed by the remote interpreter. A free port for each start: the one before may still be taken.
_ASK = """
import json, os, socket, sys
from importlib.metadata import PackageNotFoundError, version
def known(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
try:
    from laptime import __version__ as laptime
except ImportError:
    laptime = ""
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("", 0))
ports = [each.getsockname()[1] for each in sockets]
address = os.environ.get("SSH_CONNECTION", "").split()[2:3]
print(json.dumps(dict(laptime=laptime, torch=known("torch"), address="".join(address), ports=ports)))
"""
S = TypeVar("S")
T = TypeVar("T")


def read_hosts(text: str) -> list[str]:
    """The names in `a,b,c`, or in a file with one in each line and comments after `#`."""
    names = text.split(",")
    if Path(text).is_file():
        names = [line.partition("#")[0] for line in Path(text).read_text(encoding="utf-8").splitlines()]
    names = [name for name in map(str.strip, names) if name]
    if not names:
        raise ConfigError(
            f"--hosts {one_line(text)} names no host; give a,b,c or a file with a name in each line"
        )
    if wrong := [name for name in names if name.startswith("-") or not name.isprintable() or " " in name]:
        raise ConfigError(f"--hosts: {one_line(wrong[0])} is no name of a host")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--hosts names {twice[0]} twice; name it once and raise --workers")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How to reach hosts, and Python on them."""

    command: tuple[str, ...]
    python: str

    @classmethod
    def of(cls, command: str | None, python: str | None) -> Ssh:
        """With `--ssh` and `--python` as they were given."""
        return cls(command=tuple(shlex.split(command or SSH)), python=python or sys.executable)

    def options(self) -> list[str]:
        """As another command takes them."""
        return ["--ssh", shlex.join(self.command), "--python", self.python]

    def start(self, host: str, script: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a shell script on a host, out of reach of a terminal's Ctrl-C."""
        words = [*self.command, host, shlex.join(["sh", "-c", script])]
        try:
            return subprocess.Popen(words, start_new_session=True, **options)
        except OSError as error:
            raise TrainingError(
                f"{words[0]} cannot be started ({error.strerror}); install it, or give --ssh"
            ) from error

    def answer(self, host: str, script: str, limit_s: float) -> tuple[int, str, str]:
        """Status, output and errors of a script; a host that does not answer in time has ssh's status."""
        process = self.start(
            host, script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return NO_CONNECTION, "", f"no answer within {limit_s:g} s"
        return process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


# -- whether they can train ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host says of itself."""

    laptime: str
    torch: str
    address: str
    ports: tuple[int, ...]


def check_hosts(names: Sequence[str], ssh: Ssh, *, laptime: str, starts: int) -> list[HostFacts]:
    """Ask all hosts at once; raises in one line if any cannot train. `laptime` is the launcher's version."""

    def ask(name: str) -> HostFacts | str:
        script = shlex.join([ssh.python, "-c", _ASK, str(starts)])
        status, output, errors = ssh.answer(name, script, CHECK_S)
        said = last_line(errors.splitlines())
        if status == NO_CONNECTION:
            return (
                f"{name} cannot be reached by ssh ({said}); try `{shlex.join([*ssh.command, name, 'true'])}`"
            )
        if status in _NO_COMMAND:
            return f"{name} has no {ssh.python}; name its interpreter by --python"
        try:
            return build(HostFacts, parse_json(last_line(output.splitlines())))
        except ValueError:
            return f"{ssh.python} on {name} failed ({said}); name another interpreter by --python"

    answers = at_once(ask, names)
    lines = [_wrong(name, answer, laptime, ssh) for name, answer in zip(names, answers, strict=True)]
    wrong = [name for name, line in zip(names, lines, strict=True) if line]
    if wrong:
        others = f"; nor can {', '.join(wrong[1:])} train" if wrong[1:] else ""
        raise TrainingError(f"{next(filter(None, lines))}{others}")
    return [answer for answer in answers if isinstance(answer, HostFacts)]


def _wrong(name: str, answer: HostFacts | str, laptime: str, ssh: Ssh) -> str:
    """Why a host cannot train with the versions that this machine has; empty where it can."""
    if isinstance(answer, str):
        return answer
    if not answer.laptime:
        wanted = f"laptime {laptime}"
        return f"{name} has no laptime in {ssh.python}; install {wanted} there, or give --python"
    there = {"laptime": answer.laptime, "torch": answer.torch}
    if line := version_mismatch(name, there, laptime):
        return f"{line}, or name an interpreter that has it by --python"
    if not answer.address:
        return f"{name} does not tell its address: SSH_CONNECTION is not set there; use OpenSSH's server"
    return ""


def version_mismatch(name: str, there: Mapping[str, str], laptime: str) -> str:
    """A line on the first package that a machine has in another version than this one; empty if none."""
    for package, wanted in {"laptime": laptime, "torch": _installed("torch")}.items():
        has = there.get(package, "")
        # The build after `+`, for a CPU or a CUDA, may differ.
        if has.partition("+")[0] != wanted.partition("+")[0]:
            return f"{name} has {package} {has or '(none)'} and this machine {wanted}; install {wanted} there"
    return ""


def _installed(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


# -- helpers -------------------------------------------------------------------------------------------------


def at_once(call: Callable[[S], T], values: Sequence[S]) -> list[T]:
    """The results for all values, each in a thread of its own."""
    with ThreadPoolExecutor(max(1, len(values))) as threads:
        return list(threads.map(call, values))


def last_line(lines: Sequence[str]) -> str:
    """The last line that says something."""
    return next((one_line(line.strip())[:300] for line in reversed(lines) if line.strip()), "it said nothing")
