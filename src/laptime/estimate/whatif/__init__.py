"""Data of the prediction page: one question, one strict-JSON document.

Every number equals that of `laptime predict` for the same network, device, batch and GPUs, except where
what-if factors (`whatif.factors`) apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from laptime.errors import LaptimeError, PredictionError
from laptime.estimate import device_speed
from laptime.estimate.largest_batch import START
from laptime.estimate.whatif.memory import memory_timeline
from laptime.estimate.whatif.parts import Subject, answered, ordered, predictions
from laptime.estimate.whatif.question import DOZEN, FACTORS, LIMITS, Question
from laptime.estimate.whatif.steps import at_batch, read_once
from laptime.estimate.whatif.training import Asked, asked, step_on
from laptime.files.text import first_line
from laptime.files.write import plain
from laptime.hardware import Device
from laptime.model import Workload
from laptime.runs import Run

__all__ = ["DOZEN", "FACTORS", "LIMITS", "Question", "ask"]

Read = Callable[[int, str], Workload]


def ask(
    workload: Workload, question: Question, *, read: Read | None = None, run: Run | None = None
) -> dict[str, Any]:
    """The answer to a question, as the page shows it.

    read  a network's workload by batch and precision, read anew for the asked one; else it is rescaled
    run   what it took corrects every prediction; `workload` is then its own
    Hand in the same objects for the same network: what was prepared is kept by identity.
    """
    subject = _subject(workload, question, read)
    common = asked(question, workload, run)
    devices, unknown = _devices(question, common)
    made, failed = predictions(common, subject, devices)
    ranked = ordered(question, made)
    shown = _shown(question, ranked, devices, in_order=bool(question.devices) or run is not None)
    timeline = None
    if shown is not None:
        timeline = memory_timeline(step_on(common, subject.workload, devices[shown]), made[shown])
    told: dict[str, Any] = {
        "question": question.document()
        | {"batch": subject.workload.batch, "precision": subject.workload.precision},
        "network": workload.network,
        "mode": workload.mode,
        "shown": shown,
        **answered(common, subject, devices, ranked, shown),
        "memory_timeline": timeline,
        "baseline": None,
    }
    if question.imagines:
        as_it_is = common.as_it_is()
        before, _ = predictions(as_it_is, subject, devices)
        kept = {name: before[name] for name in ranked if name in before}
        told["baseline"] = answered(as_it_is, subject, devices, kept, shown if shown in kept else None)
    told["rows"] += [*failed, *unknown]
    document: dict[str, Any] = plain(told)
    return document


def _subject(workload: Workload, question: Question, read: Read | None) -> Subject:
    batch = question.batch or workload.batch
    precision = question.precision or workload.precision
    if read is not None:

        def at(size: int) -> Workload:
            given = (size, precision) == (workload.batch, workload.precision)
            return workload if given else read_once(read, size, precision)

        # The curve is made from the same batch wherever the asked one goes, so that its points can be kept.
        return Subject(workload=at(batch), base=at(workload.batch if workload.batch > 1 else START))
    if precision != workload.precision:
        raise PredictionError(
            f"precision is {precision}, but this step was read in {workload.precision}; give that, or name "
            "the network instead"
        )
    return Subject(workload=at_batch(workload, batch), base=workload if workload.batch > 1 else None)


def _devices(question: Question, common: Asked) -> tuple[dict[str, Device], list[dict[str, Any]]]:
    """Devices by name, and error rows for unknown names."""
    own = common.correction.device if common.correction is not None else None
    names: Sequence[str | Device] = question.devices or (*([own] if own is not None else []), *DOZEN)
    devices, failed = {}, []
    for name in names:
        try:
            device = device_speed.device(name)
            devices[device.name] = device
        except LaptimeError as error:
            failed.append({"device": str(name), "title": None, "error": first_line(error)})
    return devices, failed


def _shown(
    question: Question, ranked: Mapping[str, Any], found: Mapping[str, Device], *, in_order: bool
) -> str | None:
    """Whose details: as asked; else the first that was named, a run's own, or the first of the rows."""
    if question.shown is not None:
        with suppress(LaptimeError):
            name = device_speed.device(question.shown).name
            if name in ranked:
                return name
    return next((name for name in (found if in_order else ranked) if name in ranked), None)
