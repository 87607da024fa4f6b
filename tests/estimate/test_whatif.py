"""The prediction page's data: `laptime predict` says the same."""

from dataclasses import replace

import pytest
from tests.estimate.whatifs import TRAINING, answer, kept, leave_home, row
from tests.runs.samples import HOSTILE

from laptime.errors import LaptimeError, PredictionError
from laptime.estimate.largest_batch import largest
from laptime.estimate.predict import predict, predict_all
from laptime.estimate.whatif import DOZEN, POINTS
from laptime.hardware import device
from laptime.model import Memory, Operation, Phase, Workload
from laptime.ops.rescaling import rescaled


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    leave_home(monkeypatch, tmp_path)


def test_without_names_a_dozen_rentable_devices_answer():
    made = answer(**TRAINING)
    assert len(made["rows"]) == len(DOZEN) == 12
    assert {one["device"] for one in made["rows"]} == set(DOZEN)
    assert all(one["price_per_hour"] and one["dollars"] and one["fits"] for one in made["rows"])


def test_a_row_says_what_predict_says():
    made = answer(devices="h200,rtx-4090", gpus=4, batch=96, **TRAINING)
    for one in made["rows"]:
        own = device(one["device"])
        meant = predict(rescaled(kept(), 96), own, gpus=4, price_per_hour=one["price_per_hour"], **TRAINING)
        same = (
            "step_s", "samples_per_s", "epoch_s", "dollars", "kilowatt_hours", "peak_memory_bytes",
            "reserved_memory_bytes", "device_memory_bytes", "fits", "bottleneck", "basis", "batch", "gpus",
            "communication_s",
        )  # fmt: skip
        for name in same:
            assert one[name] == pytest.approx(getattr(meant, name)), name
        assert one["interval_s"] == pytest.approx(meant.interval_s)
        assert one["hours"] == pytest.approx(meant.training_s / 3600)
        ratio = meant.interval_s[1] / meant.step_s
        assert one["hours_interval"][1] == pytest.approx(one["hours"] * ratio)
        assert one["dollars_interval"][1] == pytest.approx(one["dollars"] * ratio)
        assert one["notes"] == list(meant.notes)
        assert one["uncovered"] == dict(meant.uncovered)
        assert one["title"] == own.title
        assert one["calibrated"] == (one["device"] == "h200")


def test_the_question_comes_back_with_the_batch_and_precision_that_were_taken():
    made = answer(devices="h200", gpus=2)
    assert made["question"]["batch"] == 64
    assert made["question"]["precision"] == "fp32"
    assert made["question"]["gpus"] == 2
    assert (made["network"], made["mode"]) == (kept().network, "training")


def test_rows_are_sorted_by_cost_or_by_time():
    dollars = [one["dollars"] for one in answer(**TRAINING)["rows"]]
    assert dollars == sorted(dollars)
    for more in ({}, {"sort": "time", **TRAINING}):
        steps = [one["step_s"] for one in answer(**more)["rows"]]
        assert steps == sorted(steps)
    prices = [one["price_per_hour"] / one["samples_per_s"] for one in answer(sort="cost")["rows"]]
    assert prices == sorted(prices)


def test_devices_that_all_wait_for_the_host_are_ranked_by_price_and_the_host_is_named():
    rows = answer(batch=2, devices="b200,h100-sxm,mi300x,h200")["rows"]
    assert max(one["step_s"] for one in rows) == pytest.approx(min(one["step_s"] for one in rows))
    prices = [one["price_per_hour"] for one in rows]
    assert prices == sorted(prices)
    assert prices[0] < prices[-1]
    assert {one["bottleneck"].partition(":")[0] for one in rows} == {"the host"}
    same = answer(batch=2, devices="mi300x,h200,b200", price_per_hour=1)["rows"]
    assert [one["device"] for one in same] == ["b200", "h200", "mi300x"]


def test_a_price_that_is_given_counts_for_every_device():
    assert {one["price_per_hour"] for one in answer(price_per_hour=2.5, **TRAINING)["rows"]} == {2.5}


def test_a_network_too_large_for_a_device_comes_last_and_does_not_fit():
    made = answer(kept("resnet50-128-fp32"), batch=512, devices="t4,h200", **TRAINING)
    assert [one["device"] for one in made["rows"]] == ["h200", "t4"]
    assert row(made, "t4")["fits"] is False
    assert 0 < row(made, "t4")["largest_batch"] < 512 < row(made)["largest_batch"]


def test_a_device_without_known_memory_neither_fits_nor_does_not():
    one = row(answer(devices="epyc-7763"), "epyc-7763")
    assert one["fits"] is None
    assert one["device_memory_bytes"] is None
    assert one["largest_batch"] is None


def test_a_network_that_no_sample_of_fits_has_a_largest_batch_of_0():
    big = kept("bert_base-16-fp32")
    static = replace(big.memory, parameters=2**40, peak=big.memory.peak + 2**40)
    assert row(answer(replace(big, memory=static), devices="t4"), "t4")["largest_batch"] == 0


@pytest.mark.parametrize("label", ["alexnet-64-fp32", "resnet18-32-bf16"])
@pytest.mark.parametrize("name", ["t4", "h200"])
def test_the_largest_batch_is_near_the_one_that_a_search_finds_and_never_beyond(label, name):
    found = row(answer(kept(label), devices=name), name)["largest_batch"]
    meant = largest(lambda batch, on: predict_all(rescaled(kept(label), batch), on), [device(name)])[0].batch
    assert 0.95 * meant < found <= meant + 1


def test_what_cannot_be_predicted_is_a_row_that_says_why():
    made = answer(devices="h200,abacus,h100,epyc-7763,cpu", gpus=2)
    assert row(made)["step_s"] > 0
    said = {one["device"]: one["error"] for one in made["rows"] if "error" in one}
    assert "no device is called 'abacus'" in said["abacus"]
    assert "give one of these names" in said["h100"]
    assert "CPUs" in said["epyc-7763"]
    assert "laptime calibrate" in said["cpu"]
    assert made["shown"] == "h200"


def test_where_nothing_can_be_predicted_the_document_is_still_whole():
    made = answer(devices="abacus", compute=2)
    assert made["shown"] is None
    assert len(made["rows"]) == 1
    assert made["layers"] == made["by_batch"] == made["by_gpus"] == []
    assert made["memory_timeline"] is None
    assert made["baseline"]["rows"] == []


def test_names_pass_through_as_text():
    hostile = f"<script>alert(1)</script>{HOSTILE}"
    first = kept()
    named = replace(
        first,
        network=hostile,
        layers=tuple(hostile if one == first.layers[0] else one for one in first.layers),
        operations=tuple(
            replace(one, layer=hostile) if one.layer == first.layers[0] else one for one in first.operations
        ),
    )
    made = answer(named, devices="h200,<b>x")
    assert made["network"] == hostile
    assert hostile in [one["name"] for one in made["layers"]]
    assert hostile in made["memory_timeline"]["layer"]
    assert any("<b>x" in one.get("error", "") for one in made["rows"])


def test_layers_add_up_to_the_step_of_one_device():
    made = answer(devices="h200")
    assert sum(one["total_s"] for one in made["layers"]) == pytest.approx(row(made)["step_s"])
    for one in made["layers"]:
        assert one["total_s"] == pytest.approx(one["forward_s"] + one["backward_s"] + one["update_s"])
    assert "(loss)" in [one["name"] for one in made["layers"]]


def test_the_first_that_was_named_is_shown_unless_another_is_asked_for():
    assert answer(devices="t4,h200")["shown"] == "t4"
    assert answer(devices="t4,h200", shown="NVIDIA H200")["shown"] == "h200"
    assert answer(devices="t4,h200", shown="abacus")["shown"] == "t4"
    made = answer(**TRAINING)
    assert made["shown"] == made["rows"][0]["device"]


def test_the_memory_timeline_reaches_the_predicted_peak_and_ends_with_the_step():
    for label in ("alexnet-64-fp32", "resnet18-32-bf16"):
        made = answer(kept(label), devices="h200")
        line = made["memory_timeline"]
        assert max(line["bytes"]) == row(made)["peak_memory_bytes"]
        assert min(line["bytes"]) >= line["static_bytes"]
        assert line["seconds"] == sorted(line["seconds"])
        assert line["seconds"][-1] <= line["end_s"] == pytest.approx(row(made)["step_s"])
        assert len({len(line[name]) for name in ("seconds", "bytes", "phase", "layer")}) == 1
        assert list(dict.fromkeys(line["phase"])) == ["forward", "loss", "backward", "update"]


def test_a_cpu_computes_in_no_librarys_memory():
    made = answer(devices="epyc-7763")
    assert max(made["memory_timeline"]["bytes"]) <= row(made, "epyc-7763")["peak_memory_bytes"]


def many_operations(count):
    operations = tuple(
        Operation(
            name="aten.relu", kind="elementwise", phase=Phase.FORWARD, layer=f"layer{place % 7}",
            dtype="float32", sizes={"n": 64_000}, read=256_000, written=256_000,
            alive=10**9 if place == 1234 else 10**6 + place,
        )
        for place in range(count)
    )  # fmt: skip
    memory = Memory(
        parameters=1, gradients=0, buffers=0, state=0, inputs=0, activations=10**6, peak=2 * 10**9
    )
    return Workload(
        network="long", batch=64, precision="fp32", mode="inference", parameters=1, tensors=1,
        sample_bytes=4, layers=tuple(f"layer{one}" for one in range(7)), operations=operations, memory=memory,
    )  # fmt: skip


def test_a_long_timeline_is_thinned_without_losing_its_peak():
    line = answer(many_operations(2500), devices="h200")["memory_timeline"]
    assert len(line["bytes"]) == POINTS
    assert max(line["bytes"]) >= 10**9
    assert line["layer"][line["bytes"].index(max(line["bytes"]))] == f"layer{1234 % 7}"


def test_an_old_workload_without_counted_bytes_has_no_timeline():
    bare = replace(kept(), operations=tuple(replace(one, alive=0) for one in kept().operations))
    assert answer(bare, devices="h200")["memory_timeline"] is None


def test_the_curve_over_batches_goes_through_the_asked_one():
    made = answer(devices="h200", batch=100, **TRAINING)
    assert [one["batch"] for one in made["by_batch"]] == [16, 32, 64, 100, 128, 256, 512, 1024]
    asked = next(one for one in made["by_batch"] if one["batch"] == 100)
    assert asked.items() <= row(made).items()
    memory = [one["reserved_memory_bytes"] for one in made["by_batch"]]
    assert memory == sorted(memory)
    assert [one["batch"] for one in answer(devices="h200", batch=1)["by_batch"]] == [1, 2, 4, 8]


def test_the_curve_over_gpus_goes_through_the_asked_number():
    made = answer(devices="h200", gpus=4, **TRAINING)
    assert [one["gpus"] for one in made["by_gpus"]] == [1, 2, 4, 8]
    assert made["by_gpus"][2].items() <= row(made).items()
    assert [one["gpus"] for one in answer(devices="epyc-7763")["by_gpus"]] == [1]


def test_a_forward_pass_runs_on_one_gpu_alone():
    asked = many_operations(5)
    assert [one["gpus"] for one in answer(asked, devices="h200")["by_gpus"]] == [1]
    assert "exchange gradients" in row(answer(asked, devices="h200", gpus=2))["error"]


def test_of_one_sample_there_is_no_curve_and_no_largest_batch():
    single = rescaled(kept(), 1)
    made = answer(single, devices="h200")
    assert [one["batch"] for one in made["by_batch"]] == [1]
    assert row(made)["largest_batch"] is None
    with pytest.raises(LaptimeError, match="one sample"):
        answer(single, batch=8)


def test_what_was_read_in_one_precision_is_not_predicted_in_another():
    with pytest.raises(PredictionError, match="precision is bf16, but this step was read in fp32"):
        answer(precision="bf16")
