"""The prediction page's data: what is asked, what is answered, and that `laptime predict` says the same."""

import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tests.predict.runs import a_run, a_workload
from tests.store.samples import HOSTILE

from laptime.errors import LaptimeError, PredictionError
from laptime.hardware import device
from laptime.predict.calibration import Calibration
from laptime.predict.devices import calibrations
from laptime.predict.largest import largest
from laptime.predict.predicting import DATA_SHEET, predict
from laptime.predict.refinement import predict_run
from laptime.report.whatif import DOZEN, FACTORS, LIMITS, Question, ask
from laptime.report.whatif_memory import POINTS
from laptime.report.whatif_question import MOST_DEVICES
from laptime.workload import Memory, Operation, Phase, Workload
from laptime.workload.rescaling import rescaled

KEPT = Path(__file__).parents[2] / "benchmarks" / "workloads" / "h200_measured.jsonl.gz"
TRAINING = {"samples": 1_281_167, "epochs": 90}


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """No calibrations, devices and prices of whoever runs the tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("LAPTIME_DEVICES", raising=False)


@cache
def kept(label="alexnet-64-fp32"):
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        lines = (json.loads(line) for line in file)
        return Workload.of(next(one["workload"] for one in lines if one["label"] == label))


def answer(workload=None, *, read=None, run=None, **query):
    """Asked in text, as a URL does; what comes back is strict JSON."""
    question = Question.of({name: str(value) for name, value in query.items()})
    made = ask(workload or kept(), question, read=read, run=run)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    return made


def row(document, name="h200"):
    return next(one for one in document["rows"] if one["device"] == name)


# What is asked


def test_an_empty_query_asks_for_the_workload_as_it_is():
    assert Question.of({}) == Question() == Question.of({"batch": " ", "devices": ""})
    assert not Question().imagines


def test_every_field_of_a_query_is_read():
    query = {
        "batch": "8", "precision": "bf16", "devices": "t4, h200,t4", "shown": "t4", "sort": "time",
        "gpus": "2", "samples": "1000", "epochs": "3", "price_per_hour": "1.5", "compute": "2",
        "bandwidth": "0.5", "link": "4", "host": "1.5", "loader": "250",
    }  # fmt: skip
    made = Question.of(query)
    assert made.devices == ("t4", "h200")
    assert (made.batch, made.gpus, made.samples, made.epochs) == (8, 2, 1000, 3)
    assert (made.compute, made.bandwidth, made.link, made.host, made.loader) == (2.0, 0.5, 4.0, 1.5, 250.0)
    assert (made.precision, made.shown, made.sort, made.price_per_hour) == ("bf16", "t4", "time", 1.5)
    assert made.imagines
    assert json.loads(json.dumps(made.document()))["devices"] == ["t4", "h200"]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("text", ["many", "nan", "inf", "-1", "0", "1e99", "9" * 5000, "٣x", "1;2", "True"])
def test_a_number_beyond_its_bounds_is_named_with_them(name, text):
    with pytest.raises(PredictionError, match=f"^{name} is .*; give a .*number from .* to ") as told:
        Question.of({name: text, "samples": text if name == "samples" else "10"})
    assert len(str(told.value)) < 200
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", LIMITS)
def test_the_ends_of_the_bounds_can_be_asked_for(name):
    for end in LIMITS[name]:
        assert getattr(Question.of({"samples": "10", name: repr(end)}), name) == end


@pytest.mark.parametrize("name", ["batch", "gpus", "samples", "epochs"])
def test_half_a_sample_is_refused(name):
    with pytest.raises(PredictionError, match=f"{name} is '2.5'; give a whole number"):
        Question.of({name: "2.5"})


@pytest.mark.parametrize("given", [{"batch": 2.5}, {"gpus": True}, {"compute": "2"}, {"host": None}])
def test_what_is_no_text_is_checked_as_well(given):
    with pytest.raises(PredictionError, match=f"{next(iter(given))} is"):
        Question(**given)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'; give fp32, bf16 or fp16"),
        ({"sort": "name"}, "sort is 'name'; give cost or time"),
        ({"epochs": "3"}, "epochs is given without samples"),
        ({"bach": "3"}, "did you mean batch?"),
        ({"<script>": "3"}, "there are batch, precision"),
        ({"devices": ",".join(f"x{one}" for one in range(MOST_DEVICES + 1))}, "give 32 at most"),
        ({"devices": "x" * 200}, "80 characters at most"),
    ],
)
def test_nonsense_gets_one_line(query, said):
    with pytest.raises(PredictionError) as told:
        Question.of(query)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["/etc/passwd", "../mine.toml", "mine.toml", "..\\mine", "MINE.TOML"])
def test_no_file_can_be_named_over_a_url(name):
    for field in ("devices", "shown"):
        with pytest.raises(PredictionError, match="a file"):
            Question.of({field: name})


# What is answered


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
    meant = largest(lambda batch: rescaled(kept(label), batch), [device(name)])[0].batch
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


# A network that can be read anew


def test_a_network_is_read_anew_at_the_asked_batch_and_precision_and_only_once():
    calls = []

    def read(batch, precision):
        calls.append((batch, precision))
        return rescaled(kept(f"resnet18-32-{precision}"), batch)

    base = kept("resnet18-32-fp32")
    for _ in range(2):
        made = answer(base, read=read, batch=48, precision="bf16", devices="h200")
    assert calls == [(48, "bf16"), (32, "bf16")]  # the second for the curve, at any batch
    answer(base, read=read, batch=49, precision="bf16", devices="h200")
    assert calls[2:] == [(49, "bf16")]
    meant = predict(rescaled(kept("resnet18-32-bf16"), 48), device("h200"))
    assert row(made)["step_s"] == pytest.approx(meant.step_s)
    assert made["question"]["precision"] == "bf16"
    assert len(answer(base, read=read, batch=1, devices="h200")["by_batch"]) == 4


def test_what_was_read_in_one_precision_is_not_predicted_in_another():
    with pytest.raises(PredictionError, match="precision is bf16, but this step was read in fp32"):
        answer(precision="bf16")


# What if


def test_without_anything_imagined_there_is_no_baseline():
    assert answer(devices="h200")["baseline"] is None


@pytest.mark.parametrize("name", [*FACTORS, "loader"])
def test_the_baseline_is_the_answer_without_what_is_imagined(name):
    made = answer(devices="h200,t4", gpus=2, **{name: 2}, **TRAINING)
    plain = answer(devices="h200,t4", gpus=2, **TRAINING)
    order = [one["device"] for one in made["rows"]]
    assert made["baseline"]["rows"] == [row(plain, one) for one in order]
    for part in ("layers", "by_batch", "by_gpus", "data_flow"):
        assert made["baseline"][part] == plain[part]


@pytest.mark.parametrize("factor", ["compute", "bandwidth", "host"])
@pytest.mark.parametrize(
    ("label", "name"),
    [("alexnet-64-fp32", "h200"), ("alexnet-64-fp32", "t4"), ("resnet18-32-bf16", "a100-sxm-80gb")],
)
def test_more_of_anything_never_makes_a_step_longer_nor_shorter_than_its_share(label, name, factor):
    steps = {
        much: row(answer(kept(label), devices=name, **{factor: much}), name)["step_s"]
        for much in (0.25, 0.5, 1.0, 2.0, 8.0)
    }
    assert all(more <= less * (1 + 1e-9) for less, more in pairwise(steps.values()))
    for much, step_s in steps.items():
        assert min(1, 1 / much) * 0.999 <= step_s / steps[1.0] <= max(1, 1 / much) * 1.001


@pytest.mark.parametrize("name", ["h200", "t4"])
def test_twice_of_everything_takes_nearly_half_as_long(name):
    asked = kept("vgg11-64-fp32")
    plain = row(answer(asked, devices=name), name)["step_s"]
    made = row(answer(asked, devices=name, compute=2, bandwidth=2, host=2), name)["step_s"]
    assert 0.5 <= made / plain < 0.53  # a kernel's launch stays, and an optimizer's per tensor


def test_bandwidth_counts_where_memory_is_the_bottleneck_and_compute_where_products_are():
    def gains(label, name):
        asked = kept(label)
        plain = row(answer(asked, devices=name), name)["step_s"]
        return [
            plain / row(answer(asked, devices=name, **{factor: 4}), name)["step_s"]
            for factor in ("compute", "bandwidth")
        ]

    compute, bandwidth = gains("vgg16-64-fp32", "t4")
    assert compute > 2 > 1.2 > bandwidth
    compute, bandwidth = gains("mobilenet_v2-256-fp32", "rtx-4090")
    assert bandwidth > compute


def test_the_link_counts_between_gpus_alone():
    made = {much: answer(devices="t4", gpus=8, link=much) for much in (0.25, 1, 4)}
    steps = [row(one, "t4")["step_s"] for one in made.values()]
    assert steps == sorted(steps, reverse=True)
    assert row(made[4], "t4")["communication_s"] < row(made[1], "t4")["communication_s"]
    assert "exchange of gradients" in row(made[0.25], "t4")["bottleneck"]
    widths = [row(made[much], "t4")["interval_s"][1] / row(made[much], "t4")["step_s"] for much in (1, 4)]
    assert widths[0] == pytest.approx(widths[1])
    one = answer(devices="t4", link=4)
    assert row(one, "t4")["step_s"] == row(one["baseline"], "t4")["step_s"]


def test_a_link_as_fast_as_it_is_gives_what_predict_gives():
    near = row(answer(devices="a100-sxm-80gb", gpus=8, link=1 + 1e-12), "a100-sxm-80gb")
    meant = predict(kept(), device("a100-sxm-80gb"), gpus=8)
    assert near["step_s"] == pytest.approx(meant.step_s)
    assert near["communication_s"] == pytest.approx(meant.communication_s)
    assert near["bottleneck"] == meant.bottleneck


def test_an_imagined_device_has_the_interval_of_one_known_by_its_data_sheet():
    made = row(answer(devices="h200", compute=2))
    assert made["interval_s"][1] / made["step_s"] - 1 >= DATA_SHEET - 1e-9
    assert "with other figures" in made["basis"]
    assert any("never" in note or "no such device" in note for note in made["notes"])
    assert "other figures" not in row(answer(devices="h200", host=2))["basis"]


def test_a_cpu_says_that_it_has_no_other_host():
    made = answer(devices="epyc-7763", host=4)
    assert row(made, "epyc-7763")["step_s"] == row(made["baseline"], "epyc-7763")["step_s"]
    assert any("host" in note for note in row(made, "epyc-7763")["notes"])


def test_a_calibrated_cpu_is_imagined_from_its_own_times():
    folder = calibrations()
    folder.mkdir(parents=True)
    peaks = {"float32": 1e12, "tf32": 1e12, "bfloat16": 1e12, "float16": 1e12}
    facts = {"host": "device", "date": "2026-01-02", "type": "cpu"}
    made = Calibration(device="epyc-7763", peaks=peaks, bandwidth=1e11, forests={}, facts=facts)
    made.save(folder / "epyc-7763.npz")
    found = answer(devices="epyc-7763,h200", shown="epyc-7763", compute=2, bandwidth=2)
    one, plain = row(found, "epyc-7763"), row(found["baseline"], "epyc-7763")
    assert one["calibrated"]
    assert plain["basis"] == "calibration of 2026-01-02"
    assert 0.5 <= one["step_s"] / plain["step_s"] < 0.55
    assert row(found)["largest_batch"] > 0
    assert one["largest_batch"] is None


def test_many_at_once_get_the_same_answer():
    asked = [{"devices": "h200,t4", "batch": 50 + place % 3, "compute": 2} for place in range(9)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda query: answer(**query), asked))
    assert found[0] == found[3] == found[6] == answer(**asked[0])
    assert found[0] != found[1]


def test_memory_is_not_imagined():
    made = answer(kept("resnet50-128-fp32"), devices="t4", compute=4, bandwidth=4)
    for name in ("peak_memory_bytes", "reserved_memory_bytes", "fits", "largest_batch"):
        assert row(made, "t4")[name] == row(made["baseline"], "t4")[name]


def test_a_slow_loader_is_waited_for():
    made = answer(devices="h200", gpus=2, loader=500, **TRAINING)
    assert row(made)["samples_per_s"] == pytest.approx(500)
    assert "waits" in row(made)["bottleneck"]
    assert row(made)["dollars"] > row(made["baseline"])["dollars"]
    assert any("500 samples/s" in one for one in made["data_flow"])
    plenty = answer(devices="h200", loader=1e9)
    assert row(plenty)["step_s"] == pytest.approx(row(plenty["baseline"])["step_s"])


# From a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def slower(layer, phase, seconds):
        return seconds * (2.0 if layer == "0" else 1.3)

    return a_run(tmp_path_factory.mktemp("runs") / "run", times=slower, rest_s=0.002)


@pytest.mark.parametrize("batch", [64, 256])
@pytest.mark.parametrize("gpus", [1, 4])
def test_a_run_corrects_every_row_as_predict_does(run, batch, gpus):
    made = answer(a_workload(), run=run, devices="h200,h100-sxm,t4", batch=batch, gpus=gpus, **TRAINING)
    for one in made["rows"]:
        meant = predict_run(run, device(one["device"]), batch=batch, gpus=gpus, **TRAINING)
        for name in ("step_s", "epoch_s", "communication_s", "basis", "bottleneck", "peak_memory_bytes"):
            assert one[name] == pytest.approx(getattr(meant, name)), name
        assert one["interval_s"] == pytest.approx(meant.interval_s)
        assert sorted(one["notes"]) == sorted(meant.notes)
        if one["device"] == made["shown"]:
            told = {layer["name"]: layer["total_s"] for layer in made["layers"]}
            assert told["0"] == pytest.approx(next(x.total_s for x in meant.layers() if x.layer == "0"))


def test_a_runs_own_device_is_shown_and_its_timeline_is_as_long_as_its_layers(run):
    made = answer(a_workload(), run=run)
    assert made["shown"] == "h200"
    layers = sum(one["total_s"] for one in made["layers"])
    assert made["memory_timeline"]["end_s"] == pytest.approx(layers)


def test_a_faster_host_shortens_what_python_takes_between_the_phases(run):
    made = answer(a_workload(), run=run, devices="h200", host=8)
    assert row(made["baseline"])["step_s"] - row(made)["step_s"] > 0.001


def test_a_run_on_an_unknown_device_is_predicted_without_it(tmp_path):
    here = {"device": {"type": "cuda", "name": "Abacus 9000"}}
    made = answer(a_workload(), run=a_run(tmp_path / "run", environment=here), devices="h200")
    assert any("corrects nothing" in note for note in row(made)["notes"])
    assert row(made)["step_s"] == pytest.approx(predict(a_workload(), device("h200")).step_s)


def test_a_run_on_a_cpu_says_whose_operations_it_has(tmp_path):
    here = {"device": {"type": "cpu", "name": "Abacus 9000"}}
    made = answer(a_workload(), run=a_run(tmp_path / "run", environment=here), devices="h200")
    own = predict_run(a_run(tmp_path / "again", environment=here), device("h200"))
    assert [note for note in row(made)["notes"] if "CPU" in note]
    assert len(row(made)["notes"]) == len(own.notes)


def test_nothing_here_imports_torch():
    code = "import sys, laptime.report.whatif; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
