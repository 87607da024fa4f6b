"""The queue between host and device."""

import pytest

from laptime.estimate.op_times import step_spans


def test_a_device_that_is_always_busy_makes_the_step():
    assert step_spans([100.0, 50.0, 200.0], [1.0, 1.0, 1.0]) == pytest.approx([100e-6, 50e-6, 200e-6])


def test_a_host_that_is_always_late_makes_the_step():
    assert sum(step_spans([1.0, 1.0, 1.0], [30.0, 20.0, 50.0])) == pytest.approx(100e-6)


def test_small_operations_wait_for_the_host_and_large_ones_hide_it():
    # The host needs 40 for each; a large operation lets it run ahead.
    assert sum(step_spans([200.0, 10.0, 10.0, 10.0], [40.0] * 4)) == pytest.approx(230e-6)
    assert sum(step_spans([60.0, 10.0, 10.0, 10.0], [40.0] * 4)) == pytest.approx(160e-6)
