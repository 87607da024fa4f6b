"""The queue between host and device."""

import pytest

from laptime.estimate.launch_queue import play


def test_a_device_that_is_always_busy_makes_the_step():
    played = play([100.0, 50.0, 200.0], [1.0, 1.0, 1.0])
    assert played.step_s == pytest.approx(350e-6)
    assert played.spans == pytest.approx([100e-6, 50e-6, 200e-6])


def test_a_host_that_is_always_late_makes_the_step():
    played = play([1.0, 1.0, 1.0], [30.0, 20.0, 50.0])
    assert played.step_s == pytest.approx(100e-6)
    assert played.busy_s == pytest.approx(3e-6)


def test_small_operations_wait_for_the_host_and_large_ones_hide_it():
    # The host needs 40 for each; a large operation lets it run ahead.
    played = play([200.0, 10.0, 10.0, 10.0], [40.0, 40.0, 40.0, 40.0])
    assert played.step_s == pytest.approx(230e-6)
    slower = play([60.0, 10.0, 10.0, 10.0], [40.0, 40.0, 40.0, 40.0])
    assert slower.step_s == pytest.approx(160e-6)


def test_nothing_takes_no_time():
    assert play([], []).step_s == 0.0
