"""Run by Python at its start, in bare and in recorded processes alike: seeds, operators, a stopwatch.

- torchvision has no CPU build for every torch; its Python half imports once two operators are defined.
- Seeds, so that a script that sets none still repeats.
- At every optimizer update, wall and processor time go to `$WITNESS_FOLDER/<process id>`: an account of the
  updates that does not come from laptime, and step times of the bare run.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("WITNESS_FOLDER")
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class AfterTorch(MetaPathFinder):
    """Finds torch as Python would, and has `prepare` run when it has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for torch alone; libraries ask whether it is there before they import it."""
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_prepare(module: ModuleType) -> None:
                sys.meta_path.remove(self)
                execute(module)
                prepare()

            spec.loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec


def prepare() -> None:
    """Set seeds, define torchvision's operators, start the stopwatch."""
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(operator)
    LIBRARIES.append(library)  # its operators go when it does
    register_optimizer_step_post_hook(note_update)


LIBRARIES: list[Any] = []
_files: dict[int, int] = {}


def note_update(*_: Any) -> None:
    """Append the times of an update; unbuffered, since a child process may end without a word."""
    process = os.getpid()
    if process not in _files:
        path = f"{FOLDER}/{process}"
        _files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[process], struct.pack("dd", time.monotonic(), time.process_time()))


if FOLDER:
    sys.meta_path.insert(0, AfterTorch())
