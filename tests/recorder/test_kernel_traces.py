"""Reading kernel traces: synthetic ones, as a CUDA device leaves them, dropped records included."""

import numpy as np
import pytest

from laptime.recorder.backends import backend_of
from laptime.recorder.kernel_trace import (
    ENDER,
    MARKER,
    MOST_RETRIES,
    KernelTracer,
    read_trace,
    slowdown_after,
)
from laptime.recorder.timeline import (
    COPY,
    FORWARD,
    HOST,
    INPUT,
    LOSS,
    OPTIMIZERS,
    RETURN,
    RawStep,
    backward_code,
    forward_code,
    resolved,
)

FIRST, SECOND = forward_code(0), forward_code(1)


def mark(index, ts, number=1):
    return {"ph": "X", "cat": "user_annotation", "name": f"{MARKER}{number} {index}", "ts": ts, "dur": 0}


def end(ts, number=1):
    return {"ph": "X", "cat": "user_annotation", "name": f"{ENDER}{number}", "ts": ts, "dur": 0}


def launch(correlation, ts, name="cudaLaunchKernel", cat="cuda_runtime"):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 2, "args": {"correlation": correlation}}


def kernel(correlation, ts, dur, name="gemm", cat="kernel", stream=7):
    args = {"correlation": correlation, "stream": stream}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def operator(ts, dur, name="aten::mm", tid=1):
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": tid}


def memory(ts, size, total, device=1):
    args = {"Bytes": size, "Total Allocated": total, "Device Type": device}
    return {"ph": "i", "name": "[memory]", "ts": ts, "args": args}


MARKS = [mark(0, 0), mark(1, 100), mark(2, 200), mark(3, 300)]
CODES = [HOST, FIRST, SECOND, HOST]


def test_a_kernel_belongs_to_the_mark_at_which_it_was_launched_however_late_it_runs():
    events = [*MARKS, launch(1, 110), launch(2, 120), launch(3, 210), operator(110, 30)]
    events += [kernel(1, 500, 40), kernel(2, 540, 10), kernel(3, 550, 60, "conv")]
    trace = read_trace(events, 1, CODES)
    assert trace.complete
    assert trace.busy_s == pytest.approx({FIRST: 50e-6, SECOND: 60e-6})
    assert [(k.code, k.kind, k.name, k.stream) for k in trace.kernels] == [
        (FIRST, "kernel", "gemm", 7),
        (FIRST, "kernel", "gemm", 7),
        (SECOND, "kernel", "conv", 7),
    ]
    assert trace.kernels[2].start_s == pytest.approx(550e-6)


def test_kernels_of_one_layer_that_overlap_on_two_streams_are_busy_once():
    events = [*MARKS, launch(1, 110), launch(2, 120), launch(3, 210)]
    events += [kernel(1, 500, 40, stream=7), kernel(2, 520, 40, stream=8), kernel(3, 530, 10, stream=9)]
    trace = read_trace(events, 1, CODES)
    assert trace.busy_s == pytest.approx({FIRST: 60e-6, SECOND: 10e-6})
    assert {k.stream for k in trace.kernels} == {7, 8, 9}


def test_copies_and_memsets_are_told_from_kernels_and_need_no_launch_count():
    events = [mark(0, 0), mark(1, 100), launch(1, 10, "cudaMemcpyAsync"), launch(2, 20, "cudaMemsetAsync")]
    events += [kernel(1, 30, 25, "Memcpy HtoD", "gpu_memcpy"), kernel(2, 60, 5, "Memset", "gpu_memset")]
    trace = read_trace(events, 1, [COPY, HOST])
    assert [(k.code, k.kind) for k in trace.kernels] == [(COPY, "copy"), (COPY, "memset")]
    assert trace.busy_s == pytest.approx({COPY: 30e-6})
    assert (trace.launches, trace.records, trace.complete) == (0, 0, True)


def test_a_launch_without_its_record_makes_a_trace_incomplete():
    events = [*MARKS, launch(1, 110), launch(2, 210, "cuLaunchKernel", "cuda_driver"), kernel(1, 500, 40)]
    trace = read_trace(events, 1, CODES)
    assert (trace.launches, trace.records, trace.complete) == (2, 1, False)


def test_launches_outside_the_step_do_not_count():
    events = [mark(0, 100), mark(1, 200), end(300), launch(1, 50), launch(2, 150), launch(3, 350)]
    events += [kernel(1, 400, 10), kernel(2, 410, 10), kernel(3, 420, 10)]
    trace = read_trace(events, 1, [HOST, FIRST])
    assert (trace.launches, trace.records) == (1, 1)
    assert trace.busy_s == pytest.approx({HOST: 10e-6})


def test_a_trace_without_marks_is_incomplete():
    trace = read_trace([launch(1, 10), kernel(1, 20, 5)], 1, CODES)
    assert not trace.complete
    assert trace.kernels == []


def test_two_traced_steps_of_one_session_keep_apart():
    events = [mark(0, 0, 1), mark(1, 100, 1), end(200, 1), mark(0, 200, 2), mark(1, 300, 2), end(400, 2)]
    events += [launch(1, 110), launch(2, 310), kernel(1, 500, 10), kernel(2, 510, 20)]
    assert read_trace(events, 1, [HOST, FIRST]).busy_s == pytest.approx({FIRST: 10e-6})
    assert read_trace(events, 2, [HOST, FIRST]).busy_s == pytest.approx({FIRST: 20e-6})


def test_operators_keep_their_own_time_and_are_split_at_marks():
    """On the CPU an operator's row has what it did not spend in operators that it called."""
    events = [mark(0, 0), mark(1, 100), mark(2, 250), end(400)]
    events += [operator(110, 100, "aten::linear"), operator(130, 60, "aten::addmm")]
    events += [operator(240, 80, "autograd"), operator(260, 40), operator(350, 10, "aten::add", tid=2)]
    trace = read_trace(events, 1, [HOST, FIRST, backward_code(1)])
    own = {k.name: round(k.seconds * 1e6) for k in trace.kernels}
    assert own == {"aten::linear": 40, "aten::addmm": 60, "autograd": 40, "aten::mm": 40, "aten::add": 10}
    assert trace.busy_s == pytest.approx({FIRST: 110e-6, backward_code(1): 80e-6})
    assert {k.stream for k in trace.kernels} == {1, 2}


def test_memory_is_taken_from_the_device_that_computes():
    events = [*MARKS, launch(1, 110), kernel(1, 500, 5)]
    events += [
        memory(120, 400, 1400),
        memory(150, -100, 1300),
        memory(220, 50, 1350),
        memory(130, 9, 9999, device=0),
    ]
    trace = read_trace(events, 1, CODES)
    assert trace.peak_bytes == {FIRST: 1400, SECOND: 1350}
    assert trace.kept_bytes == {FIRST: 300, SECOND: 50}


def test_marks_are_resolved_as_the_books_resolve_them():
    """Input goes to the layer after it, a unit that is no layer to the one before, a return to its owner."""
    norm = forward_code(1)
    owners = [HOST, INPUT | RETURN, FIRST, norm, LOSS, norm | RETURN, OPTIMIZERS, HOST]
    found = resolved(owners, np.array([True, False]))
    assert found.tolist() == [HOST, FIRST, FIRST, FIRST, LOSS, FIRST, OPTIMIZERS, HOST]
    assert resolved([HOST, INPUT | RETURN, LOSS], np.array([True])).tolist() == [HOST, FORWARD, LOSS]


class Tracer(KernelTracer):
    """A tracer whose sessions return what a test says."""

    def __init__(self, steps, sessions):
        super().__init__(steps, backend_of("cuda"))
        self.sessions = list(sessions)

    def _start(self):
        self._profiler = object()

    def _stop(self):
        self._profiler, self.tracing = None, False
        return self.sessions.pop(0)


def drive(tracer, steps):
    """Call a tracer as the recorder does; returns the steps that got a trace."""
    found, traced = [], []
    for step in range(steps + 1):
        if traced and tracer.ends_before(step):
            tracer.collect(traced, np.array([True, True]))
            found += [raw.fields["step"] for _, raw in traced if raw.trace is not None]
            traced = []
        if tracer.plan(step):
            traced.append((tracer.number, RawStep([], CODES, {"step": step}, True)))
    return found


def session(number, complete):
    events = [mark(index, 100 * index, number) for index in range(4)]
    return [*events, launch(1, 110), *([kernel(1, 500, 10)] if complete else [])]


def test_a_trace_with_dropped_records_is_taken_again():
    tracer = Tracer([3], [session(1, complete=False), session(2, complete=True)])
    assert drive(tracer, 12) == [6]
    assert tracer.dropped == 1


def test_a_device_that_always_drops_records_is_not_traced_for_ever():
    tracer = Tracer([3], [session(number, complete=False) for number in range(1, 20)])
    assert drive(tracer, 60) == []
    assert tracer.dropped == 1 + MOST_RETRIES
    assert not tracer.running


def test_a_session_warms_up_one_step_ahead():
    tracer = Tracer([3], [session(1, complete=True)])
    running = []
    for step in range(3):
        tracer.plan(step)
        running.append(tracer.running)
    assert running == [False, False, True]


# -- what a trace leaves behind ------------------------------------------------------------------------------


def around(before, after, *, began=10, ended=14, kinds=(False,)):
    steps = [*range(began), *range(ended, ended + 10)]
    walls = [(before if step < began else after) * (1 + step % 3 / 100) for step in steps]
    marked = np.repeat(kinds, len(steps))
    return slowdown_after(
        np.tile(steps, len(kinds)), np.tile(walls, len(kinds)), marked, began=began, ended=ended
    )


def test_a_slowdown_that_stays_is_told():
    assert around(1.0, 1.2)["clean"] is False
    assert around(1.0, 1.2)["ratio"] == pytest.approx(1.2, rel=0.01)
    assert around(1.0, 1.0)["clean"] is True


def test_bare_steps_are_compared_before_marked_ones():
    assert around(1.0, 1.0, kinds=(True, False))["steps"] == "bare"
    assert around(1.0, 1.0, kinds=(True,))["steps"] == "marked"
    assert around(1.0, 1.0, began=4) is None


def test_only_steps_after_the_last_session_count_as_after():
    steps = np.array([*range(40), *range(44, 60), *range(64, 80)])
    walls = np.where((steps >= 44) & (steps < 60), 3.0, 1.0)
    marked = np.zeros(len(steps), dtype=bool)
    verdict = slowdown_after(steps, walls, marked, began=40, ended=64)
    assert verdict["ratio"] == pytest.approx(1.0)
