"""Keeps torch's own chatter off the terminal."""

from __future__ import annotations

import os


def quiet_torch() -> None:
    """Kineto announces every trace, and the allocator every block older than it. Before torch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
