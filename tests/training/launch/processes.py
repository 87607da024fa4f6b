"""Trainings as commands whose processes can be found, stopped and killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

MARK = "LAPTIME_TEST"  # in the environment of all that a command starts


def start(folder, text, *options, stderr=subprocess.PIPE):
    """`laptime train` of a configuration, with its run in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.toml").write_text(text)
    command = [sys.executable, "-m", "laptime", "train", str(folder / "a.toml")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [*command, "--out", str(folder / "run"), *options],
        env=environment | {MARK: str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
    )


def processes_of(folder):
    """Processes that the command in a folder has started, directly or not: their environments, by id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if line and f"{MARK}={folder}".encode() in words:  # without a line it has ended
            environment = dict(word.decode("utf-8", "replace").partition("=")[::2] for word in words)
            found[int(process.name)] = environment | {"line": line.replace(b"\0", b" ").decode()}
    return found


def left_of(folder):
    """The command lines of a command's processes."""
    return [environment["line"] for environment in processes_of(folder).values()]


def ranks_of(folder):
    """The processes of the ranks of a training, by rank."""
    found = {}
    for process, told in processes_of(folder).items():
        group = int(told.get("LAPTIME_GROUP", "-1"))
        if "-m laptime train" not in told["line"]:
            continue
        if "RANK" in told:
            found[max(group, 0) * int(told["WORLD_SIZE"]) + int(told["RANK"])] = process
        elif group >= 0 and "--workers 1" in told["line"]:  # else the launcher of a group's ranks
            found[group] = process
    return found


def wait_until(true, seconds):
    """What is true in the end: whether it became so in time."""
    until = time.monotonic() + seconds
    while not (result := true()) and time.monotonic() < until:
        time.sleep(0.1)
    return result
