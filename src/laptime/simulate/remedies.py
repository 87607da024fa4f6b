"""The largest loss of a simulated step, and plans beside it that were simulated to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from laptime.errors import HardwareError, PlanError
from laptime.model import Account
from laptime.model.plan import SERVED, Plan
from laptime.simulate.training import Simulation

LossKind = Literal["memory", "communication", "bubbles", "slow ranks", "slower devices", "data", "none"]

WORTH = 0.05  # of a step, from which a loss is worth a remedy
GAIN = 0.02  # of the time of a sample, from which a plan is called faster
MOST_TRIED = 5
MOST_TOLD = 2

Again = Callable[[Plan, int], Simulation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What takes most of a step beside computing; or the memory, where that is not enough."""

    kind: LossKind
    seconds: float  # of the mean step
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRemedy:
    """A neighbouring plan that was simulated to be faster, or to fit where this one does not."""

    change: str  # as users write it: `micro_batches=16`
    plan: Plan
    batch: int
    step_s: float
    samples_per_s: float
    saves: float  # share of the time of a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The largest loss with what helps, the best first."""

    loss: Loss
    remedies: tuple[PlanRemedy, ...]
    tried: int  # neighbouring plans


def mean_accounts(simulation: Simulation) -> dict[Account, float]:
    """Seconds of the mean step over all stages. They add up: waits for servers and averages included."""
    seconds = simulation.shares()
    rest = simulation.step_s - sum(seconds.values())
    seconds[Account.COMMUNICATION] = seconds.get(Account.COMMUNICATION, 0.0) + max(0.0, rest)
    return {account: seconds[account] for account in Account if seconds.get(account)}


def largest_loss(simulation: Simulation) -> Loss:
    """Memory that is missing comes before time that is lost."""
    if simulation.fits is False:
        return Loss(kind="memory", seconds=0.0, share=0.0)
    accounts = mean_accounts(simulation)
    lost: dict[LossKind, float] = {
        "communication": accounts.get(Account.COMMUNICATION, 0.0) - simulation.waiting_s,
        "bubbles": accounts.get(Account.IDLE, 0.0),
        "slow ranks": simulation.waiting_s,
        "slower devices": simulation.uneven_s,
        "data": simulation.data_wait_s,
    }
    kind, seconds = max(lost.items(), key=lambda pair: pair[1])
    share = seconds / simulation.step_s
    return Loss(kind=kind if share >= WORTH else "none", seconds=seconds, share=share)


def diagnose(simulation: Simulation, again: Again) -> Diagnosis:
    """Simulate a few neighbours of a plan that could shorten its largest loss; `again` simulates one."""
    loss = largest_loss(simulation)
    found: list[PlanRemedy] = []
    tried = 0
    for change, plan, batch in _candidates(simulation, loss.kind):
        if tried == MOST_TRIED:
            break
        try:
            made = again(plan, batch)
        except (PlanError, HardwareError):
            continue  # such as features of a network without linear layers
        tried += 1
        saves = 1 - simulation.samples_per_s / made.samples_per_s
        if made.fits is not False and (saves >= GAIN or loss.kind == "memory"):
            found.append(
                PlanRemedy(
                    change=change,
                    plan=plan,
                    batch=batch,
                    step_s=made.step_s,
                    samples_per_s=made.samples_per_s,
                    saves=saves,
                )
            )
    found.sort(key=lambda remedy: -remedy.saves)
    return Diagnosis(loss=loss, remedies=tuple(found[:MOST_TOLD]), tried=tried)


def _candidates(simulation: Simulation, kind: LossKind) -> Iterator[tuple[str, Plan, int]]:
    """Plans on the same devices, each with what is changed."""
    plan, batch = simulation.plan, simulation.batch
    changes = {"memory": _smaller, "communication": _quieter, "bubbles": _fuller}.get(kind)
    for change in changes(simulation) if changes else ():
        samples = change.pop("batch", batch)
        words = dict(change)
        if "shards" not in change and plan.shards > 1 and "data" in change:
            if plan.shards == plan.data:
                change["shards"] = change["data"]
            elif change["data"] % plan.shards:
                continue
        try:
            made = replace(plan, **change)
        except PlanError:
            continue
        if samples != batch:
            words["batch"] = samples
        words.pop("data", None)  # what is left of the workers
        yield ",".join(_word(name, value) for name, value in words.items()), made, samples


def _word(name: str, value: Any) -> str:
    return name if value is True else f"{name}={value}"


def _smaller(simulation: Simulation) -> Iterator[dict[str, Any]]:
    plan = simulation.plan
    if plan.shards < plan.data and plan.strategy not in (*SERVED, "local"):
        yield {"shards": plan.data}
    if not plan.recompute:
        yield {"recompute": True}
        if plan.shards < plan.data and plan.strategy not in (*SERVED, "local"):
            yield {"shards": plan.data, "recompute": True}
    if plan.data % 2 == 0 and plan.strategy not in (*SERVED, "local"):
        yield {"feature": 2 * plan.feature, "data": plan.data // 2}
        stages = 2 * plan.stages
        if plan.schedule != "interleaved":
            micro = max(plan.micro_batches, 2 * stages)
            batch = micro * -(-simulation.batch // micro)
            yield {"stages": stages, "data": plan.data // 2, "micro_batches": micro, "batch": batch}


def _quieter(simulation: Simulation) -> Iterator[dict[str, Any]]:
    plan, room = simulation.plan, simulation.cluster.devices_per_node
    if plan.strategy in SERVED:
        yield {"servers": 2 * plan.servers}
        yield {"batch": 2 * simulation.batch}
        return
    if plan.feature % 2 == 0:
        yield {"feature": plan.feature // 2, "data": plan.data * 2}
    beside = max(1, room // plan.feature)
    if plan.shards > beside > 1 and plan.data % beside == 0:
        yield {"shards": beside}
    yield {"batch": 2 * simulation.batch}
    if plan.gradient_bytes > 2:
        yield {"gradient_bytes": 2}
    if plan.feature == 1 and room >= 4 and plan.data % 4 == 0 and plan.strategy != "local":
        yield {"feature": 4, "data": plan.data // 4}


def _fuller(simulation: Simulation) -> Iterator[dict[str, Any]]:
    plan, batch = simulation.plan, simulation.batch
    micro = 2 * plan.micro_batches
    if batch % micro == 0:
        yield {"micro_batches": micro}
    else:
        yield {"micro_batches": micro, "batch": 2 * batch}
    if plan.schedule in ("gpipe", "1f1b"):
        yield {"schedule": "zero_bubble"}
        if plan.micro_batches % plan.stages == 0:
            yield {"schedule": "interleaved", "chunks": 2}
    if plan.stages % 2 == 0 and plan.schedule != "interleaved":
        yield {"stages": plan.stages // 2, "data": plan.data * 2}
