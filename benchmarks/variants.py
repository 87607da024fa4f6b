"""The instruments that take turns: none, laptime twice, torch.profiler, DeepSpeed's flops profiler."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

import laptime
from benchmarks.networks import Workload


class Bare:
    """No instrument."""

    name = "bare"

    def attach(self) -> None:
        pass

    def detach(self) -> None:
        pass

    def each(self, batches: Iterable[Any]) -> Iterable[Any]:
        return batches


class Laptime:
    """A new recording per block, since only one may be active in a process. Its summaries are kept."""

    def __init__(self, work: Workload, root: Path, *, every_step: bool) -> None:
        self.name = "every_step" if every_step else "budget"
        self._work, self._root, self._every_step = work, root, every_step
        self.runs: list[laptime.Run] = []

    def attach(self) -> None:
        out = self._root / f"{self.name}-{len(self.runs)}"
        self._recording = laptime.record(
            self._work.network, self._work.optimizer, out=out, every_step=self._every_step
        )
        self._recording.start()

    def detach(self) -> None:
        self._recording.stop()
        self.runs.append(self._recording.run)

    def each(self, batches: Iterable[Any]) -> Iterable[Any]:
        return self._recording.steps(batches)


class TorchProfiler:
    """torch.profiler with its defaults. Working out its tables is left out: only the steps are timed."""

    name = "torch_profiler"

    def __init__(self, *, cuda: bool) -> None:
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])

    def attach(self) -> None:
        self._profiler = profile(activities=self._activities)
        self._profiler.start()

    def detach(self) -> None:
        self._profiler.stop()

    def each(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            self._profiler.step()


class DeepSpeedFlops:
    """DeepSpeed's flops profiler, which times the forward pass module by module."""

    name = "deepspeed"

    def __init__(self, work: Workload) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        from deepspeed.profiling.flops_profiler import FlopsProfiler

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        self._profiler = FlopsProfiler(work.network)

    @staticmethod
    def installed() -> bool:
        """Whether `make bench` has put it there."""
        return importlib.util.find_spec("deepspeed") is not None

    def attach(self) -> None:
        self._profiler.start_profile()

    def detach(self) -> None:
        self._profiler.end_profile()

    def each(self, batches: Iterable[Any]) -> Iterable[Any]:
        return batches
