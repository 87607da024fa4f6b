"""Learned times of operations: near the roofline, saved without pickles, evaluated by numpy."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.reference_ops import read

from laptime import hardware
from laptime.errors import CalibrationError
from laptime.estimate.calibration import LAUNCH_US, Calibration, TimedOperation, fit, kernel_work
from laptime.estimate.device_speed import Speed
from laptime.estimate.op_times import predict_step, prepare
from laptime.estimate.predict import bottleneck
from laptime.model import Memory, Operation, Phase, Workload

PEAKS = {"float32": 60e12, "tf32": 450e12, "bfloat16": 900e12}


def product(m, k, n, dtype="float32"):
    return kernel_work("mm", dtype, {"m": m, "k": k, "n": n}, 4 * (m * k + k * n + m * n))


def swept(share, count=200):
    """A device that reaches a share of its peak in matrix products."""
    draw = np.random.default_rng(0)
    for _ in range(count):
        work = product(*(int(size) for size in 2 ** draw.integers(7, 13, 3)))
        yield TimedOperation(
            name="mm", work=work, device_us=work.flops / (share * 60e12) * 1e6 + LAUNCH_US, host_us=20.0
        )


@pytest.fixture(scope="module")
def calibration():
    return fit(swept(0.5), device="mine", peaks=PEAKS, bandwidth=4.8e12, facts={"rows": 200})


def test_what_a_sweep_shows_is_predicted_for_other_sizes(calibration):
    works = [product(300, 700, 900), product(5000, 1000, 2000), product(1500, 1500, 1500)]
    expected = [work.flops / 30e12 * 1e6 + LAUNCH_US for work in works]
    assert calibration.times_us(works) == pytest.approx(expected, rel=0.15)


def test_far_outside_of_the_sweep_it_stays_near_the_roofline(calibration):
    work = product(100_000, 100_000, 100_000)
    assert calibration.times_us([work])[0] == pytest.approx(2 * calibration.bound_us(work), rel=0.2)


def test_a_kind_without_a_model_takes_its_bound(calibration):
    work = kernel_work("softmax", "float32", {"r": 1000, "d": 1000}, 8_000_000)
    assert calibration.times_us([work])[0] == calibration.bound_us(work)


def test_a_saved_calibration_gives_the_same_times(calibration, tmp_path):
    calibration.save(tmp_path / "mine.npz")
    again = Calibration.load(tmp_path / "mine.npz")
    works = [product(300, 700, 900), product(64, 64, 64)]
    assert again.times_us(works).tolist() == calibration.times_us(works).tolist()
    assert (again.device, again.facts, again.host_us) == ("mine", {"rows": 200}, {"mm/float32": (20.0, 0.0)})


def convolution(n, c):
    sizes = {"n": n, "c": c, "o": c, "h": 28, "w": 28, "k": 3, "s": 1, "p": 1, "g": 1, "places": 784}
    return kernel_work("convolution", "float32", sizes | {"window": 9}, 8 * n * c * 784 + 36 * c * c)


def test_workspaces_and_the_hosts_times_survive_a_file(tmp_path):
    rows = [
        TimedOperation(
            name="c", work=work, device_us=90.0, host_us=30.0 + number % 3, workspace=2 * work.bytes
        )
        for number in range(60)
        if (work := convolution(1 + number % 8, 16 * (1 + number % 5)))
    ]
    made = fit(rows, device="mine", peaks=PEAKS, bandwidth=4.8e12)
    made = replace(made, host_us={**made.host_us, "recurrent/float32": (40.0, 7.5)})
    made.save(tmp_path / "mine.npz")
    again = Calibration.load(tmp_path / "mine.npz")
    works = [convolution(4, 48), convolution(7, 80)]
    assert set(again.workspaces) == {("convolution", "float32")}
    assert again.workspace_bytes(works).tolist() == made.workspace_bytes(works).tolist()
    assert again.workspace_bytes(works) == pytest.approx([2 * work.bytes for work in works], rel=0.2)
    assert again.host_us == {"convolution/float32": (31.0, 0.0), "recurrent/float32": (40.0, 7.5)}
    sizes = {"b": 8, "s": 10, "i": 32, "h": 32, "l": 1, "gates": 4, "directions": 1}
    assert again.launch_us(kernel_work("recurrent", "float32", sizes, 1)) == (40.0, 9 * 7.5)


def products(count, size=8):
    """A forward pass of so many matrix products."""
    each = Operation(
        name="aten.mm",
        kind="mm",
        phase=Phase.FORWARD,
        layer="",
        dtype="float32",
        sizes={"m": size, "k": size, "n": size},
        flops=2 * size**3,
        read=8 * size**2,
        written=4 * size**2,
    )
    memory = Memory(parameters=0, gradients=0, buffers=0, state=0, inputs=0, activations=0, peak=0)
    return Workload(
        network="products",
        batch=1,
        precision="fp32",
        mode="inference",
        parameters=0,
        tensors=0,
        sample_bytes=0,
        layers=(),
        operations=(each,) * count,
        memory=memory,
    )


def step_with(calibration, host_us, **form):
    """On a device whose host takes so long for every operation."""
    own = replace(calibration, host_us={"mm/float32": (host_us, 0.0), "elementwise/float32": (host_us, 0.0)})
    speed = Speed(device=hardware.device("h200"), calibration=own)
    return predict_step(prepare(products(200, **form), own), speed)


def test_a_step_bound_by_the_host_takes_as_much_longer_as_its_host_does(calibration):
    fast, slow = (step_with(calibration, host_us) for host_us in (20.0, 40.0))
    assert fast.busy_s == slow.busy_s < fast.step_s / 2
    assert slow.step_s == pytest.approx(2 * fast.step_s)
    assert slow.step_s == pytest.approx(slow.host_s)


def test_a_host_that_takes_the_whole_step_is_the_bottleneck_though_the_device_hardly_waits(calibration):
    busy = step_with(calibration, 50.0, size=1024)
    assert busy.busy_s > 0.85 * busy.step_s
    assert busy.host_s == pytest.approx(busy.step_s)
    assert bottleneck(busy).startswith("the host: it takes all of the step, and the device waits for it")
    idle = step_with(calibration, 20.0, size=4096)
    assert bottleneck(idle).startswith("matrix products")


def test_a_step_bound_by_the_device_takes_the_same_with_a_slower_host(calibration):
    fast, slow = (step_with(calibration, host_us, size=4096) for host_us in (20.0, 40.0))
    assert slow.host_s == pytest.approx(2 * fast.host_s)
    assert slow.step_s == pytest.approx(fast.step_s, rel=1e-9)


def test_an_update_that_waits_for_the_host_is_split_by_bytes_and_the_step_stays_as_long(calibration):
    own = replace(calibration, host_us={"mm/float32": (20.0, 0.0), "elementwise/float32": (20.0, 0.0)})
    pass_only = products(20)
    updates = tuple(
        replace(
            pass_only.operations[0],
            kind="optimizer",
            phase=Phase.UPDATE,
            layer=layer,
            sizes={"params": size, "tensors": 1},
            flops=0,
            read=8 * size,
            written=4 * size,
        )
        for layer, size in (("embedding", 1_000), ("lstm", 19_000))
    )
    training = replace(pass_only, mode="training", operations=(*pass_only.operations, *updates))
    step = predict_step(prepare(training, own), Speed(device=hardware.device("h200"), calibration=own))
    small, large = step.operations[-2:]
    assert small.span_s + large.span_s > 10 * (small.device_s + large.device_s)  # it waits
    assert large.span_s == pytest.approx(19 * small.span_s)
    assert large.device_s == pytest.approx(19 * small.device_s)
    assert sum(one.span_s for one in step.operations) == pytest.approx(step.step_s)


def test_a_host_that_is_the_device_hands_nothing_over():
    alone = fit(swept(0.5), device="cpu", peaks=PEAKS, bandwidth=4.8e12, facts={"host": "device"})
    workload = products(1)
    h200 = hardware.device("h200")
    assert predict_step(prepare(workload, alone), Speed(device=h200, calibration=alone)).host_s == 0.0
    handed = replace(alone, facts={})
    step = predict_step(prepare(workload, handed), Speed(device=h200, calibration=handed))
    assert step.host_s > 10e-6
    by_data_sheet = Speed(device=hardware.device("i7-3820"), calibration=handed)
    assert predict_step(prepare(workload, handed), by_data_sheet).host_s == 0.0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"{}"])
def test_a_file_that_is_no_calibration_is_told_in_one_line(content, tmp_path):
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(CalibrationError) as told:
        Calibration.load(tmp_path / "mine.npz")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "change",
    [
        {"peaks": {}},
        {"peaks": {"float32": 0.0}},
        {"bandwidth": None},
        {"host_us": {"mm/float32": 20.0}},
        {"laptime_calibration": 1},
    ],
    ids=str,
)
def test_a_calibration_that_lacks_something_is_told_in_one_line(change, calibration, tmp_path):
    calibration.save(tmp_path / "mine.npz")
    with np.load(tmp_path / "mine.npz") as file:
        arrays = dict(file.items())
    head = json.loads(str(arrays.pop("head"))) | change
    np.savez(tmp_path / "mine.npz", head=np.array(json.dumps(head)), **arrays)
    with pytest.raises(CalibrationError, match="calibrate") as told:
        Calibration.load(tmp_path / "mine.npz")
    assert "\n" not in str(told.value)


def test_trees_in_numpy_are_those_of_scikit_learn():
    from sklearn.ensemble import HistGradientBoostingRegressor

    from laptime.estimate.calibration import _as_arrays

    draw = np.random.default_rng(1)
    rows = draw.normal(size=(500, 5))
    model = HistGradientBoostingRegressor(max_iter=40).fit(rows, rows[:, 0] * rows[:, 1])
    assert _as_arrays(model)(rows) == pytest.approx(model.predict(rows), rel=1e-4, abs=1e-4)


def test_a_sweep_is_read_from_its_file(tmp_path):
    file = tmp_path / "ops.csv"
    file.write_text(
        "op,dtype,shape,flops,bytes_in,bytes_out,device_us,host_us\n"
        "convolution,float32,n8 c256 h8 o32 k5 s1 p2 g1,209715200,1343488,65536,25.44,34.36\n"
        "max_pool,bfloat16,n8 c224 h17 k3 s1,0,1,1,36.0,17.8\n"
        "relu,float32,n77701,0,310804,310804,2.75,13.7\n"
    )
    found = list(read(file))
    assert [one.work.kind for one in found] == ["convolution", "pool", "elementwise"]
    assert found[0].work.flops == 209715200
