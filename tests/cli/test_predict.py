"""`laptime predict`: tables, JSON, saved workloads, and one line for what cannot be predicted."""

import json

import pytest


def test_a_network_of_the_zoo_is_predicted_layer_by_layer(laptime):
    done = laptime("predict", "zener4", "--batch", "64", "--samples", "1000", "--epochs", "10")
    assert done.exit_code == 0
    for word in ("zener4: a training step in fp32, predicted", "conv1", "bottleneck", "h200", "hours"):
        assert word in done.stdout


def test_devices_and_batches_make_a_table(laptime):
    words = ["--device", "a100-sxm-80gb", "--device", "gtx-1080", "--batch", "8,16", "--precision", "bf16"]
    done = laptime("predict", "resnet18", *words, "--json")
    found = json.loads(done.stdout)["predictions"]
    assert [(one["device"], one["batch"]) for one in found] == [
        ("a100-sxm-80gb", 8),
        ("gtx-1080", 8),
        ("a100-sxm-80gb", 16),
        ("gtx-1080", 16),
    ]
    assert all(one["step_s"] > 0 and one["interval_s"][0] < one["step_s"] for one in found)
    assert found[0]["peak_memory_bytes"] < found[2]["peak_memory_bytes"]


def test_a_saved_workload_predicts_the_same(laptime, tmp_path):
    file = str(tmp_path / "zener4.json")
    first = laptime("predict", "zener4", "--save", file, "--json")
    again = laptime("predict", file, "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_forward_passes_alone_take_less(laptime):
    step, forward = (
        json.loads(laptime("predict", "alexnet", "--batch", "128", *words, "--json").stdout)["predictions"][0]
        for words in ([], ["--inference"])
    )
    assert forward["step_s"] < step["step_s"] / 2
    assert forward["peak_memory_bytes"] < 0.6 * step["peak_memory_bytes"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nonsense"], "no network is called"),
        (["zener4", "--device", "h2000"], "h200"),
        (["zener4", "--batch", "0"], "--batch"),
        (["zener4", "--batch", "many"], "--batch"),
        (["zener4", "--precision", "int4"], "precision"),
        (["zener4", "--price", "-1"], "price_per_hour"),
        (["zener4", "--samples", "0"], "samples"),
        (["zener4", "--optimizer", "magic"], "optimizer"),
        (["missing.json"], "cannot be read"),
        (["torch.nn:Identity"], "--input"),
        (["torch.nn:Identity", "--input", "3x"], "--input"),
    ],
)
def test_what_cannot_be_predicted_is_told_in_one_line(laptime, words, line):
    done = laptime("predict", *words)
    assert done.exit_code in (1, 2)
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def test_several_gpus_take_longer_for_a_step_and_less_for_the_training(laptime):
    words = ["predict", "resnet50", "--batch", "64", "--samples", "100000", "--epochs", "1", "--json"]
    one, eight = (
        json.loads(laptime(*words, "--gpus", count).stdout)["predictions"][0] for count in ("1", "8")
    )
    assert eight["step_s"] > one["step_s"]
    assert one["training_s"] / 8 < eight["training_s"] < one["training_s"] / 4
    assert eight["communication_s"] == pytest.approx(eight["step_s"] - one["step_s"])
    assert "gpus=1" in laptime("predict", "resnet50", "--inference", "--gpus", "2").stderr
