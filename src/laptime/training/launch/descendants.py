"""Every process that this one has started, directly or not: they can be ended for certain. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_descendants() -> None:
    """From now on, processes whose parent has died become children of this one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants() -> None:
    """Kill every child; theirs become ours, until there are none."""
    with suppress(ChildProcessError):  # there are none
        while True:
            for threads_children in Path("/proc/self/task").glob("*/children"):
                for process in threads_children.read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(process), signal.SIGKILL)
            os.waitpid(-1, 0)
