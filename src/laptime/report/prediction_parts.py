"""What is asked of predictions beyond their table: the largest batch, a choice, data flow, an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.predict.choosing import Choice
from laptime.predict.constants import Constant
from laptime.predict.dataflow_step import Fed, assumptions
from laptime.predict.explaining import Explanation
from laptime.predict.largest import Largest
from laptime.predict.prediction import Prediction
from laptime.report.columns import Column, paragraph, table

_KINDS = 12  # that are shown of a step


def largest_columns(found: Sequence[Prediction], largest: Sequence[Largest]) -> list[Column]:
    """The largest batch of each row's device, and the throughput there."""
    by_device = {one.device: one for one in largest}
    by_both = {(one.device, one.prediction.gpus): one for one in largest if one.prediction}
    own = [by_both.get((row.device, row.gpus), by_device[row.device]) for row in found]
    return [
        Column(title="largest batch", cells=[_batch(one) for one in own]),
        Column(
            title="samples/s there",
            cells=["" if one.samples_per_s is None else f"{one.samples_per_s:,.0f}" for one in own],
            needed=1,
        ),
    ]


def _batch(one: Largest) -> str:
    if one.batch is None:
        return "?"
    if one.batch == 0:
        return "not even 1"
    return str(one.batch) if one.exact else f"{one.batch} or more"


def choice_lines(choices: Sequence[Choice], width: int) -> list[Any]:
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
    made += table(
        [
            Column(title="stage", cells=[stage for stage, _ in stages], words=True),
            Column(title="ms", cells=[f"{seconds * 1e3:.4g}" for _, seconds in stages]),
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
    step = f"a step takes {times.step_s * 1e3:.4g} ms, {times.samples_per_s:,.0f} samples/s"
    if one.epoch_s is not None:
        step += f", an epoch {one.epoch_s:,.0f} s"
    if one.training_s is not None:
        step += f", the training {one.training_s / 3600:,.2f} h"
    told.append(step)
    helping = [remedy for remedy in times.remedies if remedy.step_s < times.step_s * 0.999]
    idle = [remedy.name for remedy in times.remedies if remedy not in helping]
    told += [f"with {remedy.name}: {remedy.step_s * 1e3:.4g} ms" for remedy in helping]
    return [*told, f"no gain by itself: {', '.join(idle)}"] if idle else told


def explanation_lines(one: Explanation, width: int) -> list[Any]:
    """Where the time goes, then every constant with the number of its source."""
    kinds = one.kinds[:_KINDS]
    made: list[Any] = ["", "Where the device's time goes"]
    made += table(
        [
            Column(title="operations", cells=[f"{kind.kind} ({kind.phase})" for kind in kinds], words=True),
            Column(title="count", cells=[str(kind.count) for kind in kinds]),
            Column(title="ms", cells=[f"{kind.seconds * 1e3:.3f}" for kind in kinds]),
            Column(title="share", cells=[f"{kind.share:.1%}" for kind in kinds]),
            Column(title="of roofline", cells=[f"{kind.of_bound:.0%}" for kind in kinds]),
        ],
        width,
    )
    rest = one.kinds[_KINDS:]
    if rest:
        made.append(f"  {len(rest)} more kinds: {sum(kind.share for kind in rest):.1%}")
    sources = {source: f"[{place}]" for place, source in enumerate(_sources(one.constants), 1)}
    made += ["", "Constants"]
    made += table(
        [
            Column(title="constant", cells=[constant.name for constant in one.constants], words=True),
            Column(title="value", cells=[_value(constant.value) for constant in one.constants]),
            Column(title="unit", cells=[constant.unit for constant in one.constants], words=True),
            Column(title="source", cells=[sources[one.source] for one in one.constants], words=True),
        ],
        width,
    )
    return [*made, "", *(line for source, mark in sources.items() for line in _source(source, mark, width))]


def _source(source: str, mark: str, width: int) -> list[Any]:
    return list(paragraph(source, width, bullet=f"{mark:<5}"))


def _sources(constants: Sequence[Constant]) -> list[str]:
    return list(dict.fromkeys(constant.source for constant in constants))


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
