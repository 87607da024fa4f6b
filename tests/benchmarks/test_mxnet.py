"""MXNet's networks are those of the papers, and rows meet only those of their own series."""

from dataclasses import replace

import pytest
import torch
from benchmarks.mxnet_networks import NETWORKS, shape

from benchmarks import mxnet
from laptime.estimate.predict import predict
from laptime.hardware import device


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Alexnet", 50_844_008),  # counted by hand: 5 convolutions, and 6400 inputs to the first linear layer
        ("Inception-BN", 11_285_224),  # without the biases that its batch norms take away
        ("Inception-v3", 23_834_568),  # Keras and torchvision, without the auxiliary head
        ("Resnet 152", 60_192_808),
        ("fcn5", 11_492_328),
        ("fcn8", 24_081_384),
    ],
)
def test_networks_have_the_parameters_that_their_tables_of_widths_give(name, parameters):
    with torch.device("meta"):
        network = NETWORKS[name]()
        assert network(torch.zeros(2, *shape(name))).shape == (2, 1000)
    assert sum(one.numel() for one in network.parameters()) == parameters


@pytest.fixture(scope="module")
def step():
    asked = "fcn5", 2048, "training", "fp32"
    return mxnet.Row(
        device="K80", asked=asked, step_s=1.0, predicted=predict(mxnet.workloads()[asked], device("k80"))
    )


def batches(step, *sizes):
    name, _, mode, precision = step.asked
    return [replace(step, asked=(name, size, mode, precision)) for size in sizes]


def test_a_pair_is_of_one_series_and_within_four_times_the_batch(step):
    other = replace(step, device="M60")
    found = mxnet.pairs([*batches(step, 1, 4, 8), other])
    assert sorted((one.known.asked[1], one.wanted.asked[1]) for one in found) == [
        (1, 4),
        (4, 1),
        (4, 8),
        (8, 4),
    ]


def test_a_known_row_takes_its_own_error_off_the_wanted_one(step):
    one, four = batches(step, 1, 4)
    assert mxnet.Pair(known=one, wanted=four).error == pytest.approx(0.0)
    assert mxnet.Pair(known=one, wanted=replace(four, step_s=2.0)).error == pytest.approx(-0.5)
    assert mxnet.Pair(known=one, wanted=four).linear_error == pytest.approx(3.0)


def test_a_host_that_waits_adds_its_time(step):
    made = step.predicted
    assert mxnet.serial_s(made) == pytest.approx(made.busy_s + made.host_s)
    assert mxnet.serial_s(made) > made.step_s


def test_an_instance_has_its_share_of_the_processor():
    whole, half = (mxnet.machine(f"AWS EC2 {size} (CPU)") for size in ("C5.9xlarge", "C5.4xlarge"))
    assert half.peak("fp32") == pytest.approx(whole.peak("fp32") * 8 / 18)
    assert mxnet.machine("Tesla K80").name == "k80"


def test_what_ran_out_of_memory_is_no_row(tmp_path):
    head = "source,model,framework,device,n_devices,batch_per_device,precision,metric,value,unit,note"
    rows = [
        "s,VGG 16,MXNet,Tesla K80,1,128,fp32,inference_oom,1,flag,",
        "s,VGG 16,MXNet,Tesla K80,1,2,fp32,inference_throughput,50,images/s,",
    ]
    (tmp_path / "mxnet_perf_faq.csv").write_text("\n".join([head, *rows]), encoding="utf-8")
    assert list(mxnet.published(tmp_path)) == [("Tesla K80", ("VGG 16", 2, "inference", "fp32"), 0.04)]
