"""The prediction page's data, of machines that are so many times faster, and from runs."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from tests.estimate.runs import a_run, a_workload
from tests.estimate.whatifs import TRAINING, answer, kept, leave_home, row
from torch import nn

import laptime
from laptime.estimate.calibration import Calibration
from laptime.estimate.device_speed import calibrations
from laptime.estimate.predict import DATA_SHEET, predict
from laptime.estimate.run_correction import CPU_PIECES, predict_run, workload_of
from laptime.estimate.whatif import FACTORS
from laptime.hardware import device


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    leave_home(monkeypatch, tmp_path)


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
        meant = predict_run(run, [device(one["device"])], batch=batch, gpus=gpus, **TRAINING)[0]
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


class Attention(nn.Module):
    """As wide as its input, which has three samples of five steps."""

    def __init__(self, dropout):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = dropout

    def forward(self, x):
        x = self.linear(x)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)


@pytest.mark.parametrize(
    ("network", "in_pieces"),
    [(Attention(0.1), True), (Attention(0.0), False), (nn.GRU(8, 8), True), (nn.LSTM(8, 8), False)],
)
def test_a_run_on_a_cpu_names_operations_that_a_gpu_joins_if_it_has_any(tmp_path, network, in_pieces):
    chosen = torch.optim.SGD(network.parameters(), lr=0.01)
    with laptime.record(network, chosen, out=tmp_path / "run") as recording:
        for _ in range(3):
            with recording.step():
                out = network(torch.ones(3, 5, 8))
                (out[0] if isinstance(out, tuple) else out).sum().backward()
                chosen.step()
    workload = workload_of(recording.run)
    made = answer(workload, run=recording.run, devices="h200")
    own = predict_run(recording.run, [device("h200")])[0]
    assert [CPU_PIECES in notes for notes in (row(made)["notes"], own.notes)] == [in_pieces] * 2


def test_nothing_here_imports_torch():
    code = "import sys, laptime.estimate.whatif; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
