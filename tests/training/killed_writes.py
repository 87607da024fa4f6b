"""A parent that forks small trainings and kills each at a chosen write: run by test_killed_writes.py.

Usage: killed_writes.py FOLDER POINTS. A training calls `os.fsync`, `os.replace`, `os.link` and `os.unlink` in
an order that hardly changes; a first one, never killed, counts them. Then POINTS more are killed with SIGKILL
just before a call, spread evenly over all of them (0: each), and gone on with from their checkpoint; every
third is killed once more on its way. Forked from a parent that has trained once, on one thread: starting
Python, and what torch loads with its first step, take longer than all of this.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
from tests.training.test_loop import configured, training

from laptime.runs import load, parts
from laptime.training import checkpoint

CALLS = ("fsync", "replace", "link", "unlink")


def config():
    return configured(checkpoint={"every_steps": 2, "best": False})


class Kill:
    """Counts the calls for files of a run, notes what each is about, and dies before number `at`."""

    def __init__(self, out, at=None):
        self.out, self.at, self.seen = str(out), at, []
        for name in CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name, original):
        def call(target, *args, **kwargs):
            path = os.readlink(f"/proc/self/fd/{target}") if name == "fsync" else (args or [target])[0]
            path = os.fsdecode(path)
            if path.startswith(self.out):
                if len(self.seen) == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.seen.append(f"{name} {Path(path).name}")
            return original(target, *args, **kwargs)

        return call


def child(work, *args):
    """The status of a fork that does `work`: 0, 1 after an error, or that of the signal that ended it."""
    process = os.fork()
    if process == 0:
        try:
            work(*args)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def train(out, at, resume, note=None):
    kill = Kill(out, at)
    made = training(out, config(), resume=resume)
    if not (resume and made.done and load(out).status == "finished"):
        made.run()
    if note is not None:
        note.write_text(json.dumps(kill.seen))


def go_on(out, at):
    """As somebody would after a kill: from the checkpoint, or anew where there is no run yet."""
    saved = (out / checkpoint.LAST).exists()
    if not saved and (out / "run.json").exists():
        return None  # nothing to go on from
    return child(train, out, at, saved)


def main(folder, points):
    torch.set_num_threads(1)
    parts.FAN = 3  # merge often
    training(folder / "whole", config()).run()
    note = folder / "calls.json"
    assert child(train, folder / "counted", None, False, note) == 0
    calls = json.loads(note.read_text())
    points = points or len(calls)
    for number in range(points):
        at = number * len(calls) // points
        out = folder / f"killed-{at}"
        found = {"out": str(out), "at": calls[at], "statuses": [child(train, out, at, False)]}
        if number % 3 == 0:
            found["statuses"].append(go_on(out, at % 40 + 10))
        found["complete"] = (out / "run.json").exists() and load(out).status == "finished"
        found["tried"] = go_on(out, None)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
