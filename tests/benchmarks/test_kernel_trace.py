"""The independent attribution, on traces small enough to be checked by hand."""

import pytest
from benchmarks.independent_trace import compare
from benchmarks.kernel_trace import attribute, medians, top_level

EVALUATE = "autograd::engine::evaluate_function: "
MAIN, ENGINE = 1, 2


def event(cat, name, ts, dur=0.0, tid=MAIN, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def mark(text, ts):
    return event("user_annotation", f"bench {text}", ts)


def op(name, ts, dur, number=-1, tid=MAIN):
    args = {"Sequence number": number} if number >= 0 else {}
    return event("cpu_op", name, ts, dur, tid, **args)


def host_events(engine):
    """One step of two layers `a` and `b`, a loss, a backward pass on thread `engine` and an update."""
    return [
        mark("step", 0),
        mark("forward", 10),
        op("aten::view", 12, 3, 7),  # before the first layer: its own
        mark("layer a", 20),
        op("aten::conv2d", 22, 20, 8),
        op("aten::convolution", 24, 16, 8),
        op("aten::relu_", 45, 5, 9),
        op("aten::size", 51, 1, 10),  # makes no node, so it carries the number of b's
        mark("layer b", 60),
        op("aten::linear", 62, 30, 10),
        mark("loss", 100),
        op("aten::cross_entropy_loss", 102, 10, 11),
        op(EVALUATE + "LogSoftmaxBackward0", 120, 10, 11, engine),
        op(EVALUATE + "AddmmBackward0", 130, 40, 10, engine),
        op(EVALUATE + "torch::autograd::AccumulateGrad", 172, 4, -1, engine),
        op(EVALUATE + "ReluBackward0", 180, 10, 9, engine),
        op(EVALUATE + "ConvolutionBackward0", 190, 60, 8, engine),
        op(EVALUATE + "ViewBackward0", 252, 2, 7, engine),
        op("aten::_foreach_add_", 300, 50),
        mark("step", 400),
    ]


def test_operators_go_to_the_layer_that_was_open_and_nodes_to_the_layer_that_made_them():
    traced = attribute(host_events(MAIN), skip=0)
    assert len(traced.busy) == 1
    microseconds = {key: seconds * 1e6 for key, seconds in traced.busy[0].items()}
    assert microseconds == pytest.approx(
        {
            ("a", "forward"): 3 + 20 + 5 + 1,
            ("b", "forward"): 30,
            ("(loss)", "forward"): 10,
            ("(loss)", "backward"): 10,
            ("b", "backward"): 44,
            ("a", "backward"): 72,
        }
    )
    assert traced.unknown_share == 0.0


def test_spans_go_from_the_host_entering_a_layer_to_its_entering_the_next():
    spans = {key: seconds * 1e6 for key, seconds in attribute(host_events(MAIN), skip=0).spans[0].items()}
    assert spans["a", "forward"] == pytest.approx(60 - 10)
    assert spans["b", "forward"] == pytest.approx(100 - 60)
    assert spans["b", "backward"] == pytest.approx(180 - 130)
    assert spans["a", "backward"] == pytest.approx(254 - 180)


def device_events(*, lost=False):
    """The same step with a kernel per launch, on a device that runs 1000 µs behind the host."""
    launches = [(30, MAIN), (47, MAIN), (70, MAIN), (105, MAIN), (140, ENGINE), (182, ENGINE), (200, ENGINE)]
    launches.append((310, MAIN))  # the update
    events = [event("gpu_user_annotation", "bench step", -5, 0, 7), *host_events(ENGINE)]
    for number, (ts, tid) in enumerate(launches):
        events.append(event("cuda_runtime", "cudaLaunchKernel", ts, 1, tid, correlation=number))
        if not (lost and number == 3):
            events.append(event("kernel", "k", 1000 + 10 * number, 5 + number, 7, correlation=number))
    return sorted(events, key=lambda one: (one["ts"], -one["dur"]))


def test_kernels_go_to_the_operator_that_launched_them_on_its_own_thread():
    busy = {key: seconds * 1e6 for key, seconds in attribute(device_events(), skip=0).busy[0].items()}
    assert busy == pytest.approx(
        {
            ("a", "forward"): 5 + 6,
            ("b", "forward"): 7,
            ("(loss)", "forward"): 8,
            ("b", "backward"): 9,
            ("a", "backward"): 10 + 11,
        }
    )


def test_spans_on_a_device_that_is_behind_begin_when_it_has_done_what_came_before():
    spans = {key: seconds * 1e6 for key, seconds in attribute(device_events(), skip=0).spans[0].items()}
    assert spans["b", "forward"] == pytest.approx(1027 - 1016)
    assert spans["a", "backward"] == pytest.approx(1071 - 1049)


def test_spans_on_a_device_that_waits_begin_when_the_host_enters_the_layer():
    quick = [
        event("kernel", "k", e["ts"] + 1, 1, 7, **e["args"])
        for e in device_events()
        if e["cat"] == "cuda_runtime"
    ]
    events = [e for e in device_events() if e["cat"] != "kernel"] + quick
    spans = {key: seconds * 1e6 for key, seconds in attribute(events, skip=0).spans[0].items()}
    assert spans["a", "forward"] == pytest.approx(60 - 10)
    assert spans["b", "backward"] == pytest.approx(180 - 130)
    assert spans["a", "backward"] == pytest.approx(254 - 180)


def test_a_step_of_which_a_kernel_record_was_lost_is_dropped_and_counted():
    traced = attribute(device_events(lost=True), skip=0)
    assert (traced.busy, traced.dropped) == ([], 1)


def test_the_first_steps_can_be_left_out():
    assert attribute(host_events(MAIN), skip=1).busy == []


def test_a_loss_inside_the_network_is_no_layer():
    events = [
        mark("step", 0),
        mark("forward", 1),
        mark("layer head", 2),
        op("aten::linear", 3, 5, 1),
        op("aten::cross_entropy_loss", 10, 5, 2),
        op("aten::mul", 16, 1, 3),
        mark("loss", 20),
        mark("step", 30),
    ]
    busy = {key: seconds * 1e6 for key, seconds in attribute(events, skip=0).busy[0].items()}
    assert busy == pytest.approx({("head", "forward"): 6, ("(loss)", "forward"): 5})


def test_top_level_keeps_what_lies_in_no_other():
    events = [op("outer", 0, 10), op("inner", 2, 3), op("next", 10, 5)]
    assert [one["name"] for one in top_level(events)] == ["outer", "next"]


def test_apart_is_weighted_by_time_and_names_the_worst_layer():
    ours = {("a", "forward"): 1.0, ("b", "forward"): 3.2}
    theirs = {("a", "forward"): 1.1, ("b", "forward"): 3.0, ("(loss)", "forward"): 9.0}
    found = compare(ours, theirs)
    assert found["apart"] == pytest.approx(0.3 / 4.1)
    assert found["worst"][0]["layer"] == "b"


def test_a_layer_that_one_side_lacks_counts_in_full():
    assert compare({}, {("a", "forward"): 2.0})["apart"] == pytest.approx(1.0)


def test_medians_are_taken_over_steps():
    steps = [{("a", "forward"): value} for value in (1.0, 5.0, 2.0)]
    assert medians(steps) == {("a", "forward"): 2.0}
