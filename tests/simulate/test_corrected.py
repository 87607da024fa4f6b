"""Simulations of a measured run: one worker takes what the run took, others what follows from it."""

import pytest
from tests.estimate.runs import a_run, a_workload

import laptime
from laptime import hardware
from laptime.model import Account

TWICE = 2.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return a_run(
        tmp_path_factory.mktemp("runs") / "run",
        times=lambda layer, phase, seconds: seconds * TWICE,
        rest_s=0.004,
        waiting_s=0.1,
    )


@pytest.fixture(scope="module")
def cluster():
    return hardware.cluster("aws-p5en", nodes=2)


def test_one_worker_takes_what_the_run_took(run, cluster):
    made = laptime.simulate(run, cluster=cluster, workers=1)
    predicted = laptime.predict(run, device=cluster.device)
    assert made.step_s == pytest.approx(predicted.step_s, rel=1e-3)
    assert made.interval == pytest.approx(predicted.interval_s[1] / predicted.step_s - 1)
    assert made.step.ranks[0].accounts()[Account.HOST] == pytest.approx(0.004, rel=0.01)
    assert any("the run took" in note for note in made.notes)


@pytest.mark.parametrize(("device", "batch"), [("aws-p4d", 64), ("aws-p5en", 256)])
def test_elsewhere_a_part_of_the_correction_is_left(run, device, batch):
    made = laptime.simulate(run, cluster=device, workers=1, batch=batch)
    plain = laptime.simulate(a_workload(), cluster=device, workers=1, batch=batch)
    predicted = laptime.predict(run, device=hardware.cluster(device).device, batch=batch)
    assert 1.1 * plain.step_s < made.step_s < TWICE * plain.step_s + 0.004
    assert made.step_s == pytest.approx(predicted.step_s, rel=1e-2)


def test_eight_workers_compute_as_long_and_exchange_as_before(run, cluster):
    made = laptime.simulate(run, cluster=cluster, workers=8)
    plain = laptime.simulate(a_workload(), cluster=cluster, workers=8)
    mine, theirs = (each.step.ranks[0] for each in (made, plain))
    assert mine.layers()[0].forward_s == pytest.approx(TWICE * theirs.layers()[0].forward_s, rel=0.01)
    for one, other in zip(mine.transfers, theirs.transfers, strict=True):
        assert (one.kind, one.bytes) == (other.kind, other.bytes)
        assert one.seconds == pytest.approx(other.seconds)


def test_a_pipeline_is_cut_by_what_the_layers_took(tmp_path, cluster):
    def slow(layer, phase, seconds):
        return seconds * (4.0 if layer == "0" else 1.0)

    run = a_run(tmp_path / "run", times=slow)
    made = laptime.simulate(run, cluster=cluster, parallel="model,stages=2,micro_batches=2", workers=2)
    assert made.step.ranks[1].bubbles()["fill"] > made.step.ranks[0].bubbles()["fill"]


def test_a_run_of_an_unknown_device_corrects_nothing_and_says_so(tmp_path, cluster):
    unknown = {"device": {"type": "cuda", "name": "Nobody's GPU"}}
    run = a_run(tmp_path / "run", times=lambda layer, phase, seconds: 2 * seconds, environment=unknown)
    made = laptime.simulate(run, cluster=cluster, workers=1)
    assert made.step_s == pytest.approx(laptime.simulate(a_workload(), cluster=cluster, workers=1).step_s)
    assert any("corrects nothing" in note for note in made.notes)
