"""Devices without a calibration: what carries over from the H200, and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laptime import hardware
from laptime.estimate import datasheet_transfer as module
from laptime.estimate.calibration import Work, work
from laptime.estimate.datasheet_transfer import GPU, Constants, shares, traits
from laptime.hardware import Device
from laptime.model import Operation, Phase
from laptime.ops.registry import kind_named

FILLED_US = 10_000.0


def sort_of(operation: Operation, made: Work, mode: str) -> str:
    return kind_named(made.kind).transfer_class(operation.sizes, mode)


def _operation(kind: str, dtype: str = "float32", **sizes: int) -> Operation:
    name = {"batch_norm": "native_batch_norm"}.get(kind, kind)
    return Operation(
        name=f"aten.{name}",
        kind=kind,
        phase=Phase.FORWARD,
        layer="",
        dtype=dtype,
        sizes=sizes,
        flops=0,
        read=4 * sizes.get("n", 1),
        written=4 * sizes.get("n", 1),
    )


def _product(dtype: str = "float32", size: int = 4096) -> tuple[str, Work]:
    operation = _operation("mm", dtype, m=size, k=size, n=size)
    made = work(operation)
    return sort_of(operation, made, "training"), made


def _elementwise(count: int = 2**28) -> tuple[str, Work]:
    operation = _operation("elementwise", n=count)
    made = work(operation)
    return sort_of(operation, made, "training"), made


def _us(device: Device, one: tuple[str, Work], measured_us: float = FILLED_US) -> float:
    return float(shares(device).times_us([one[0]], [one[1]], np.array([measured_us]))[0])


def _convolution(**sizes: int) -> Operation:
    given = {"n": 8, "c": 64, "o": 64, "g": 1, "h": 56, "k": 3, "s": 1, "places": 3136, "window": 9}
    return _operation("convolution", **(given | sizes))


@pytest.mark.parametrize("one", [_product(), _product("bfloat16"), _elementwise()])
@pytest.mark.parametrize("measured_us", [6_000.0, 50_000.0])
def test_an_h200_by_its_data_sheet_is_the_h200_that_was_measured(
    one: tuple[str, Work], measured_us: float
) -> None:
    assert _us(hardware.device("h200"), one, measured_us) == pytest.approx(measured_us)


@pytest.mark.parametrize("name", ["h100-pcie", "b200", "mi300x"])
def test_a_device_that_starves_its_kernels_as_an_h200_does_keeps_their_excess(name: str) -> None:
    device = hardware.device(name)
    mine = traits(device)
    one = _elementwise(1)
    expected = 1e6 * mine.clock * mine.multiprocessors * mine.power**-GPU.throttle
    assert _us(device, one, 1e6) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("device", hardware.devices(), ids=lambda one: one.name)
def test_every_device_of_the_catalog_gets_times_that_are_finite_and_near_its_bounds(device: Device) -> None:
    for sort, made in (_product(), _product("float16"), _product("bfloat16"), _elementwise()):
        bound = max(
            made.flops / device.peak({"float32": "fp32"}.get(made.dtype, made.dtype)),
            made.bytes / device.memory_bandwidth,
        )
        found = _us(device, (sort, made), measured_us=1.0)  # nothing but the bound
        assert 0.3 * bound < found * 1e-6 < 8 * bound


def test_fp16_runs_on_tensor_cores_where_bf16_has_no_units() -> None:
    v100 = hardware.device("v100-sxm2-16gb")
    assert _us(v100, _product("float16"), 1.0) < _us(v100, _product("bfloat16"), 1.0) / 4


def test_an_excess_of_long_operations_follows_number_and_clock_of_multiprocessors() -> None:
    whole = hardware.device("rtx-4090")
    half = replace(whole, name="half", sms=64, fp32=41.3, tdp_w=225.0)
    one = _elementwise(1)  # no bound to speak of
    assert _us(half, one, 1e6) / _us(whole, one, 1e6) == pytest.approx(2, rel=0.01)


def test_an_excess_of_short_operations_follows_the_clock_alone() -> None:
    whole = hardware.device("rtx-4090")
    half = replace(whole, name="half", sms=64, fp32=41.3, tdp_w=225.0)
    slow = replace(whole, name="slow", clock_mhz=1260.0, fp32=41.3, tdp_w=225.0)
    one = _elementwise(1)
    assert _us(half, one, 0.01) == pytest.approx(_us(whole, one, 0.01), rel=0.01)
    assert _us(slow, one, 0.01) == pytest.approx(2 * _us(whole, one, 0.01), rel=0.01)


def test_a_card_with_little_power_for_its_architecture_computes_slower_but_moves_as_fast() -> None:
    t4 = hardware.device("t4")
    fed = replace(t4, tdp_w=250.0)
    assert traits(t4).power < 1 == traits(fed).power
    assert _us(t4, _product(), 1.0) > 1.2 * _us(fed, _product(), 1.0)
    assert _us(t4, _elementwise(), 1.0) == _us(fed, _elementwise(), 1.0)


@pytest.mark.parametrize(("name", "units"), [("v100-sxm2-16gb", 96), ("k80", 160), ("gtx-1080", None)])
def test_vector_units_of_a_multiprocessor_are_counted(name: str, units: int | None) -> None:
    assert traits(hardware.device(name)).units == units


def test_a_data_sheet_without_multiprocessors_or_watts_is_enough() -> None:
    bare = Device(name="bare", title="bare", kind="gpu", memory_bandwidth_gbs=500.0, fp32=10.0)
    assert 0 < _us(bare, _product()) < np.inf
    assert traits(bare).power == 1.0


def test_sorts_tell_convolutions_apart() -> None:
    def sort(**sizes: int) -> str:
        operation = _convolution(**sizes)
        return sort_of(operation, work(operation), "training")

    assert sort() == "winograd"
    assert sort(k=1, window=1) == "convolution"
    assert sort(s=2) == "convolution"
    assert sort(g=32) == "convolution"
    assert sort(g=64) == "depthwise"


def test_three_by_three_is_nothing_special_on_tensor_cores() -> None:
    small, wide = _convolution(), _convolution(k=5, window=9)  # the same FLOPs
    for name, alike in (("a100-sxm-80gb", True), ("gtx-1080", False)):
        device = hardware.device(name)
        times = [_us(device, (sort_of(one, work(one), "training"), work(one)), 1.0) for one in (small, wide)]
        assert (times[0] == pytest.approx(times[1])) is alike


def test_a_batch_norm_with_fixed_statistics_has_no_excess() -> None:
    operation = _operation("batch_norm", "bfloat16", n=64, c=64, p=3136)
    made = work(operation)
    training, fixed = (sort_of(operation, made, mode) for mode in ("training", "inference"))
    device = hardware.device("rtx-3090")
    assert _us(device, (fixed, made)) < 0.1 * _us(device, (training, made))


def test_constants_are_bounded() -> None:
    for table in (GPU.bound, GPU.excess, module.CPU.bound):
        assert all(0.3 <= value <= 3.01 for value in table.values())


def test_a_class_without_a_constant_has_one() -> None:
    device = hardware.device("rtx-3090")
    sort, made = _product("float16")
    parts = module.parts(device, traits(device), [sort], [made], np.array([1.0]))
    plain = parts.times_us(Constants(bound={}, excess={}), traits(device))
    assert plain[0] == pytest.approx(made.flops / device.peak("fp16") * 1e6)
