"""Explanations list the code's own constants, with the comments that stand there, and close over the time."""

import types

import pytest
from tests.estimate.test_largest import workload

from laptime import hardware
from laptime.estimate import data_parallel, op_times
from laptime.estimate.constants import of_module
from laptime.estimate.explain import explain
from laptime.estimate.predict import predict
from laptime.model import prediction

SOURCE = """
# Set by eye.
ONE_US = 3.0
TWO_BYTES = 4  # counted
_HIDDEN = 5
NAMES = ("a", "b")

# Another block
# of two lines.
LEFT, RIGHT = 0.1, 0.2
BY_KIND_S = {"mm": 1.5, "copy": 2.5}
VERSION = 7
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    file = tmp_path / "constants_of_a_test.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import constants_of_a_test

    return constants_of_a_test


def test_numbers_in_capitals_come_with_their_unit_and_comment(module):
    found = {
        one.name: (one.value, one.unit, one.source.partition(": ")[2])
        for one in of_module(module, without=("VERSION",))
    }
    assert found == {
        "ONE_US": (3.0, "µs", "Set by eye."),
        "TWO_BYTES": (4, "bytes", "counted"),
        "LEFT": (0.1, "", "Another block of two lines."),
        "RIGHT": (0.2, "", "Another block of two lines."),
        "BY_KIND_S[mm]": (1.5, "s", "Another block of two lines."),
        "BY_KIND_S[copy]": (2.5, "s", "Another block of two lines."),
    }


def test_a_module_without_its_source_is_no_error():
    assert list(of_module(types.ModuleType("laptime.nowhere"))) == []


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
    assert found["Habits.bucket_bytes"].source.endswith("DistributedDataParallel's")
    assert not [name for name in found if "p100" in name]


def test_kinds_add_up_to_the_whole_and_stay_within_their_bound_or_say_so():
    found = explained("h200").kinds
    assert sum(one.share for one in found) == pytest.approx(1)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert all(one.of_bound > 0 for one in found)
