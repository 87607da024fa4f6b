"""How the work of a training is spread over devices: a plan, and the text that users write it as."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from laptime.errors import PlanError

Strategy = Literal["data", "sharded", "asynchronous", "mixed", "local", "model", "feature", "hybrid"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
SERVED: tuple[Strategy, ...] = ("asynchronous", "mixed")  # parameter servers update
MOST_WORKERS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy with its degrees. The degrees multiply to the workers: data × stages × feature.

    Expert parallelism divides the data-parallel ranks: each of `experts` ranks of them holds its own experts.
    """

    strategy: Strategy = "data"
    data: int = 1  # replicas, each with its own samples
    stages: int = 1  # of a pipeline
    feature: int = 1  # ranks that split a layer's features (tensor parallel)
    experts: int = 1  # ranks that split the experts of a layer
    sequence: bool = False  # split what is outside the split layers along the sequence (with feature)
    shards: int = 1  # ranks that share one copy of parameters, gradients and optimizer state
    state_shards: int = 1  # ranks that share the optimizer's state alone (ZeRO-1)
    schedule: Schedule = "1f1b"
    micro_batches: int = 1  # of a batch, with several stages
    chunks: int = 1  # stages of each rank, interleaved
    groups: int = 1  # of `mixed` and `local`: what is synchronous within itself; `local`, 1: each worker
    servers: int = 1
    staleness: int | None = None  # updates that a worker may be ahead of the slowest; None: any number
    average_every: int = 8  # updates, of `local`
    recompute: bool = False  # activations again in the backward pass
    gradient_bytes: int = 4  # of an element, as it is exchanged; autocast keeps gradients in float32
    parameter_bytes: int = 4  # likewise, of sharded parameters

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "staleness" else 1
            if type(field.default) is int or field.name == "staleness":
                if value is None and field.name == "staleness":
                    continue
                if type(value) is not int or not least <= value <= MOST_WORKERS:
                    raise PlanError(f"{field.name} is {value!r}; give a whole number from {least} up")
        if self.strategy not in STRATEGIES:
            raise PlanError(f"{self.strategy!r} is no strategy; {_nearest(self.strategy, STRATEGIES)}")
        if self.schedule not in SCHEDULES:
            raise PlanError(f"{self.schedule!r} is no schedule; {_nearest(self.schedule, SCHEDULES)}")
        if self.chunks > 1 and self.schedule != "interleaved":
            raise PlanError(f"chunks={self.chunks} needs schedule=interleaved")
        if self.schedule == "interleaved" and self.stages > 1:
            if self.chunks < 2:
                raise PlanError("schedule=interleaved needs chunks of at least 2; else use 1f1b")
            if self.micro_batches % self.stages:
                raise PlanError(
                    f"{self.stages} interleaved stages do not divide {self.micro_batches} micro-batches; "
                    f"give micro_batches={self.stages * math.ceil(self.micro_batches / self.stages)}"
                )
        if self.sequence and self.feature == 1:
            raise PlanError("sequence splits what the split layers leave whole; give feature of at least 2")
        if self.data % self.shards:
            raise PlanError(f"shards={self.shards} does not divide data={self.data}")
        if self.data % self.state_shards:
            raise PlanError(f"state_shards={self.state_shards} does not divide data={self.data}")
        if self.data % self.experts:
            raise PlanError(f"experts={self.experts} does not divide data={self.data}")
        if self.strategy in ("mixed", "local") and self.data % self.groups:
            raise PlanError(f"groups={self.groups} does not divide data={self.data}")
        if self.strategy == "sharded" and self.data > 1 and self.shards == 1:
            raise PlanError(f"sharded with shards=1 is data; give shards={self.data}, or strategy data")
        if self.strategy not in SERVED and (self.servers > 1 or self.staleness is not None):
            raise PlanError(f"servers and staleness are of {' and '.join(SERVED)}; leave them out")
        if self.strategy not in ("mixed", "local") and self.groups > 1:
            raise PlanError("groups are of mixed and local; leave them out")
        if not {self.gradient_bytes, self.parameter_bytes} <= {1, 2, 4, 8}:
            raise PlanError("gradient_bytes and parameter_bytes are 1, 2, 4 or 8 of an element")
        divided = [
            name
            for name in ("stages", "feature", "shards", "state_shards", "experts")
            if getattr(self, name) > 1
        ]
        if self.strategy in (*SERVED, "local") and divided:
            raise PlanError(
                f"{self.strategy} replicates the whole network; leave out {' and '.join(divided)}"
            )

    @property
    def workers(self) -> int:
        """Devices in all; parameter servers have their own hosts."""
        return self.data * self.stages * self.feature

    @property
    def exact(self) -> bool:
        """Whether losses are those of one process on the same batches."""
        if self.strategy in SERVED:
            return self.staleness == 0
        return self.strategy != "local"

    def describe(self) -> str:
        """As users write it: `data=8,stages=4,schedule=1f1b`."""
        said: list[str] = [self.strategy]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "strategy" and value != field.default:
                said.append(field.name if value is True else f"{field.name}={value}")
        return ",".join(said)

    @classmethod
    def of(cls, text: str, *, workers: int | None = None) -> Plan:
        """From `data`, `model,stages=4,data=2` and the like; what is left of `workers` is data parallel."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            raise PlanError("the plan is empty; give a strategy, such as data or model,stages=4")
        given = _read(words)
        strategy = given.setdefault("strategy", "data")
        if workers is not None and strategy in STRATEGIES:
            _complete(given, workers)
        if given.get("stages", 1) > 1:
            given.setdefault("micro_batches", 2 * given["stages"])
        if strategy == "sharded":
            given.setdefault("shards", given.get("data", 1))
        if strategy == "mixed":  # as `laptime train` does: each rank is a group
            given.setdefault("groups", given.get("data", 1))
        plan = cls(**given)
        if workers is not None and plan.workers != workers:
            degrees = f"data {plan.data} × stages {plan.stages} × feature {plan.feature}"
            raise PlanError(f"{degrees} = {plan.workers} workers, and {workers} are given; change a degree")
        return plan

    def document(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _read(words: list[str]) -> dict[str, Any]:
    known = {field.name: field for field in fields(Plan)}
    given: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in STRATEGIES and "strategy" not in given:
            given["strategy"] = name
            continue
        if name not in known:
            raise PlanError(f"{name!r} is no part of a plan; {_nearest(name, (*known, *STRATEGIES))}")
        if name in given:
            raise PlanError(f"{name} is given twice; leave one out")
        default = known[name].default
        if isinstance(default, bool):
            if equals and value not in ("true", "false"):
                raise PlanError(f"{name} is {value!r}; write {name} or leave it out")
            given[name] = value != "false"
        elif isinstance(default, str):
            given[name] = value
        elif name == "staleness" and value in ("any", "none"):
            given[name] = None
        else:
            if not re.fullmatch(r"-?[0-9]{1,9}", value):
                raise PlanError(f"{name} is {value[:40]!r}; give a whole number, as in {name}=4")
            given[name] = int(value)
    return given


# The degree that a strategy gives all workers to where none is said.
_WHOLE: Mapping[str, str] = {"model": "stages", "feature": "feature"}


def _complete(given: dict[str, Any], workers: int) -> None:
    """Give what the named degrees leave of the workers to the strategy's own degree, else to data."""
    if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
        raise PlanError(f"workers is {workers!r}; give a whole number from 1 to {MOST_WORKERS:,}")
    own = _WHOLE.get(given["strategy"])
    if given["strategy"] == "hybrid" and "stages" not in given and "feature" not in given:
        given["stages"] = 2
    missing = own if own is not None and own not in given else "data"
    if missing not in given:
        named = math.prod(given.get(name, 1) for name in ("data", "stages", "feature"))
        if named < 1 or workers % named:
            raise PlanError(f"{workers} workers cannot be divided by {named}; change a degree or the workers")
        given[missing] = workers // named


def with_workers(plan: Plan, workers: int) -> Plan:
    """The same plan on more or fewer replicas."""
    others = plan.stages * plan.feature
    if workers % others:
        raise PlanError(f"{workers} workers cannot be divided by {others}; change a degree or the workers")
    data = workers // others
    return replace(plan, data=data, shards=data if plan.shards == plan.data else plan.shards)


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
