"""The numbers of the list that `run.json` does not hold: read from a run's steps, for the rows in view."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from laptime.model import Stage
from laptime.render.server.index import RunEntry
from laptime.render.server.live import tag
from laptime.runs import Run
from laptime.views import format
from laptime.views.run_view import last_epoch
from laptime.views.step_series import series

MOST = 50  # runs of one question
_KEPT = 4000


class Results:
    """A cache of the cells by run; an entry is valid until its run changes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, str]] = OrderedDict()
        self._lock = Lock()

    def of(self, entries: Sequence[RunEntry]) -> dict[str, dict[str, str]]:
        """The texts of each run's cells; none where it cannot be read."""
        return {entry.name: self._one(entry) for entry in entries}

    def _one(self, entry: RunEntry) -> dict[str, str]:
        seal = tag("results", [entry])
        with self._lock:
            if seal in self._kept:
                self._kept.move_to_end(seal)
                return self._kept[seal]
        run = entry.run()
        try:
            texts = cells(run) if run is not None else {}
        except Exception:  # its own page says what is wrong; the other rows have their numbers
            texts = {}
        with self._lock:
            self._kept[seal] = texts
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return texts


def cells(run: Run) -> dict[str, str]:
    """Steps, step time, samples a second; loss and accuracy of the last epoch, validation before training."""
    texts: dict[str, str] = {}
    for stage in Stage:  # training first: validation fills what it left, and has the last word on learning
        steps = run.selected(stage)
        timed = series(run, stage, layers=False)
        if timed is None:
            continue
        texts.setdefault("steps", f"{int(np.count_nonzero(steps.of_first_rank)):,}")
        texts.setdefault("step", format.milliseconds(float(np.median(timed.wall_s))))
        if timed.samples_per_s is not None:
            texts.setdefault("rate", format.rate(timed.samples_per_s))
        epoch = last_epoch(steps.every)
        learned = epoch.values if epoch else {}
        if "loss" in learned:
            texts["loss"] = format.loss(learned["loss"])
        if "top1" in learned:
            texts["top1"] = format.percent(learned["top1"])
    return texts
