"""The plan page's questions: a network, clusters, a training; the plans that suit it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from laptime import hardware
from laptime.errors import PlanError
from laptime.estimate.whatif import PRECISIONS
from laptime.files.text import one_line
from laptime.hardware.cluster import THIS_MACHINE, Cluster
from laptime.model import Workload
from laptime.model.plan import Plan
from laptime.render.html.page import Page
from laptime.render.html.plan_page import plan_page
from laptime.render.server.predicting import BATCH, Networks
from laptime.simulate.search import Search, search
from laptime.simulate.training import TrainingRun, simulate

MOST = 2000  # plans of one question: some ten seconds of one core
LIMITS: Mapping[str, tuple[int, int]] = {
    "nodes": (1, 4096),
    "global_batch": (1, 1_048_576),
    "samples": (1, 10**12),
    "epochs": (1, 10**6),
    "deadline": (0, 10**6),
}
USUAL: Mapping[str, int] = {"global_batch": 512, "samples": 1_000_000, "epochs": 1}
NAMES = ("network", "cluster", "other", "precision")
MOST_YEARS = 100  # of one device: the failures of a longer training take too long to play
_YEAR_S = 365 * 86400.0
_LONGEST = 80  # letters


class Planning:
    """Answers questions one at a time."""

    def __init__(self, networks: Networks | None) -> None:
        self._networks = networks
        self._read = lru_cache(8)(self._workload)

    def form(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What the page's fields are made of, filled in as they were asked."""
        return {
            "given": {name: query[name][:_LONGEST] for name in (*NAMES, *LIMITS) if name in query},
            "clusters": [(each.name, _title(each)) for each in _clusters().values()],
            "precisions": PRECISIONS,
            "limits": dict(LIMITS),
            "usual": dict(USUAL),
            "most": MOST,
        }

    def page(self, query: Mapping[str, str]) -> Page:
        """The answer as it is shown."""
        return plan_page(self.answer(query), MOST)

    def answer(self, query: Mapping[str, str]) -> Search:
        """What a search finds; an error in one line where the question cannot be answered."""
        given = {name: text.strip() for name, text in query.items() if text.strip()}
        for name in given:
            if name not in (*NAMES, *LIMITS):
                near = difflib.get_close_matches(name, (*NAMES, *LIMITS), n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join((*NAMES, *LIMITS))}"
                raise PlanError(f"there is no parameter {_short(name)}; {hint}")
        numbers = {name: _number(name, given[name]) for name in LIMITS if name in given}
        clusters = [
            _cluster(given[name], numbers.get("nodes")) for name in ("cluster", "other") if name in given
        ]
        if "network" not in given or not clusters:
            raise PlanError("give a network and a cluster")
        precision = given.get("precision", PRECISIONS[0])
        if precision not in PRECISIONS:
            raise PlanError(f"precision is {_short(precision)}; give {', '.join(PRECISIONS)}")
        workload = self._read(given["network"], precision)
        counts = {name: int(numbers.get(name, usual)) for name, usual in USUAL.items()}
        if counts["global_batch"] > counts["samples"]:
            raise PlanError("the global batch is larger than an epoch; give more samples or a smaller batch")
        run = TrainingRun(steps=1, samples=counts["samples"], epochs=counts["epochs"])
        for cluster in clusters:
            _check_length(workload, cluster, counts["samples"] * counts["epochs"])
        hours = numbers.get("deadline")
        return search(
            workload,
            list({each.name: each for each in clusters}.values()),
            global_batch=counts["global_batch"],
            run=run,
            deadline_s=None if hours is None else hours * 3600,
            most=MOST,
        )

    def _workload(self, network: str, precision: str) -> Workload:
        if self._networks is None:
            raise PlanError("no network can be read without torch; install it where `laptime serve` runs")
        if len(network) > _LONGEST or network not in self._networks:
            near = difflib.get_close_matches(network[:_LONGEST], list(self._networks), n=1)
            hint = f"did you mean {near[0]}?" if near else "choose one of the list"
            raise PlanError(f"no network is called {_short(network)}; {hint}")
        return self._networks[network](BATCH, precision)


def _clusters() -> dict[str, Cluster]:
    """Those of the catalog; those of this very machine are for `laptime calibrate`'s figures."""
    return {each.name: each for each in hardware.clusters() if each.device not in THIS_MACHINE}


def _title(cluster: Cluster) -> str:
    price = "" if cluster.dollars_per_hour is None else f", ${cluster.dollars_per_hour:g} an hour a node"
    return f"{cluster.title}: {cluster.nodes} × {cluster.devices_per_node} {cluster.device}{price}"


def _cluster(name: str, nodes: float | None) -> Cluster:
    """By its name alone: whoever asks over a network must not read files here."""
    known = _clusters()
    if name not in known:
        near = difflib.get_close_matches(name[:_LONGEST], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "choose one of the list"
        raise PlanError(f"no cluster is called {_short(name)}; {hint}")
    return known[name] if nodes is None else replace(known[name], nodes=int(nodes))


def _check_length(workload: Workload, cluster: Cluster, samples: int) -> None:
    one = simulate(workload, cluster, Plan(), batch=BATCH, run=TrainingRun(steps=1))
    years = one.step_s / BATCH * samples / _YEAR_S
    if years > MOST_YEARS:
        raise PlanError(
            f"the training takes {years:,.0f} years of one {cluster.device}; give fewer samples or epochs, "
            f"for at most {MOST_YEARS} years"
        )


def _number(name: str, text: str) -> float:
    low, high = LIMITS[name]
    whole = name != "deadline"
    with suppress(ValueError):
        if len(text) <= 30 and (not whole or (text.isascii() and text.isdecimal())):
            number = int(text) if whole else float(text)
            if low <= number <= high and number > 0:
                return number
    kind = "whole number" if whole else "number of hours"
    raise PlanError(f"{name} is {_short(text)}; give a {kind} from {low:,} to {high:,}")


def _short(text: str) -> str:
    shown = one_line(repr(text))
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
