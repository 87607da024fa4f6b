"""Explanations list every constant that was used, with its source, and close over the time."""

import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated

import pytest
from tests.estimate.test_largest import workload

from laptime import hardware
from laptime.estimate import data_parallel, op_times
from laptime.estimate.explain import explain
from laptime.estimate.predict import predict
from laptime.model import prediction
from laptime.model.constants import Source, of_module, of_value

MANY = Source("Counted.")


@dataclass(frozen=True)
class Habit:
    share: Annotated[float, Source("Set by eye.")] = 0.5
    on: Annotated[bool, MANY] = True
    unsaid: float = 3.0


def module():
    made = ModuleType("laptime.estimate.made_up")
    made.__annotations__ = {
        "ONE_US": Annotated[float, Source("Set by eye.")],
        "LAUNCHES": Annotated[int, Source("Counted.", unit="launches")],
        "BY_KIND_S": Annotated[dict[str, float], MANY],
        "NAME": str,
    }
    made.ONE_US, made.LAUNCHES, made.NAME, made.VERSION = 3.0, 4, "a", 7
    made.BY_KIND_S = {"mm": 1.5, "copy": 2.5}
    return made


def test_a_declared_constant_carries_its_unit_and_its_source():
    found = [(one.name, one.value, one.unit, one.source) for one in of_module(module())]
    assert found == [
        ("ONE_US", 3.0, "µs", "estimate.made_up: Set by eye."),
        ("LAUNCHES", 4, "launches", "estimate.made_up: Counted."),
        ("BY_KIND_S[mm]", 1.5, "s", "estimate.made_up: Counted."),
        ("BY_KIND_S[copy]", 2.5, "s", "estimate.made_up: Counted."),
    ]


def test_fields_of_a_value_are_constants_where_they_are_declared_so():
    found = [(one.name, one.value, one.source.partition(": ")[2]) for one in of_value(Habit())]
    assert found == [("Habit.share", 0.5, "Set by eye."), ("Habit.on", "True", "Counted.")]


def test_sources_need_no_source_code(monkeypatch):
    """Where compiled files alone are installed, explanations are the same."""
    monkeypatch.setattr(inspect, "getsource", lambda _: (_ for _ in ()).throw(OSError()))
    assert any(one.name == "HOST_STEP" and "by eye" in one.source for one in explained("h200").constants)


def explained(name, gpus=1):
    asked, device = workload(32, 10**9), hardware.device(name)
    return explain(asked, device, predict(asked, device, gpus=gpus, price_per_hour=2.0))


def test_every_constant_of_timing_and_memory_is_there_with_a_source():
    found = {one.name: one for one in explained("h200").constants}
    for module in (op_times, prediction):
        for one in of_module(module):
            assert found[one.name].value == getattr(module, one.name.partition("[")[0], one.value)
    assert all(one.source for one in found.values())
    assert found["price_per_hour"].value == 2.0
    assert any(name.startswith("calibration: ") for name in found)


def test_figures_of_the_device_come_with_the_documents_they_are_from():
    device = hardware.device("quadro-p600")
    found = {one.name: one for one in explained("quadro-p600").constants}
    assert found["quadro-p600: fp32"].source == device.sources["fp32"]
    assert "runs as fp32" in found["quadro-p600: bf16"].source


def test_habits_of_exchange_are_listed_for_several_gpus_only():
    assert not [one for one in explained("v100").constants if one.name.startswith("Habits.")]
    found = {one.name: one for one in explained("v100", gpus=2).constants}
    assert found["Habits.link_share"].value == data_parallel.DDP.link_share
    assert found["Habits.bucket_bytes"].source.endswith("DistributedDataParallel.")
    assert not [name for name in found if "p100" in name]


def test_kinds_add_up_to_the_whole_and_stay_within_their_bound_or_say_so():
    found = explained("h200").kinds
    assert sum(one.share for one in found) == pytest.approx(1)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert all(one.of_bound > 0 for one in found)
