"""The columns of predictions side by side, and what they mean. What was asked for is left out last."""

from __future__ import annotations

from collections.abc import Sequence

from laptime.estimate.choose_device import DeviceChoice
from laptime.estimate.dataflow_step import Fed
from laptime.estimate.largest_batch import Largest
from laptime.model.prediction import ROUNDING, Prediction
from laptime.render.terminal.columns import Column
from laptime.render.terminal.prediction_parts import largest_columns, waits_for
from laptime.views.time_units import cells, figures, step_unit, training_unit

_GIB = 2.0**30
_MARK, _SPREAD, _MEMORY, _ALONE = "*", "±", "needs GiB", "without data"


def overview_columns(
    found: Sequence[Prediction],
    fed: Sequence[Fed],
    largest: Sequence[Largest],
    choice: DeviceChoice | None,
    several: bool,
) -> list[Column]:
    """A row for each prediction; `fed` are their data flows, `several`: they differ in the number of GPUs."""
    unit = step_unit([one.step_s for one in found])
    spreads = [f"{(one.interval_s[1] / one.step_s - 1) * 100:.0f} %" for one in found]
    speeds = [one.times.samples_per_s for one in fed] or [one.samples_per_s for one in found]
    fits = [{True: "yes", False: "no", None: "?"}[one.fits] for one in found]
    made = [Column(title="device", cells=[one.device for one in found], words=True)]
    if choice is not None:
        marks = [_MARK if choice.qualifies(one) else "" for one in found]
        made.append(Column(title="", cells=marks))
    if several:
        made.append(Column(title="GPUs", cells=[str(one.gpus) for one in found]))
    made += [
        Column(title="batch", cells=[str(one.batch) for one in found]),
        Column(title=f"step {unit.name}", cells=[figures(one.step_s / unit.seconds) for one in found]),
        Column(title=_SPREAD, cells=spreads, needed=9),
        Column(title="samples/s", cells=cells(speeds, 0), needed=8),
        Column(title=_MEMORY, cells=[f"{one.reserved_memory_bytes / _GIB:.1f}" for one in found], needed=7),
        Column(title="fits", cells=fits, needed=6),
        *_training(found),
    ]
    if fed:
        alone = [figures(one.prediction.step_s / unit.seconds) for one in fed]
        made.append(Column(title=_ALONE, cells=alone, needed=11))
        made.append(Column(title="waits for", cells=[waits_for(one) for one in fed], needed=4, words=True))
    return made + (largest_columns(found, largest) if largest else [])


def _training(found: Sequence[Prediction]) -> list[Column]:
    """Of the whole training; where its epochs were not said, of one."""
    known = [one.training_s for one in found if one.training_s is not None]
    if known:
        unit = training_unit(known)
        whole = [one.training_s for one in found]
        made = [Column(title=unit.name, cells=cells(whole, 2, over=unit.seconds), needed=1)]
        if any(one.dollars is not None for one in found):
            made.append(Column(title="$", cells=cells([one.dollars for one in found], 2), needed=2))
        if any(one.kilowatt_hours is not None for one in found):
            energy = cells([one.kilowatt_hours for one in found], 1)
            made.append(Column(title="kWh", cells=energy, needed=10))
        return made
    epochs = [one.epoch_s for one in found]
    if all(one is None for one in epochs):
        return []
    unit = training_unit([one for one in epochs if one is not None])
    return [Column(title=f"epoch, {unit.name}", cells=cells(epochs, 2, over=unit.seconds), needed=1)]


def legend(titles: set[str], choice: DeviceChoice | None, *, alone: bool) -> list[str]:
    """What columns mean that are shown. One prediction alone has its interval and memory in words below."""
    told = []
    if choice is not None:
        order = "cheapest" if choice.by == "dollars" else "fastest"
        told.append(f"{_MARK} fits, and trains {choice.limits}; the {order} first")
    if _SPREAD in titles and not alone:
        told.append(f"{_SPREAD} is what nine in ten stay within")
    if _MEMORY in titles and not alone:
        told.append(
            f"{_MEMORY}: what the allocator reserves, on GPUs about {ROUNDING:g} times what tensors take at "
            "the peak; it decides what fits"
        )
    if _ALONE in titles:
        told.append(f"{_ALONE}: the step if nothing had to be waited for")
    return told
