"""The largest batch that fits: found in a few readings, verified, and told where nothing fits."""

import math
from bisect import bisect_left
from dataclasses import replace
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laptime import hardware
from laptime.errors import PredictionError, WorkloadError
from laptime.estimate.largest_batch import MOST, READINGS, largest
from laptime.estimate.predict import predict, predict_all
from laptime.model import Memory, Operation, Phase, Workload

GPU = replace(hardware.device("gtx-1080"), memory_gib=8.0)


def workload(batch, peak):
    relu = Operation(
        name="aten.relu", kind="elementwise", phase=Phase.FORWARD, layer="one", dtype="float32",
        sizes={"n": batch}, read=4 * batch, written=4 * batch,
    )  # fmt: skip
    memory = Memory(parameters=0, gradients=0, buffers=0, state=0, inputs=0, activations=0, peak=peak)
    return Workload(
        network="made up", batch=batch, precision="fp32", mode="training", parameters=1, tensors=1,
        sample_bytes=4, layers=("one",), operations=(relu,), memory=memory,
    )  # fmt: skip


def reading(need):
    """Predictions of a network whose tensors take `need(batch)` bytes, and the batches that were read."""
    seen = []

    @cache
    def read(batch):
        seen.append(batch)
        return workload(batch, int(need(batch)))

    return (lambda batch, devices, **training: predict_all(read(batch), devices, **training)), seen


def by_hand(need, device):
    def too_large(size):
        return not predict(workload(size, int(need(size))), device).fits

    return bisect_left(range(1, 4000), True, key=too_large)


def test_an_affine_need_takes_three_readings():
    def need(batch):
        return 1e9 + 20e6 * batch

    read, seen = reading(need)
    (found,) = largest(read, [GPU])
    assert found.batch == by_hand(need, GPU)
    assert found.exact
    assert len(seen) == found.readings == 3
    assert found.prediction.batch == found.batch
    assert found.prediction.fits


def test_a_bend_takes_a_few_more():
    def need(batch):
        return max(3e9 + 1e6 * batch, 15e6 * batch)

    read, seen = reading(need)
    (found,) = largest(read, [GPU])
    assert found.batch == by_hand(need, GPU)
    assert len(seen) <= READINGS


@settings(deadline=None, max_examples=15)
@given(
    flat=st.floats(0, 9e9), first=st.floats(1e6, 1e8), second=st.floats(1e6, 1e9), start=st.integers(1, 100)
)
def test_what_is_found_always_fits_and_one_more_never_does_where_it_is_exact(flat, first, second, start):
    def need(batch):
        return max(flat + first * batch, second * batch)

    read, seen = reading(need)
    (found,) = largest(read, [GPU], start=start)
    assert len(set(seen)) <= READINGS
    assert found.batch == 0 or predict(workload(found.batch, int(need(found.batch))), GPU).fits
    if found.exact:
        assert not predict(workload(found.batch + 1, int(need(found.batch + 1))), GPU).fits


def test_not_even_one_sample_is_said_as_0():
    (found,) = largest(reading(lambda batch: 9e9 + batch)[0], [GPU])
    assert found.batch == 0
    assert found.prediction is None
    assert found.samples_per_s is None


def test_a_single_sample_that_cannot_be_read_does_not_fit():
    def read(batch, devices):
        if batch == 1:
            raise WorkloadError("batch norms want more than one sample")
        return predict_all(workload(batch, int(7e9 * batch)), devices)

    (found,) = largest(read, [GPU])
    assert found.batch == 0


def test_another_batch_that_cannot_be_read_is_an_error():
    def read(batch, devices):
        raise WorkloadError("no")

    with pytest.raises(WorkloadError):
        largest(read, [GPU])


def test_a_device_whose_memory_is_not_known_has_no_answer():
    read, seen = reading(lambda batch: batch)
    (found,) = largest(read, [replace(GPU, memory_gib=None)])
    assert found.batch is None
    assert not seen


def test_devices_share_readings_and_more_memory_holds_more():
    read, seen = reading(lambda batch: 1e9 + 20e6 * batch)
    sizes = (4.0, 8.0, 8.0, 80.0)
    devices = [replace(GPU, name=f"gpu-{place}", memory_gib=size) for place, size in enumerate(sizes)]
    found = largest(read, devices)
    assert found[0].batch < found[1].batch == found[2].batch < found[3].batch
    assert len(seen) == len(set(seen)) == 5


def test_samples_and_price_reach_the_prediction():
    read, _ = reading(lambda batch: 1e7 * batch)
    (found,) = largest(partial(read, samples=1000, epochs=2, price_per_hour=1.0), [GPU])
    assert found.prediction.dollars == pytest.approx(
        math.ceil(1000 / found.batch) * 2 * found.prediction.step_s / 3600
    )


def test_a_start_of_0_is_refused():
    with pytest.raises(PredictionError, match="at least 1"):
        largest(reading(lambda batch: batch)[0], [GPU], start=0)


@pytest.mark.parametrize("start", [32, MOST])
def test_where_the_search_itself_ends_more_might_fit(start):
    (found,) = largest(reading(lambda batch: 100 * batch)[0], [GPU], start=start)
    assert found.batch >= MOST
    assert not found.exact
