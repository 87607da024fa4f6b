"""Whose a moment on a device is. Every figure is added up by hand from the events, in microseconds."""

import pytest
from tests.runs.importers.traces import (
    AUTOGRAD,
    accounts,
    collected,
    kernel,
    layer,
    layers,
    near,
    node,
    operator,
    save,
    span,
    step,
)

from laptime.runs.importers import collect

SIDE = 20  # a second stream


def data_parallel(all_reduce_end):
    """B's gradients are reduced while A's backward runs, 4000 µs from 3230 on."""
    return [
        step(1, 0, 10_000),
        layer("A", 100, 200),
        operator("aten::linear", 110, 160, 1),
        *kernel("gemm A", 120, 130, 1130, 1),
        layer("B", 300, 400),
        operator("aten::linear", 310, 360, 2),
        *kernel("gemm B", 320, 1130, 2130, 2),
        node("LinearBackward B", 2200, 2300, 2),
        *kernel("gemm B back", 2210, 2230, 3230, 3, AUTOGRAD),
        *kernel("ncclDevKernel_AllReduce", 2280, 3230, all_reduce_end, 4, AUTOGRAD, stream=SIDE),
        node("LinearBackward A", 2400, 2500, 1),
        *kernel("gemm A back", 2410, 3230, 7230, 5, AUTOGRAD),
    ]


def test_compute_beside_communication_is_compute_of_its_own_layer(tmp_path):
    run = collected(tmp_path, data_parallel(all_reduce_end=7230))
    assert layers(run) == {
        ("A", "forward"): near((1030, 1000)),  # entered at 100, computes from 130
        ("B", "forward"): near((1070, 1000)),  # done at 2130; the backward begins at 2200
        ("B", "backward"): near((1030, 1000)),
        ("A", "backward"): near((4000, 4000)),
    }
    (only,) = run.steps
    # 100 before A is entered, 2770 after all is done
    assert accounts(only) == near({"forward": 2000, "backward": 5000, "idle": 130, "unexplained": 2870})


def test_communication_counts_from_where_compute_beside_it_ends(tmp_path):
    run = collected(tmp_path, data_parallel(all_reduce_end=8000))
    (only,) = run.steps
    assert accounts(only)["communication"] == near(770)
    assert accounts(only)["backward"] == near(5000)
    assert layers(run)["A", "backward"] == near((4000, 4000))


def test_communication_is_exposed_in_every_gap_of_the_compute_beside_it(tmp_path):
    events = [
        step(1, 0, 1000),
        operator("aten::mm", 0, 10),
        *kernel("all", 1, 100, 900, 1, stream=SIDE),
        *kernel("first", 2, 200, 300, 2),
        *kernel("second", 3, 500, 600, 3),
    ]
    events[2]["name"], events[3]["name"] = "ncclLaunch", "ncclKernel_AllGather"
    (only,) = collected(tmp_path, events).steps
    assert accounts(only) == near({"communication": 600, "forward": 200, "idle": 200})


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "oneccl_allreduce_large",
    ],
)
def test_a_collective_is_known_by_its_own_name(tmp_path, name):
    events = [step(1, 0, 100), operator("aten::mm", 0, 10), *kernel(name, 1, 10, 60, 1)]
    (only,) = collected(tmp_path, events).steps
    assert accounts(only)["communication"] == near(50)


def test_a_template_of_a_collective_type_is_no_collective(tmp_path):
    name = "void add_kernel<ncclDataType_t>(ncclDevKernelArgs)"
    events = [step(1, 0, 100), operator("aten::mm", 0, 10), *kernel(name, 1, 10, 60, 1)]
    (only,) = collected(tmp_path, events).steps
    assert accounts(only)["forward"] == near(50)


def test_a_batch_copied_ahead_beside_compute_takes_nothing_from_it(tmp_path):
    events = [
        step(1, 0, 1000),
        operator("aten::to", 0, 20),
        *kernel("Memcpy HtoD", 10, 20, 820, 1, category="gpu_memcpy", stream=SIDE),
        operator("aten::mm", 30, 60, 1),
        *kernel("gemm", 40, 50, 650, 2),
        node("MmBackward", 70, 90, 1),
    ]
    (only,) = collected(tmp_path, events).steps
    assert accounts(only)["forward"] == near(600)
    assert accounts(only)["copy"] == near(20 + 30 + 170)  # asked for at 0, alone before and after the product


def test_layers_that_compute_side_by_side_share_the_time(tmp_path):
    events = [
        step(1, 0, 100),
        layer("A", 0, 10),
        *kernel("a", 1, 10, 60, 1),
        layer("B", 10, 20),
        *kernel("b", 11, 40, 100, 2, stream=SIDE),
    ]
    found = layers(collected(tmp_path, events))
    assert found["A", "forward"] == near((10 + 40, 40))  # 30 alone, 20 shared
    assert found["B", "forward"] == near((50, 50))


def test_kernels_launched_before_the_trace_began_do_not_lengthen_its_first_step(tmp_path):
    events = [
        step(9, 0, 3000),
        span("kernel", "previous", 0, 2500, 99, correlation=99, stream=7),
        operator("aten::mm", 100, 150),
        *kernel("mine", 110, 2500, 3500, 1),
    ]
    run = collected(tmp_path, events)
    (only,) = run.steps
    assert only.wall_s * 1e6 == near(1000)  # from 2500, when the device is done with the step before
    assert accounts(only) == near({"forward": 1000})
    assert [row["name"] for row in run.kernel_table.to_pylist()] == ["mine"]


def test_what_was_left_of_several_streams_is_left_out_with_its_pauses(tmp_path):
    waiting = [
        span("kernel", f"previous {i}", i * 100, i * 100 + 90, 99, correlation=90 + i, stream=7)
        for i in range(-2, 10)
    ]
    side = span("gpu_memcpy", "previous copy", 500, 1200, 99, correlation=80, stream=SIDE)
    events = [
        step(1, 0, 2000),
        *waiting,
        side,
        operator("aten::mm", 5, 20),
        *kernel("mine", 10, 1200, 1400, 1),
    ]
    (only,) = collected(tmp_path, events).steps
    assert only.start_s * 1e6 == near(1200)
    assert accounts(only) == near({"forward": 200, "idle": 600})  # the operator's turn goes on to 2000


def test_what_was_left_may_pause_where_the_device_is_far_behind(tmp_path):
    left = [span("kernel", "previous", at, at + 10, 99, correlation=at, stream=7) for at in (0, 8000, 40_000)]
    events = [step(1, 0, 5000), *left, operator("aten::mm", 50, 90), *kernel("mine", 60, 41_000, 42_000, 1)]
    (only,) = collected(tmp_path, events).steps
    assert only.start_s * 1e6 == near(40_010)
    assert accounts(only) == near({"forward": 1000, "idle": 990})


def test_a_trace_that_lost_its_launches_keeps_its_steps(tmp_path):
    lost = [
        span("kernel", "lost", at, at + 10, 99, correlation=at, stream=7) for at in range(5000, 50_000, 5000)
    ]
    events = [
        step(1, 0, 50_000),
        operator("aten::mm", 0, 20),
        *lost,
        *kernel("mine", 49_000, 49_100, 49_200, 1),
    ]
    (only,) = collected(tmp_path, events).steps
    assert only.wall_s * 1e6 == near(50_000)


def test_a_step_waits_for_communication_only_until_the_next_step_computes(tmp_path):
    events = [
        step(1, 0, 100),
        operator("aten::mm", 0, 10, 1),
        *kernel("one", 5, 10, 110, 1),
        *kernel("ncclDevKernel_AllReduce", 6, 110, 200, 2, stream=SIDE),
        step(2, 100, 300),
        operator("aten::mm", 105, 115, 2),
        *kernel("two", 110, 150, 250, 3),
    ]
    first, second = collected(tmp_path, events).steps
    assert accounts(first) == near({"idle": 10, "forward": 100, "communication": 40})
    assert second.start_s * 1e6 == near(150)
    assert accounts(second) == near({"forward": 100, "idle": 50})


def test_communication_at_the_end_of_the_last_step_is_in_it(tmp_path):
    events = [
        step(1, 0, 100),
        operator("aten::mm", 0, 10),
        *kernel("one", 5, 10, 110, 1),
        *kernel("ncclDevKernel_AllReduce", 6, 110, 200, 2, stream=SIDE),
    ]
    (only,) = collected(tmp_path, events).steps
    assert only.wall_s * 1e6 == near(200)
    assert accounts(only)["communication"] == near(90)


def test_a_trace_of_kernels_only_knows_busy_from_idle_and_says_what_is_missing(tmp_path):
    events = [*kernel("one", 0, 10, 40, 1), *kernel("two", 20, 60, 100, 2)]
    run = collected(tmp_path, events)
    (only,) = run.steps
    assert accounts(only) == near({"unexplained": 70, "idle": 30})
    assert any("kernels only" in note for note in run.summary["notes"])


def test_kernels_of_another_thread_belong_to_what_that_thread_computes(tmp_path):
    replica = 3
    events = [
        step(1, 0, 200),
        operator("aten::mm", 0, 10),
        *kernel("mine", 5, 10, 50, 1),
        operator("aten::conv2d", 20, 40, thread=replica),
        *kernel("theirs", 30, 60, 100, 2, replica, stream=SIDE),
        *kernel("Memcpy HtoD", 45, 110, 120, 3, 4, category="gpu_memcpy"),
    ]
    run = collected(tmp_path, events)
    assert layers(run)["aten::conv2d", "forward"][1] == near(40)
    assert accounts(run.steps[0])["forward"] == near(80)
    assert accounts(run.steps[0])["copy"] == near(20)  # ten of them waited for


@pytest.mark.parametrize(("backward", "account"), [([], "forward"), ([node("X", 70, 80)], "unexplained")])
def test_a_kernel_of_a_thread_that_says_nothing_is_forward_only_in_inference(tmp_path, backward, account):
    events = [step(1, 0, 100), operator("aten::mm", 0, 10), *kernel("theirs", 5, 20, 60, 1, 3), *backward]
    assert accounts(collected(tmp_path, events).steps[0])[account] >= 40


@pytest.mark.parametrize(
    ("runtime", "category", "device"),
    [
        ("mtia_runtime", "mtia_ccp_events", "mtia"),
        ("mtia_runtime", "mtia_insight", "mtia"),
        ("xpu_runtime", "kernel", "xpu"),
        ("xpu_driver", "kernel", "xpu"),
        ("cuda_driver", "kernel", "cuda"),
        ("privateuse1_runtime", "kernel", "privateuse1"),
    ],
)
def test_every_kind_of_device_is_one(tmp_path, runtime, category, device):
    launch, ran = kernel("fc", 5, 10, 80, 1, category=category)
    launch["cat"] = runtime
    run = collected(tmp_path, [step(1, 0, 100), operator("aten::mm", 0, 20), launch, ran])
    (only,) = run.steps
    assert only.device == device
    assert run.environment["device"]["type"] == device
    assert accounts(only) == near({"forward": 70, "idle": 30})


def test_an_mtia_that_waits_for_an_event_computes_nothing(tmp_path):
    launch, waits = kernel("event_wait", 5, 10, 80, 1, category="mtia_ccp_events")
    other, copies = kernel("dma_request", 6, 80, 90, 2, category="mtia_ccp_events")
    launch["cat"] = other["cat"] = "mtia_runtime"
    run = collected(tmp_path, [step(1, 0, 100), operator("aten::to", 0, 20), launch, waits, other, copies])
    assert accounts(run.steps[0])["copy"] == near(90)
    assert [row["kind"] for row in run.kernel_table.to_pylist()] == ["copy"]


def test_a_kernel_and_a_call_without_correlation_are_no_pair(tmp_path):
    call = span("cuda_runtime", "cudaDeviceSynchronize", 0, 5)
    stray = span("kernel", "stray", 50, 60, 99, stream=7)
    events = [step(1, 0, 100), operator("aten::mm", 0, 20), call, *kernel("mine", 10, 20, 40, 1), stray]
    assert accounts(collected(tmp_path, events).steps[0])["forward"] == near(20)


@pytest.mark.parametrize("linked", ["cudaLaunchKernel", "aten::mm"])
def test_a_kernel_without_correlation_is_found_by_its_external_id(tmp_path, linked):
    call = span("cuda_runtime", "cudaLaunchKernel", 10, 15)
    product = operator("aten::mm", 0, 20)
    next(one for one in (call, product) if one["name"] == linked)["args"] = {"External id": 7}
    ran = span("kernel", "gemm", 30, 80, 99, **{"External id": 7, "stream": 7})
    run = collected(tmp_path, [step(1, 0, 100), product, call, ran])
    assert accounts(run.steps[0]) == near({"forward": 50, "idle": 50})


def test_what_the_file_says_after_its_events_counts(tmp_path):
    path = save(
        tmp_path / "t.json", [step(1, 0, 100), *kernel("k", 0, 10, 60, 1), operator("aten::mm", 0, 9)]
    )
    text = path.read_text().rstrip().removesuffix("}")
    path.write_text(
        text + ', "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],'
        ' "distributedInfo": {"backend": "nccl", "rank": 3}, "traceName": "x"}\n'
    )
    run = collect(path, tmp_path / "run")
    assert [one.rank for one in run.steps] == [3]
    assert run.environment["device"] == {"type": "cuda", "name": "NVIDIA H100"}


def test_what_the_file_says_before_and_after_its_events_is_put_together(tmp_path):
    about = {"distributedInfo": {"rank": 5}}
    path = save(tmp_path / "t.json", [step(1, 0, 100), *kernel("k", 0, 10, 60, 1)], **about)
    path.write_text(path.read_text().removesuffix("}") + ', "deviceProperties": [{"name": "MI300X"}]}')
    run = collect(path, tmp_path / "run")
    assert [one.rank for one in run.steps] == [5]
    assert run.environment["device"]["name"] == "MI300X"


@pytest.mark.parametrize("rest", ["", ",", ', "rank": ', ', "deviceProperties": [{"name": "cut'])
def test_a_file_cut_off_after_its_events_is_read_without_the_rest(tmp_path, rest):
    path = save(tmp_path / "t.json", [step(1, 0, 100), operator("aten::mm", 0, 9)])
    path.write_text(path.read_text().removesuffix("}") + rest)
    assert len(collect(path, tmp_path / "run").steps) == 1


def test_a_gpu_of_which_nothing_was_traced_is_not_the_device(tmp_path):
    about = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    run = collected(tmp_path, [step(1, 0, 100), operator("aten::mm", 0, 9)], **about)
    assert run.environment["device"] == {"type": "cpu"}
