"""The prediction page's questions: which network, run or saved workload, and what is asked of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from threading import Lock
from typing import Any

from laptime import hardware
from laptime.errors import PredictionError, WorkloadError
from laptime.estimate.measured_step import workload_of
from laptime.estimate.whatif import DOZEN, FACTORS, LIMITS, Question, ask
from laptime.estimate.whatif.question import PRECISIONS
from laptime.files.text import one_line
from laptime.model import Workload
from laptime.render.server.index import Index
from laptime.render.server.listing import created_s, predictable
from laptime.render.server.live import tag
from laptime.render.server.saved import Saved
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
        self._saved = Saved(index.folder)
        self._runs: OrderedDict[str, tuple[Run, Workload]] = OrderedDict()
        self._reads: dict[str, Read] = {}  # the same object each time: `ask` keeps its work by it
        self._lock = Lock()

    def at_once(self) -> dict[str, list[str]]:
        """The runs, newest first, and workloads that can be predicted: told without torch."""
        listed = [(entry.run(), entry.name) for entry in self._index.entries()]
        runs = [(created_s(run), name) for run, name in listed if run is not None and predictable(run)]
        runs.sort(key=lambda run: run[0], reverse=True)
        return {"run": [name for _, name in runs], "workload": list(self._saved.files())}

    def networks(self) -> list[str] | None:
        """The networks that can be read; None without torch. The first time this imports it."""
        with self._lock:
            return None if self._networks is None else list(self._networks)

    def answer(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What `whatif.ask` says; an error in one line where the question cannot be answered."""
        given = {name: query[name] for name in SUBJECTS if query.get(name)}
        if len(given) != 1:
            raise PredictionError("give one network, run or workload to predict")
        question = Question.of({key: value for key, value in query.items() if key not in SUBJECTS})
        [(kind, name)] = given.items()
        with self._lock:
            prediction = getattr(self, f"_of_{kind}")(name, question)
        return {"kind": kind, "name": name, **prediction}

    def _of_network(self, name: str, question: Question) -> dict[str, Any]:
        if self._networks is None:
            raise PredictionError("no network can be read without torch; choose a run or a saved workload")
        if name not in self._networks:
            raise PredictionError(f"no network is called {one_line(name)[:80]!r}; choose one of the list")
        if name not in self._reads:
            self._reads[name] = lru_cache(_KEPT_READINGS)(self._networks[name])
        read = self._reads[name]
        workload = read(BATCH, question.precision or PRECISIONS[0])
        try:
            return ask(workload, question)
        except WorkloadError:  # what grows with its batch cannot be told from one reading
            return ask(workload, question, read=read)

    def _of_run(self, name: str, question: Question) -> dict[str, Any]:
        entry = self._index.find(name)
        if entry is None:
            raise PredictionError(f"no run is called {one_line(name)[:80]!r}; choose one of the list")
        seal = tag("predict", [entry])
        if seal not in self._runs:
            run = load(entry.path)
            self._runs[seal] = run, workload_of(run)
            while len(self._runs) > _KEPT_RUNS:
                self._runs.popitem(last=False)
        run, workload = self._runs[seal]
        return ask(workload, question, run=run)

    def _of_workload(self, name: str, question: Question) -> dict[str, Any]:
        workload = self._saved.load(name)
        if workload is None:
            raise PredictionError(f"no workload is called {one_line(name)[:80]!r}; choose one of the list")
        return ask(workload, question)


def form() -> dict[str, Any]:
    """What the page's fields and sliders are made of."""
    return {
        "precisions": PRECISIONS,
        "limits": dict(LIMITS),
        "factors": dict(FACTORS),
        "usual": DOZEN,
        "devices": [(device.name, device.title, device.kind) for device in hardware.devices()],
    }
