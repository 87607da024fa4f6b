"""A page worked through as its reader would: files are written, commands run, one after another in a folder.

The remark above a block says what is not plain:

    <!-- file: train.py -->                 the block is saved under that name
    <!-- not run: it installs torch -->     left out, and why
    <!-- runs for ever: ... -->             started, asked for its page, and stopped
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.blocks import Block, Command, blocks, commands
from tools.likeness import compare

WIDTH = 96  # of the outputs in docs/, so that a page shows them without scrolling


class CommandFailed(AssertionError):
    """A command of the page ended with another status than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that was run, and its output in place of the page's."""

    command: Command
    output: list[str]


def work_through(page: Path, folder: Path) -> Iterator[Done]:
    """Do what the page says, in `folder`; Unlike and CommandFailed where it does not go as the page says."""
    for block in blocks(page):
        if block.after("not run") is not None:
            continue
        if name := block.after("file"):
            (folder / name).write_text(block.text, "utf-8")
        elif block.language == "python":
            _run([sys.executable, "-c", block.text], folder)
        elif block.language == "console":
            yield from _console(block, folder)


def _console(block: Block, folder: Path) -> Iterator[Done]:
    for command in commands(block):
        if block.after("runs for ever") is not None:
            output = _served(f"exec {command.text} --port 0", folder)  # another port: 8765 may be in use here
            compare(command.output, output.splitlines())
            yield Done(command=command, output=list(command.output))
        else:
            output = _run(["bash", "-c", command.text], folder)
            yield Done(command=command, output=compare(command.output, output.splitlines()))


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandFailed(f"{command[-1]}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _served(command: str, folder: Path) -> str:
    """What a server printed, once its first page has come."""
    server = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    printed = ""
    try:
        for line in server.stdout:
            printed += line
            if address := re.search(r"http://\S+", line):
                with urllib.request.urlopen(address[0], timeout=30) as page:
                    if b"<html" not in page.read():
                        raise CommandFailed(f"{command}: no page at {address[0]}")
                break
        else:
            raise CommandFailed(f"{command}\nnamed no address:\n{printed}")
    finally:
        server.send_signal(signal.SIGINT)
        rest, _ = server.communicate(timeout=30)
    return printed + rest


def _environment(folder: Path) -> dict[str, str]:
    # One thread, this width and no calibration of this machine, so that outputs look the same wherever they
    # are made; unbuffered, so that a script's lines and ours keep the order that a terminal shows.
    here = Path(sys.executable).parent
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LAPTIME", "PYTEST"))},
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "XDG_DATA_HOME": str(folder / ".data"),
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
