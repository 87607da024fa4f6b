"""Kernels of a trace stand on the marks' clock, however late the device reached the first mark."""

import pytest

from laptime.recorder.kernel_trace import TracedKernel, clock_shift

SPANS = {100: (1.0, 3.0), 102: (3.0, 4.0)}


def kernel(code, start, seconds, *, stream=7, kind="kernel"):
    return TracedKernel(code, kind, "k", stream, start, seconds)


def test_kernels_behind_a_full_queue_are_put_into_the_spans_of_their_layers():
    late = [kernel(100, 6.0, 2.0), kernel(102, 8.0, 1.0)]
    assert clock_shift(late, SPANS) == pytest.approx(5.0)


def test_kernels_inside_their_spans_stay_where_they_are():
    inside = [kernel(100, 1.2, 1.5), kernel(102, 3.1, 0.5)]
    assert clock_shift(inside, SPANS) == 0.0


def test_kernels_that_seem_to_begin_before_their_layer_are_put_later():
    early = [kernel(100, 0.5, 1.0)]
    assert clock_shift(early, SPANS) == pytest.approx(-0.5)


def test_where_no_shift_fits_all_the_middle_of_the_bounds_is_taken():
    odd = [kernel(100, 6.0, 2.5), kernel(102, 8.0, 1.0)]  # longer than its layer's span
    assert clock_shift(odd, SPANS) == pytest.approx(5.25)


def test_other_streams_and_operators_and_unknown_owners_say_nothing():
    own = [kernel(100, 1.2, 0.5), kernel(102, 3.2, 0.5)]
    assert clock_shift([*own, kernel(100, 9.0, 1.0, stream=8)], SPANS) == 0.0
    assert clock_shift([kernel(100, 9.0, 1.0, kind="operator")], SPANS) == 0.0
    assert clock_shift([kernel(5, 9.0, 1.0)], SPANS) == 0.0
    assert clock_shift([], SPANS) == 0.0
