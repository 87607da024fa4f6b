"""What runs on a host of `laptime train --hosts`: `python -m laptime.training.launch.host_process ARGUMENTS`.

It runs `laptime ARGUMENTS…` and listens on standard input to the launcher at the other end of the ssh
connection. When that says so, or falls silent, everything that was started here ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from laptime.training.launch.descendants import adopt_descendants, kill_descendants
from laptime.training.stop_signals import CHILD, CLOSING_S

ALIVE, STOP, KILL = b".", b"s", b"k"  # what a launcher says
SILENT_S = 60.0  # without a word: the connection is broken, though nobody said so
LOOK_S = 0.1


def main() -> None:
    """Run the command; its status is this process's."""
    adopt_descendants()
    child = subprocess.Popen(
        [sys.executable, "-m", "laptime", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # What a killed process leaves behind is removed with the host's folder.
        env={**os.environ, CHILD: str(os.getpid()), "TMPDIR": os.getcwd()},
    )
    try:
        status = _watched(child)
    finally:
        kill_descendants()
    sys.exit(status if status >= 0 else 128 - status)


def _watched(child: subprocess.Popen[bytes]) -> int:
    """The status of the child, which ends when the launcher says so or is gone."""
    heard, asked = time.monotonic(), 0.0
    listening = [sys.stdin.fileno()]
    while (status := child.poll()) is None:
        ready = select.select(listening, [], [], LOOK_S)[0]
        said = os.read(ready[0], 4096) if ready else None
        now = time.monotonic()
        heard = now if said else heard
        gone = said == b"" or now - heard > SILENT_S
        listening = [] if gone else listening
        if not asked and (gone or (said and STOP in said)):
            child.terminate()
            asked = now
        if (said and KILL in said) or (asked and now - asked > CLOSING_S):
            kill_descendants()
            return -signal.SIGKILL
    return status


if __name__ == "__main__":
    main()
