"""Whose turn it is on the host: ranges that are no layers, inference, traces of PyTorch 1.9 and before."""

import pytest
from tests.runs.importers.traces import (
    AUTOGRAD,
    MAIN,
    accounts,
    collected,
    kernel,
    layer,
    layers,
    near,
    node,
    operator,
    span,
    step,
)


def module(name, start, end):
    return span("python_function", f"nn.Module: {name}", start, end)


def test_a_layer_goes_on_after_a_broadcast_in_its_range(tmp_path):
    events = [
        step(1, 0, 5000),
        layer("block", 100, 4100),
        operator("aten::view", 110, 115),
        span("user_annotation", "nccl:broadcast", 150, 170),
        operator("aten::conv2d", 200, 4000, 1),
        node("ConvolutionBackward", 4200, 4700, 1),
    ]
    run = collected(tmp_path, events)
    assert layers(run) == {
        ("block", "forward"): near((4080, 3805)),  # until the backward begins, less the broadcast
        ("block", "backward"): near((500, 500)),
    }
    assert run.layer_table.to_pylist()[0]["calls"] == 1
    found = accounts(run.steps[0])
    assert found == near(
        {"communication": 20, "forward": 3805, "backward": 500, "idle": 275, "unexplained": 400}
    )


def test_a_layer_goes_on_after_a_collective_between_its_operators_and_the_next_layer(tmp_path):
    events = [
        step(1, 0, 1000),
        module("Net_0", 0, 900),
        module("Linear_0", 10, 100),
        operator("aten::linear", 20, 90, 1),
        span("user_annotation", "gloo:all_reduce", 200, 300),
        operator("aten::relu", 400, 500, 2),
        module("Linear_1", 600, 900),
        operator("aten::linear", 610, 890, 3),
        node("AddmmBackward", 950, 1000, 3),
    ]
    found = layers(collected(tmp_path, events))
    assert found["Linear_0", "forward"] == near((490, 170))
    assert ("(other)", "forward") not in found


def test_a_backward_node_goes_on_after_a_collective_inside_it(tmp_path):
    events = [
        step(1, 0, 1000),
        layer("block", 0, 100),
        operator("aten::linear", 0, 100, 1),
        node("AddmmBackward", 200, 800, 1, thread=MAIN),
        span("user_annotation", "gloo:all_reduce", 300, 400),
    ]
    run = collected(tmp_path, events)
    assert layers(run)["block", "backward"] == near((500, 500))
    assert accounts(run.steps[0])["communication"] == near(100)


def test_an_update_goes_on_after_a_collective_inside_it(tmp_path):
    events = [
        step(1, 0, 1000),
        operator("aten::linear", 0, 100, 1),
        node("AddmmBackward", 100, 200, 1),
        span("user_annotation", "Optimizer.step#ZeRO.step", 300, 800),
        span("user_annotation", "nccl:all_gather", 400, 500),
        operator("aten::add_", 600, 700),
    ]
    run = collected(tmp_path, events)
    assert accounts(run.steps[0])["communication"] == near(100)
    assert layers(run)["(other)", "update"] == near((400, 100))


def test_loading_and_updating_end_the_forward_pass_before_them(tmp_path):
    events = [
        step(1, 0, 1000),
        layer("block", 0, 100),
        operator("aten::linear", 0, 100),
        span("user_annotation", "enumerate(DataLoader)#x.__next__", 200, 300),
        operator("aten::item", 600, 700),
    ]
    run = collected(tmp_path, events)
    assert layers(run) == {("block", "forward"): near((200, 100))}
    assert accounts(run.steps[0]) == near(
        {"forward": 100, "idle": 100, "data_wait": 100, "host": 100, "unexplained": 600}
    )


def test_a_collective_that_outlives_the_range_around_it_takes_no_turn(tmp_path):
    events = [
        step(1, 0, 1000),
        span("user_annotation", "start the exchange", 0, 20),
        span("user_annotation", "hccl:all_to_all", 10, 900),  # its end is told by a callback
        layer("block", 100, 800),
        operator("aten::linear", 100, 800, 1),
        node("AddmmBackward", 850, 950, 1),
    ]
    run = collected(tmp_path, events)
    assert layers(run)["block", "forward"] == near((750, 700))
    assert "communication" not in accounts(run.steps[0])


def test_a_range_around_an_update_or_the_loading_is_no_layer(tmp_path):
    events = [
        step(1, 0, 1000),
        span("user_annotation", "## load_batch ##", 0, 50),
        layer("block", 100, 200),
        operator("aten::linear", 100, 200, 1),
        node("AddmmBackward", 300, 400, 1),
        span("user_annotation", "## optimizer ##", 500, 800),
        span("user_annotation", "Optimizer.step#SGD.step", 510, 790),
    ]
    run = collected(tmp_path, events)
    assert [one.name for one in run.network] == ["block"]
    assert accounts(run.steps[0])["data_wait"] == near(50)


def inference(start=0):
    return [
        module("Net_0", start, start + 300),
        module("Linear_0", start + 10, start + 290),
        operator("aten::linear", start + 20, start + 280),
        operator("aten::argmax", start + 400, start + 500),
        operator("aten::item", start + 500, start + 510),
    ]


@pytest.mark.parametrize("steps", [[], [step(1, 0, 1000), step(2, 1000, 2000)]])
def test_inference_has_no_loss(tmp_path, steps):
    run = collected(tmp_path, [*steps, *inference(), *inference(1000)])
    assert {one["layer"] for one in run.layer_table.to_pylist()} == {"Linear_0", "(other)"}
    assert all("loss" not in accounts(one) for one in run.steps)


def test_inference_on_a_device_has_no_loss(tmp_path):
    events = [*inference(), *kernel("gemm", 30, 40, 350, 1), *kernel("argmax", 450, 460, 470, 2)]
    run = collected(tmp_path, events)
    assert {one["layer"] for one in run.layer_table.to_pylist()} == {"Linear_0", "(other)"}


def test_validation_between_training_steps_has_no_loss_of_theirs(tmp_path):
    training = [
        module("Net_0", 1000, 1300),
        module("Linear_0", 1010, 1290),
        operator("aten::linear", 1020, 1280, 1),
        operator("aten::mean", 1400, 1450, 2),  # a loss of the user's own
        node("MeanBackward", 1500, 1600, 2),
        node("AddmmBackward", 1600, 1700, 1),
    ]
    run = collected(tmp_path, [step(1, 0, 1000), *inference(), step(2, 1000, 2000), *training])
    first, second = run.steps
    assert "loss" not in accounts(first)
    assert accounts(second)["loss"] == near(50)
    assert layers(run)["(loss)", "backward"] == near((100, 100))


def old(name, start, end, thread="1", **args):
    """An event as PyTorch 1.9 and before write it: every category is Operator, threads are words."""
    return span("Operator", name, start, end, thread, **args)


def test_traces_of_old_have_their_steps(tmp_path):
    events = []
    for at in (0, 1000, 2000):
        events += [
            old(f"ProfilerStep#{at // 1000}", at, at + 990),
            old("aten::conv2d", at + 10, at + 410),
            old("NllLossBackward", at + 450, at + 850, thread="2"),
        ]
    run = collected(tmp_path, events)
    assert [one.step for one in run.steps] == [0, 1, 2]
    for one in run.steps:
        # the operator's turn goes on to the backward; 10 before it and 140 after
        assert accounts(one) == near({"forward": 400, "idle": 40, "backward": 400, "unexplained": 150})


def test_layers_updates_and_loading_are_found_in_traces_of_old(tmp_path):
    about = {"Sequence number": 5}
    events = [
        old("ProfilerStep#7", 0, 1000),
        old("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100),
        old("first block", 100, 300),
        old("aten::conv2d", 110, 290, **about),
        old("second block", 300, 400),
        old("aten::linear", 310, 390),
        old("CudnnConvolutionBackward", 500, 600, thread="2", **about),
        old("aten::cudnn_convolution_backward", 510, 590, thread="2"),
        old("torch::autograd::AccumulateGrad", 600, 620, thread="2"),
        old("Optimizer.step#SGD.step", 700, 800),
        old("detach_", 710, 720),
    ]
    run = collected(tmp_path, events)
    assert [one.name for one in run.network] == ["first block", "second block"]
    assert layers(run) == {
        ("first block", "forward"): near((200, 180)),
        ("second block", "forward"): near((200, 80)),
        ("first block", "backward"): near((120, 120)),
        ("(other)", "update"): near((100, 10)),
    }
    assert accounts(run.steps[0])["data_wait"] == near(100)


def test_a_backward_pass_on_the_thread_of_the_loop_is_found_in_traces_of_old(tmp_path):
    events = [
        old("ProfilerStep#0", 0, 1000),
        old("aten::linear", 0, 100),
        old("AddmmBackward", 200, 300),
        old("aten::mm", 210, 290),
        old("AddBackward0", 300, 350),
    ]
    run = collected(tmp_path, events)
    assert accounts(run.steps[0])["backward"] == near(150)


def test_the_old_name_of_a_node_inside_an_evaluated_one_is_not_another_node(tmp_path):
    events = [
        step(1, 0, 1000),
        operator("aten::linear", 0, 100, 1),
        node("AddmmBackward0", 200, 300, 1),
        operator("AddmmBackward0", 210, 290, 1, AUTOGRAD),
    ]
    assert layers(collected(tmp_path, events))["aten::linear", "backward"] == near((100, 100))


def test_kernels_of_traces_of_old_find_their_launch_by_threads_in_quotes(tmp_path):
    events = [
        old("ProfilerStep#0", 0, 100),
        old("aten::mm", 0, 20),
        span("Runtime", "cudaLaunchKernel", 5, 8, "1", correlation=3),
        span("Kernel", "gemm", 10, 60, "stream 7", correlation=3, stream=7),
        old("MmBackward", 70, 80, thread="2"),
        span("Runtime", "cudaLaunchKernel", 72, 74, "2", correlation=4),
        span("Kernel", "gemm", 75, 95, "stream 7", correlation=4, stream=7),
    ]
    (only,) = collected(tmp_path, events).steps
    assert only.device == "cuda"
    assert accounts(only)["forward"] == near(50)
    assert accounts(only)["backward"] == near(20)
