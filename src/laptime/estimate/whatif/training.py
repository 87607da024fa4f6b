"""The prediction for a question: several GPUs, run correction, data loading, price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from laptime import hardware
from laptime.estimate.dataflow_step import Fed, Feed, feed, waited
from laptime.estimate.measured_step import device_of, measured_step, told_device
from laptime.estimate.predict import predict_all
from laptime.estimate.run_correction import CPU_PIECES, Correction, correct, refined
from laptime.estimate.whatif.factors import AS_IT_IS, Factors, exchanged, said
from laptime.estimate.whatif.question import Question
from laptime.estimate.whatif.steps import DeviceStep, Same, timed
from laptime.hardware import Device
from laptime.model import Workload
from laptime.model.prediction import Prediction
from laptime.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every prediction of an answer has in common."""

    question: Question
    correction: Correction | None = None  # of a run
    on_cpu: bool = False  # where the run was

    @property
    def factors(self) -> Factors:
        """What is imagined of the machine."""
        given = self.question
        return Factors(compute=given.compute, bandwidth=given.bandwidth, link=given.link, host=given.host)

    def as_it_is(self) -> Asked:
        """The same without anything imagined."""
        plain = {name: getattr(AS_IT_IS, name) for name in AS_IT_IS.__slots__}
        return replace(self, question=replace(self.question, loader=None, **plain))


def asked(question: Question, workload: Workload, run: Run | None) -> Asked:
    """A run corrects all predictions; it is read once."""
    if run is None:
        return Asked(question=question)
    on_cpu = told_device(run).get("type") == "cpu"
    return Asked(question=question, correction=_correction(Same(run), Same(workload)), on_cpu=on_cpu)


@lru_cache(8)
def _correction(run: Same[Run], workload: Same[Workload]) -> Correction:
    return correct(workload.value, measured_step(run.value), device_of(run.value))


def step_on(asked: Asked, workload: Workload, device: Device) -> DeviceStep:
    """One GPU's step, before any correction."""
    return timed(workload, device, asked.factors)


def predicted(asked: Asked, workload: Workload, device: Device, gpus: int | None = None) -> Prediction:
    """The prediction of a training on a device."""
    return _waiting(asked, workload, device, gpus)[0]


def fed(asked: Asked, workload: Workload, device: Device) -> Fed | None:
    """Its data flow, if the loader's speed was given."""
    return _waiting(asked, workload, device, None)[1]


def _waiting(
    asked: Asked, workload: Workload, device: Device, gpus: int | None
) -> tuple[Prediction, Fed | None]:
    given = asked.question
    made = _computed(asked, workload, device, given.gpus if gpus is None else gpus)
    price = given.price_per_hour
    if price is None and (example := hardware.price(device)) is not None:
        price = example.dollars_per_hour
    made = replace(made, samples=given.samples, epochs=given.epochs, price_per_hour=price)
    if given.loader is None:
        return made, None
    flow = feed(Feed(decode_cores=1, decode_rate=given.loader), made, workload, device)
    return waited(flow), flow


def _computed(asked: Asked, workload: Workload, device: Device, gpus: int) -> Prediction:
    several = gpus > 1 and (device.kind == "cpu" or workload.mode != "training")
    if several or not workload.operations:
        predict_all(workload, [device], gpus=gpus)  # which says why not
    timed_step = step_on(asked, workload, device)
    made = exchanged(timed_step.prediction, timed_step.step, device, gpus, asked.factors.link)
    if asked.correction is not None:
        pieces = (CPU_PIECES,) if asked.on_cpu and device.kind == "gpu" else ()
        made = replace(made, notes=(*made.notes, *pieces))
        made = refined(timed_step.prediction, made, device, asked.correction, host=asked.factors.host)
    return said(made, device, asked.factors)
