"""What `laptime.predict` and `laptime.largest_batch` say of odd questions."""

from dataclasses import replace
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch import nn

import laptime
from laptime.errors import LaptimeError, WorkloadError
from laptime.model import Phase

NETWORK = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))


@pytest.mark.parametrize(
    ("subject", "options", "words"),
    [
        ("resnet5", {}, "did you mean 'resnet50'?"),
        (Path("missing"), {}, "give one, or a network"),
        (NETWORK, {}, "(3, 224, 224)"),
        (nn.Sequential(nn.Embedding(10, 4)), {}, "int64:128"),
        (NETWORK, {"example": torch.empty(2, 3, 8, 8), "batch": 4}, "leave out batch="),
        (NETWORK, {"input": (3, 8, 8), "device": ["h200", "t4"]}, "one name"),
        (NETWORK, {"input": (3, 8, 8), "gpus": 1000}, "from 1 to 16"),
        (NETWORK, {"input": (3, 8, 8), "gpus": 4, "device": "epyc-7763"}, "not several CPUs"),
    ],
)
def test_an_odd_question_gets_one_line(subject, options, words):
    with pytest.raises(LaptimeError) as told:
        laptime.predict(subject, **options)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_price_comes_from_the_catalog_unless_it_is_given():
    asked = {"input": (3, 8, 8), "samples": 10**6, "epochs": 10}
    assert laptime.predict(NETWORK, **asked).dollars > 0
    assert laptime.predict(NETWORK, **asked, price_per_hour=99.0).price_per_hour == 99.0


def test_a_precision_that_a_device_has_not_is_noted():
    made = laptime.predict(NETWORK, input=(3, 8, 8), device="k80", precision="bf16")
    assert any("runs as fp32" in note for note in made.notes)


def test_a_device_of_an_architecture_that_nobody_compared_has_a_wider_interval_and_says_so():
    known, unknown = (
        laptime.predict(nn.Conv2d(64, 64, 3), input=(64, 112, 112), batch=256, device=name)
        for name in ("a100-sxm-80gb", "mi300x")
    )
    widths = [one.interval_s[1] / one.step_s for one in (known, unknown)]
    assert widths[0] < widths[1]
    assert any("ever compared" in note for note in unknown.notes)
    assert not known.notes


def test_the_host_between_steps_is_no_layers_time():
    made = laptime.predict(nn.Linear(8, 8), input=(8,))
    times = {one.layer: one.total_s for one in made.layers()}
    assert times.pop("(host)") > max(times.values())


def test_the_largest_batch_asks_for_a_shape_alone():
    found = laptime.largest_batch(NETWORK, input=(3, 8, 8), device="t4", precision="bf16")
    assert found.batch > 1000
    assert found.prediction.batch == found.batch
    assert not {"batch", "example"} & set(signature(laptime.largest_batch).parameters)


def test_the_signature_names_every_option():
    names = set(signature(laptime.predict).parameters)
    assert {"device", "batch", "input", "example", "precision", "mode", "gpus", "samples", "epochs"} <= names
    assert "options" not in names


def test_a_workload_whose_update_has_no_sizes_is_refused():
    workload = laptime.workload(nn.Linear(4, 4), input=(4,))
    operations = tuple(
        replace(operation, sizes={}) if operation.phase is Phase.UPDATE else operation
        for operation in workload.operations
    )
    with pytest.raises(WorkloadError, match="no usable sizes"):
        laptime.predict(replace(workload, operations=operations), device="h200")
