"""What is asked of predictions beyond their table: the largest batch, a choice, data flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.estimate.choose_device import DeviceChoice, money
from laptime.estimate.dataflow_step import Fed, assumptions, waited
from laptime.estimate.largest_batch import Largest
from laptime.model.prediction import Prediction
from laptime.render.terminal.columns import Column, paragraph, table
from laptime.views.time_units import duration, figures, long_duration, step_unit


def largest_columns(found: Sequence[Prediction], largest: Sequence[Largest]) -> list[Column]:
    """The largest batch of each row's device, and the throughput there."""
    by_device = {one.device: one for one in largest}
    by_both = {(one.device, one.prediction.gpus): one for one in largest if one.prediction}
    own = [by_both.get((row.device, row.gpus), by_device[row.device]) for row in found]
    return [
        Column(title="largest batch", cells=[_batch(one) for one in own], needed=3),
        Column(
            title="samples/s there",
            cells=["" if one.samples_per_s is None else f"{one.samples_per_s:,.0f}" for one in own],
            needed=5,
        ),
    ]


def _batch(one: Largest) -> str:
    if one.batch is None:
        return "?"
    if one.batch == 0:
        return "not even 1"
    return str(one.batch) if one.exact else f"{one.batch} or more"


def choice_lines(choices: Sequence[DeviceChoice], width: int) -> list[Any]:
    """What was chosen and why, and what was not considered."""
    made: list[Any] = []
    for one in choices:
        made += ["", *paragraph(f"{one.wanted}: {one.why}", width)]
        words = [f"{one.considered} configurations fit and have a price", *one.left_out]
        made += [line for text in words for line in paragraph(text, width, bullet="  - ")]
    if made:
        made += paragraph("every batch size is taken to need the same epochs", width, bullet="  - ")
    return made


def waits_for(one: Fed) -> str:
    """The stage that starves the device."""
    return one.times.starving if one.starves else "nothing"


def flow_lines(fed: Sequence[Fed], width: int) -> list[Any]:
    """The data flow of one step by its stages; of several, what all of them rest on."""
    if not fed:
        return []
    one = fed[0]
    alone = len(fed) == 1
    shared = [words for words in assumptions(one) if all(words in assumptions(other) for other in fed)]
    if len(shared) < len(assumptions(one)):
        shared.append("the rest as each device has it")
    made: list[Any] = ["", *paragraph("Data flow: " + "; ".join(shared), width)]
    if not alone:
        return made
    stages = [(stage, seconds) for stage, seconds in one.times.stages.items() if seconds]
    unit = step_unit([seconds for _, seconds in stages])
    made += table(
        [
            Column(title="stage", cells=[stage for stage, _ in stages], words=True),
            Column(title=unit.name, cells=[figures(seconds / unit.seconds) for _, seconds in stages]),
        ],
        width,
    )
    return made + [line for text in _flow_words(one) for line in paragraph(text, width, bullet="  - ")]


def _flow_words(one: Fed) -> list[str]:
    times = one.times
    told = [
        f"{times.starving} starves the others: the device waits {times.idle_share:.0%} of the time"
        if one.starves
        else "the device is never kept waiting by its data"
    ]
    step = f"a step takes {duration(times.step_s)}, {times.samples_per_s:,.0f} samples/s"
    made = waited(one)
    if made.epoch_s is not None:
        step += f", an epoch {long_duration(made.epoch_s)}"
    if made.training_s is not None:
        step += f", the training {long_duration(made.training_s)}"
    if made.dollars is not None:
        step += f" and {money(made.dollars)}"
    told.append(step)
    helping = [remedy for remedy in times.remedies if remedy.step_s < times.step_s * 0.999]
    idle = [remedy.name for remedy in times.remedies if remedy not in helping]
    told += [f"with {remedy.name}: {duration(remedy.step_s)}" for remedy in helping]
    return [*told, f"no gain by itself: {', '.join(idle)}"] if idle else told
