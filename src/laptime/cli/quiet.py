"""Keeps torch's own chatter off the terminal. Of use only before torch is imported."""

from __future__ import annotations

import os


def quiet_traces() -> None:
    """Kineto announces the start and the end of every trace."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def quiet_torch() -> None:
    """The allocator, too, warns of every block that is older than a trace."""
    quiet_traces()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
