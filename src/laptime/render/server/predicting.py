"""The prediction page's questions: which network, run or saved workload, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from laptime import hardware
from laptime.errors import PredictionError
from laptime.estimate.run_correction import workload_of
from laptime.estimate.whatif import DOZEN, FACTORS, LIMITS, PRECISIONS, Question, ask
from laptime.files.text import one_line
from laptime.model import Workload
from laptime.render.server.index import Index
from laptime.render.server.listing import predictable
from laptime.render.server.pages import tag
from laptime.runs import Run, load

Read = Callable[[int, str], Workload]
Networks = Mapping[str, Read]

SUBJECTS = ("network", "run", "workload")
# What a network is read with. Other batches are made from it, within 0.005 % of reading each (resnet50 and
# googlenet at 256), so that a slider does not wait for seconds.
BATCH = 32
_KEPT_RUNS = 8
_KEPT_READINGS = 12  # batches and precisions of one network


class Predicting:
    """Answers questions one at a time: the next one finds most of its work done by the one before."""

    def __init__(self, index: Index, networks: Networks | None) -> None:
        self._index = index
        self._networks = networks
        self._loaded = lru_cache(_KEPT_RUNS)(_loaded)
        self._reads: dict[str, Read] = {}  # the same object each time: `ask` keeps its work by it

    def form(self) -> dict[str, Any]:
        """What the page's fields and sliders are made of; runs come newest first."""
        listed = [(entry.run(), entry.name) for entry in self._index.entries()]
        runs = [(run.created, name) for run, name in listed if run is not None and predictable(run)]
        runs.sort(key=lambda run: run[0], reverse=True)
        return {
            "subjects": {"run": [name for _, name in runs], "workload": self._index.workloads()},
            "precisions": PRECISIONS,
            "limits": dict(LIMITS),
            "factors": dict(FACTORS),
            "usual": DOZEN,
            "devices": [(device.name, device.title, device.kind) for device in hardware.devices()],
        }

    def networks(self) -> list[str] | None:
        """The networks that can be read; None without torch. The first time this imports it."""
        return None if self._networks is None else list(self._networks)

    def answer(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What `whatif.ask` says; an error in one line where the question cannot be answered."""
        given = {name: query[name] for name in SUBJECTS if query.get(name)}
        if len(given) != 1:
            raise PredictionError("give one network, run or workload to predict")
        question = Question.of({key: value for key, value in query.items() if key not in SUBJECTS})
        [(kind, name)] = given.items()
        workload: Workload | None = None
        run = None
        if kind == "run":
            entry = self._index.find(name)
            if entry is not None:
                run, workload = self._loaded(entry.path, tag("predict", [entry]))
        elif kind == "workload":
            workload = self._index.workload(name)
        elif self._networks is None:
            raise PredictionError("no network can be read without torch; choose a run or a saved workload")
        elif name in self._networks:
            if name not in self._reads:
                self._reads[name] = lru_cache(_KEPT_READINGS)(self._networks[name])
            workload = self._reads[name](BATCH, question.precision or PRECISIONS[0])
        if workload is None:
            raise PredictionError(f"no {kind} is called {one_line(name)[:80]!r}; choose one of the list")
        return {"kind": kind, "name": name, **ask(workload, question, run=run)}


def _loaded(path: Path, _state: str) -> tuple[Run, Workload]:
    run = load(path)
    return run, workload_of(run)
