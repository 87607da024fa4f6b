"""A predicted step as a question wants it: on several GPUs, corrected by a run, fed with data, priced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from laptime import hardware
from laptime.hardware import Device

# Private there, and wanted here with predictions that are at hand already.
from laptime.predict import refinement as from_run
from laptime.predict.dataflow_step import Fed, Feed, feed, waited
from laptime.predict.measured import device_of, measured_step
from laptime.predict.predicting import SCALING, predict_all
from laptime.predict.prediction import Prediction
from laptime.predict.refinement import CPU_PIECES, Correction, correct
from laptime.report.whatif_factors import AS_IT_IS, Factors, exchanged, said
from laptime.report.whatif_question import Question
from laptime.report.whatif_steps import Same, Timed, timed
from laptime.store import Run
from laptime.workload import Workload


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
    on_cpu = (run.environment.get("device") or {}).get("type") == "cpu"
    return Asked(question=question, correction=_correction(Same(run), Same(workload)), on_cpu=on_cpu)


@lru_cache(8)
def _correction(run: Same[Run], workload: Same[Workload]) -> Correction:
    return correct(workload.value, measured_step(run.value), device_of(run.value))


def step_on(asked: Asked, workload: Workload, device: Device) -> Timed:
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
    found = step_on(asked, workload, device)
    made = exchanged(found.prediction, found.step, device, gpus, asked.factors.link)
    if asked.correction is not None:
        made = _refined(found.prediction, made, device, asked)
    return said(made, device, asked.factors)


def _refined(plain: Prediction, together: Prediction, device: Device, asked: Asked) -> Prediction:
    """What `refinement.refine` does, without predicting anew; a test holds the two together."""
    correction = asked.correction
    assert correction is not None
    pieces = (CPU_PIECES,) if asked.on_cpu and device.kind == "gpu" else ()
    notes = (*plain.notes, *pieces)
    if correction.device is None:
        return replace(together, notes=(*notes, from_run._unknown(correction.run)))
    kept = correction.kept(device, plain.batch)
    layers = tuple(from_run._corrected(one, correction, kept) for one in plain.layers())
    alone_s = sum(one.total_s for one in layers)
    if device.name == correction.device.name:
        alone_s = max(alone_s + correction.rest_s * kept / asked.factors.host, alone_s / 2)
    step_s = alone_s + together.step_s - plain.step_s
    width = from_run._width(plain, device, correction) + (SCALING if together.gpus > 1 else 0.0)
    return replace(
        together,
        step_s=step_s,
        interval_s=(step_s * max(0.0, 1 - width), step_s * (1 + width)),
        busy_s=plain.busy_s * alone_s / plain.step_s,
        phases=from_run._phases(plain, layers),
        layer_times=layers,
        basis=f"{plain.basis}, refined by run {correction.run}" if kept else plain.basis,
        notes=(*notes, from_run._said(device, correction, kept)),
    )
