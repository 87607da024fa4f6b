"""Predictions from a measured run."""

import math
from dataclasses import replace

import pytest
import torch
from tests.estimate.runs import H200, a_run, a_workload, predicted
from torch import nn

import laptime
from laptime.errors import LaptimeError, PredictionError
from laptime.estimate.run_correction import (
    KEPT_ELSEWHERE,
    KEPT_PER_DOUBLING,
    LARGEST,
    measured_step,
    workload_of,
)
from laptime.model import Phase, Stage
from laptime.ops.rescaling import rescaled


def times(factor):
    return lambda layer, phase, seconds: seconds * factor


def by_name(prediction):
    return {one.layer: one for one in prediction.layers()}


def test_at_its_own_device_and_batch_a_run_gives_back_what_it_took(tmp_path):
    run = a_run(tmp_path / "run", times=times(1.7), rest_s=0.004, waiting_s=0.1)
    made = laptime.predict(run, device="h200")
    assert made.step_s == pytest.approx(1.7 * predicted(a_workload()).step_s + 0.004)
    assert f"refined by run {run.id}" in made.basis
    assert made.interval_s[0] < made.step_s < made.interval_s[1]


def test_a_layer_is_corrected_by_its_own_factor_in_its_own_phase(tmp_path):
    def slow_backward(layer, phase, seconds):
        return seconds * (2.5 if (layer, phase) == ("0", Phase.BACKWARD) else 1.0)

    made = by_name(laptime.predict(a_run(tmp_path / "run", times=slow_backward), device="h200"))
    plain = by_name(predicted(a_workload()))
    assert made["0"].backward_s / plain["0"].backward_s == pytest.approx(2.5, rel=0.15)
    assert made["0"].forward_s / plain["0"].forward_s == pytest.approx(1.0, rel=0.1)
    assert made["2"].backward_s / plain["2"].backward_s == pytest.approx(1.0, rel=0.1)


def test_a_noisy_layer_leans_on_the_factor_of_all_layers(tmp_path):
    def jumps(layer, number):
        return 1.0 if layer != "2" else (0.2, 4.0)[number % 2]

    steady = a_run(tmp_path / "steady", times=times(1.0), steps=9)
    noisy = a_run(tmp_path / "noisy", times=times(1.0), jitter=jumps, steps=9)
    made = by_name(laptime.predict(noisy, device="h200"))
    plain = by_name(laptime.predict(steady, device="h200"))
    alone = 0.2 if made["2"].forward_s < plain["2"].forward_s else 4.0
    assert abs(math.log(made["2"].forward_s / plain["2"].forward_s)) < abs(math.log(alone)) / 2


def test_an_absurd_factor_is_bounded(tmp_path):
    def absurd(layer, phase, seconds):
        return seconds * (1000 if layer == "0" else 1)

    made = by_name(laptime.predict(a_run(tmp_path / "run", times=absurd), device="h200"))
    plain = by_name(predicted(a_workload()))
    assert made["0"].forward_s / plain["0"].forward_s <= LARGEST


@pytest.mark.parametrize("batch", [32, 128, 256])
def test_at_another_batch_size_part_of_the_correction_is_left(tmp_path, batch):
    run = a_run(tmp_path / "run", times=times(1.3))
    made = laptime.predict(run, device="h200", batch=batch)
    plain = predicted(rescaled(a_workload(), batch))
    kept = KEPT_PER_DOUBLING ** abs(math.log2(batch / 64))
    assert made.batch == batch
    assert made.step_s == pytest.approx(plain.step_s * 1.3**kept, rel=0.02)
    assert made.interval_s[1] / made.step_s <= plain.interval_s[1] / plain.step_s + 1e-9
    assert any("carried over" in note for note in made.notes)


def test_a_step_that_took_three_times_as_long_does_so_at_another_batch_size_too(tmp_path):
    run = a_run(tmp_path / "run", times=times(3.0))
    made = laptime.predict(run, device="h200", batch=256)
    plain = predicted(rescaled(a_workload(), 256))
    assert made.step_s > 2 * plain.step_s
    assert made.interval_s[1] / made.step_s - 1 > plain.interval_s[1] / plain.step_s - 1


def test_another_device_takes_over_part_and_keeps_its_interval(tmp_path):
    run = a_run(tmp_path / "run", times=times(1.5), rest_s=0.05)
    made, plain = laptime.predict(run, device="h100-sxm"), predicted(a_workload(), "h100-sxm")
    assert made.step_s > plain.step_s
    layers = sum(one.total_s for one in plain.layers())
    assert sum(one.total_s for one in made.layers()) == pytest.approx(layers * 1.5**KEPT_ELSEWHERE, rel=0.02)
    assert made.step_s == pytest.approx(sum(one.total_s for one in made.layers()))
    widths = [one.interval_s[1] / one.step_s for one in (made, plain)]
    assert widths[0] == pytest.approx(widths[1])


def test_several_gpus_add_their_exchange_to_the_corrected_step(tmp_path):
    run = a_run(tmp_path / "run", times=times(1.5))
    one = laptime.predict(run, device="h200")
    many = laptime.predict(run, device="h200", gpus=8, samples=1000, epochs=2, price_per_hour=3.0)
    assert many.step_s - one.step_s == pytest.approx(many.communication_s)
    assert many.gpus == 8
    assert many.dollars > 0
    assert many.interval_s[1] / many.step_s > one.interval_s[1] / one.step_s


def test_phases_add_up_to_the_layers(tmp_path):
    made = laptime.predict(a_run(tmp_path / "run", times=times(1.5)), device="h200", batch=32)
    assert sum(made.phases.values()) == pytest.approx(sum(one.total_s for one in made.layers()))


def test_a_runs_path_is_as_good_as_the_run(tmp_path):
    run = a_run(tmp_path / "run", times=times(1.5))
    for path in (str(run.path), run.path / "run.json"):
        assert laptime.predict(path, device="h200").step_s == laptime.predict(run, device="h200").step_s


def test_the_configurations_name_of_the_network_is_taken(tmp_path):
    run = a_run(tmp_path / "run", config={"network": {"name": "alexnet"}})
    assert laptime.predict(run).network == "alexnet"


def test_inference_is_predicted_from_the_forward_pass_of_a_training(tmp_path):
    run = a_run(tmp_path / "run", times=times(1.5))
    made = laptime.predict(run, device="h200", mode="inference")
    forward = sum(one.forward_s for one in predicted(a_workload()).layers() if one.layer)
    assert made.mode == "inference"
    assert made.step_s < laptime.predict(run, device="h200").step_s / 2
    assert made.step_s == pytest.approx(forward * 1.5, rel=0.15)
    assert made.peak_memory_bytes < laptime.predict(run, device="h200").peak_memory_bytes


def test_a_forward_pass_taken_from_a_training_keeps_nothing_for_a_backward_pass(tmp_path):
    with torch.device("meta"):
        network = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))
        example = torch.empty(8192, 1024)
    run = a_run(tmp_path / "run", workload=laptime.workload(network, example=example))
    found = laptime.predict(run, device="h200", mode="inference").peak_memory_bytes
    meant = predicted(laptime.workload(network, example=example, mode="inference")).peak_memory_bytes
    assert found == pytest.approx(meant, rel=0.1)


def test_a_run_on_an_unknown_device_corrects_nothing_and_says_so(tmp_path):
    here = {"device": {"type": "cuda", "name": "Abacus 9000"}}
    run = a_run(tmp_path / "run", times=times(3.0), environment=here)
    made = laptime.predict(run, device="h200")
    assert made.step_s == predicted(a_workload()).step_s
    assert any("laptime calibrate" in note for note in made.notes)


@pytest.mark.parametrize(("gpus", "batch"), [(1, 64), (1, 128), (4, 64)])
def test_with_gradient_accumulation_a_step_has_its_share_of_an_update(tmp_path, gpus, batch):
    run = a_run(tmp_path / "run", accumulate=4, steps=21)
    assert workload_of(run) == replace(a_workload(), accumulate=4)
    alone = predicted(a_workload())
    update_s = sum(layer.update_s for layer in alone.layers())
    assert measured_step(run).step_s.median == pytest.approx(alone.step_s - update_s * 3 / 4, rel=1e-3)
    options = {"device": "h200", "batch": batch, "gpus": gpus}
    made, every = laptime.predict(run, **options), laptime.predict(a_workload(), **options)
    less = sum(layer.update_s for layer in every.layers()) * 3 / 4
    assert sum(layer.update_s for layer in made.layers()) == pytest.approx(less / 3, rel=0.01)
    if gpus == 1:
        assert made.step_s == pytest.approx(every.step_s - less, rel=0.01)
    else:  # gradients travel once for each update
        assert 0 < made.communication_s < every.communication_s / 2
    assert measured_step(a_run(tmp_path / "often", steps=21)).step_s.median == pytest.approx(alone.step_s)


def test_a_run_of_forward_passes_says_nothing_of_training(tmp_path):
    run = a_run(tmp_path / "run", stage=Stage.VALIDATION)
    with pytest.raises(PredictionError, match="forward passes only"):
        laptime.predict(run, device="h200")
    assert laptime.predict(run, device="h200", mode="inference").mode == "inference"


@pytest.mark.parametrize("status", ["failed", "finished"])
def test_a_run_without_steps_is_refused_in_one_line(tmp_path, status):
    run = a_run(tmp_path / "run", steps=0, status=status)
    with pytest.raises(PredictionError, match="record some training steps first"):
        laptime.predict(run, device="h200")


def test_a_run_without_a_workload_names_the_reason_and_the_way_around(tmp_path):
    run = a_run(tmp_path / "run")
    (run.path / "workload.json").unlink()
    run.summary["workload"] = {"read": False, "reason": "torch.compile is in use"}
    with pytest.raises(PredictionError, match=r"torch.compile is in use.*laptime.predict\(network"):
        laptime.predict(run, device="h200")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "above 0"),
        ({"precision": "bf16"}, "a run has its own"),
        ({"mode": "backwards"}, "training or inference"),
        ({"gpus": 0}, "from 1 to 16"),
        ({"samples": -1}, "above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path, options, said):
    run = a_run(tmp_path / "run", environment=H200)
    with pytest.raises(LaptimeError, match=said) as error:
        laptime.predict(run, device="h200", **options)
    assert "\n" not in str(error.value)
