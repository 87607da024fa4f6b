"""The data flow of a predicted step, by the names a user gives."""

import pytest
from tests.estimate.test_largest import workload

from laptime import hardware
from laptime.errors import LaptimeError, PredictionError
from laptime.estimate.dataflow import PILLOW_CROP, Feed, feed, waited
from laptime.estimate.predict import predict
from laptime.hardware import link, storage

DEVICE = hardware.device("gtx-1080")
ASKED = workload(64, 10**9)


def alone(device=DEVICE, *, gpus=1, samples=640):
    return predict(ASKED, device, gpus=gpus, samples=samples, epochs=3)


def fed(device=DEVICE, *, gpus=1, samples=640, **given):
    return feed(Feed(**given), alone(device, gpus=gpus, samples=samples), ASKED, device)


def test_what_is_not_said_starves_nobody_and_the_link_is_the_devices():
    made, flow = alone(), fed()
    assert not flow.times.starves
    assert flow.times.step_s == made.step_s
    assert waited(made, flow.times) is made
    assert any(words.endswith(f"over {link(DEVICE.host_link).title}") for words in flow.rests_on)


def test_names_are_looked_up_and_a_count_before_one_is_a_raid():
    flow = fed(storage="5xnvme", sample_bytes=1e5, link="pcie4", remote="10GbE")
    assert f"5 × {storage('nvme').title}" in flow.rests_on
    assert f"over {link('ethernet-10g').title}" in flow.rests_on
    assert any(words.endswith(f"a sample over {link('pcie-4-x16').title}") for words in flow.rests_on)
    single = fed(storage="nvme", sample_bytes=1e5)
    assert flow.times.stages["storage"] == pytest.approx(single.times.stages["storage"] / 5)


def test_cores_alone_decode_as_pillow_does_and_a_rate_replaces_it():
    cores = fed(decode_cores=3)
    assert cores.times.stages["decode"] == pytest.approx(64 / (3 * PILLOW_CROP.samples_per_s))
    found = fed(decode_rate=10.0)
    assert found.times.stages["decode"] == pytest.approx(6.4)


def test_a_starved_step_is_longer_and_so_are_its_interval_epoch_and_training():
    found = fed(decode_rate=10.0)
    made = alone()
    later = waited(made, found.times)
    assert found.times.starving == "decode"
    assert later.step_s == found.times.step_s == pytest.approx(6.4)
    assert found.epoch_s == pytest.approx(64)
    assert found.training_s == later.training_s == pytest.approx(192)
    assert later.interval_s[1] / later.step_s == pytest.approx(made.interval_s[1] / made.step_s)
    assert later.bottleneck.startswith("decode")


def test_everything_that_was_taken_for_granted_is_told():
    told = "; ".join(fed(decode_cores=2).rests_on)
    for words in ("host's memory", "kept at the node", "2 cores at 400", "PCI Express", "with prefetching"):
        assert words in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"storage": "nvme"}, "bytes of a stored sample"),
        ({"remote": "10GbE"}, "bytes of a stored sample"),
        ({"direct": True}, "samples of its own"),
        ({"storage": "floppy", "sample_bytes": 1.0}, "no storage is called 'floppy'"),
        ({"storage": "0xnvme", "sample_bytes": 1.0}, "no drives"),
        ({"link": "string"}, "no link is called 'string'"),
        ({"decode_rate": 0.0}, "moves 0"),
        ({"decode_rate": -5.0}, "moves -5"),
        ({"sample_bytes": -1.0}, "sample_bytes"),
        ({"gpus_per_link": 2}, "gpus_per_link"),
    ],
)
def test_nonsense_is_one_line(given, words):
    with pytest.raises(LaptimeError, match=words) as told:
        fed(**given)
    assert "\n" not in str(told.value)


def test_direct_transfers_need_the_same_samples_for_all():
    found = fed(gpus=2, same_samples=True, direct=True)
    assert found.times.stages["direct"] > 0
    assert found.times.samples == 64
    with pytest.raises(PredictionError):
        fed(gpus=2, direct=True)
