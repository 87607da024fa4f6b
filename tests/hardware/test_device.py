import pickle

import pytest

from laptime.errors import HardwareError
from laptime.hardware import Device, device


def a_device(**figures):
    return Device(name="box", title="box", kind="gpu", memory_bandwidth_gbs=100, **figures)


@pytest.mark.parametrize(
    ("name", "precision", "teraflops", "figure"),
    [
        ("h200", "bf16", 989.4, "bf16"),
        ("h200", "tf32", 494.7, "tf32"),
        ("h200", "fp32", 66.9, "fp32"),
        ("v100", "fp16", 125, "fp16"),
        ("v100", "bf16", 15.7, "fp32"),
        ("v100", "tf32", 15.7, "fp32"),
        ("p100", "fp16", 18.7, "fp16_vector"),
        ("gtx-1080", "fp16", 8.873, "fp32"),
        ("k80", "fp16", 4.368, "fp32"),
        ("mi210", "fp32", 45.3, "fp32_matrix"),
        ("mi210", "tf32", 45.3, "fp32_matrix"),
        ("xeon-platinum-8480+", "bf16", 114.7, "bf16"),
        ("h200", "bfloat16", 989.4, "bf16"),
        ("h200", "float32", 66.9, "fp32"),
    ],
)
def test_a_precision_runs_on_the_best_units_there_are(name, precision, teraflops, figure):
    peak = device(name).peak_of(precision)
    assert peak.flops == pytest.approx(teraflops * 1e12)
    assert peak.figure == figure
    assert device(name).peak(precision) == peak.flops


def test_a_fallback_says_what_it_is():
    assert device("h200").peak_of("fp16").fallback is None
    assert device("mi210").peak_of("fp32").fallback is None
    assert device("p100").peak_of("fp16").fallback.startswith("no matrix units for fp16: vector units")
    assert device("gtx-1080").peak_of("fp16").fallback == "no units for fp16: runs as fp32"


def test_a_peak_that_nobody_gave_is_an_error_and_not_a_zero():
    box = a_device(bf16=10.0)
    assert box.peak("bf16") == 10e12
    with pytest.raises(HardwareError, match="box has no figure for fp32; add fp32"):
        box.peak("fp32")


def test_an_unknown_precision_lists_the_known_ones():
    with pytest.raises(HardwareError, match="'int4' is no precision; give one of fp32, tf32, fp16, bf16"):
        device("h200").peak("int4")


def test_units_are_bytes_and_seconds_inside():
    box = a_device(fp32=1.0, memory_gib=2.0)
    assert box.memory_bytes == 2 * 2**30
    assert box.memory_bandwidth == 100e9


def test_memory_that_is_not_known_is_none():
    assert a_device(fp32=1.0).memory_bytes is None
    assert device("i7-3820").memory_bytes is None


def test_a_device_can_be_hashed_and_sent_to_another_process():
    one = device("h200")
    assert pickle.loads(pickle.dumps(one)) == one
    assert len({one, device("H200")}) == 1
