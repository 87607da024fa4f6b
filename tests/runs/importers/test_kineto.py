import gzip
import shutil

import pytest
from tests.runs.importers.traces import (
    Named,
    Slow,
    a_gpu_step,
    a_trace,
    kernel,
    node,
    operator,
    plain_network,
    save,
    span,
)
from torch import nn

from laptime.model import Account, Phase
from laptime.runs import load
from laptime.runs.importers import collect


def seconds(run, step=None):
    """Seconds by (layer, phase), of one step or of all."""
    rows = run.layer_table.to_pylist()
    found = {}
    for row in rows:
        if step is None or row["step"] == step:
            key = row["layer"], row["phase"]
            found[key] = found.get(key, 0.0) + row["seconds"]
    return found


def test_modules_of_a_trace_with_stacks_are_layers(tmp_path):
    run = collect(a_trace(tmp_path / "t.json", plain_network(), stack=True), tmp_path / "run")
    assert [layer.name for layer in run.network] == ["Conv2d_0", "Linear_0"]
    assert [layer.kind for layer in run.network] == ["Conv2d", "Linear"]
    found = seconds(run)
    for layer in ("Conv2d_0", "Linear_0"):
        assert found[layer, "forward"] > 0
        assert found[layer, "backward"] > 0
    assert found["(loss)", "forward"] > 0
    assert found["(other)", "update"] > 0
    assert ("(other)", "backward") not in found


def test_the_books_of_a_traced_step_close(tmp_path):
    run = collect(a_trace(tmp_path / "t.json", plain_network()), tmp_path / "run")
    assert len(run.steps) == 3
    for step in run.steps:  # a Step that does not close cannot be built
        assert step.data_wait_s > 0
        assert step.forward_s > 0
        assert step.backward_s > 0
        assert step.update_s > 0
        assert step.unexplained_s >= 0  # how much depends on what else the machine does


def test_a_delay_planted_in_one_backward_is_found_there(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Slow(), nn.Flatten(), nn.Linear(4 * 36, 5))
    run = collect(a_trace(tmp_path / "t.json", network, stack=True), tmp_path / "run")
    found = seconds(run)
    assert max(found, key=found.get) == ("Slow_0", "backward")
    assert found["Slow_0", "backward"] > 3 * 0.01


def test_ranges_are_layers_where_no_module_is_named(tmp_path):
    run = collect(a_trace(tmp_path / "t.json", Named()), tmp_path / "run")
    assert [layer.name for layer in run.network] == ["first conv", "head"]
    found = seconds(run)
    assert found["first conv", "backward"] > 0
    assert found["head", "backward"] > 0
    assert ("network", "forward") not in found


def test_operators_stand_for_layers_where_nothing_is_named(tmp_path):
    run = collect(a_trace(tmp_path / "t.json", plain_network()), tmp_path / "run")
    names = [layer.name for layer in run.network]
    assert {"aten::conv2d", "aten::batch_norm", "aten::linear"} <= set(names)
    found = seconds(run)
    assert found["aten::conv2d", "backward"] > 0
    assert any("operators stand for them" in note for note in run.summary["notes"])


def test_a_trace_without_steps_is_one_step(tmp_path):
    path = a_trace(tmp_path / "t.json", plain_network(), numbered=False)
    run = collect(path, tmp_path / "run")
    assert len(run.steps) == 1
    assert run.steps[0].forward_s > 0
    assert run.steps[0].backward_s > 0


def test_inference_has_no_backward_and_says_so(tmp_path):
    run = collect(a_trace(tmp_path / "t.json", plain_network(), backward=False), tmp_path / "run")
    assert all(step.backward_s == 0 for step in run.steps)
    assert any("no backward" in note for note in run.summary["notes"])


def test_a_packed_trace_and_a_folder_give_the_same_as_the_file(tmp_path):
    path = save(tmp_path / "t.json", a_gpu_step())
    folder = tmp_path / "traces"
    folder.mkdir()
    with path.open("rb") as given, gzip.open(folder / "t.json.gz", "wb") as packed:
        shutil.copyfileobj(given, packed)
    one = collect(path, tmp_path / "one")
    for other in (collect(folder, tmp_path / "two"), collect(folder / "t.json.gz", tmp_path / "three")):
        assert other.steps.table.equals(one.steps.table)
        assert other.layer_table.equals(one.layer_table)


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    import json

    path = tmp_path / "t.json"
    path.write_text(json.dumps(a_gpu_step()))
    assert len(collect(path, tmp_path / "run").steps) == 1


def test_device_spans_follow_the_kernels_and_busy_is_theirs(tmp_path):
    run = collect(save(tmp_path / "t.json", a_gpu_step()), tmp_path / "run")
    rows = {(row["layer"], row["phase"]): row for row in run.layer_table.to_pylist()}
    conv = rows["Conv2d_0", "forward"]
    assert conv["seconds"] == pytest.approx(290e-6)  # from 110, when it is entered, to 400, when it is done
    assert conv["busy_s"] == pytest.approx(200e-6)
    assert conv["idle_s"] == pytest.approx(90e-6)
    assert rows["Linear_0", "forward"]["seconds"] == pytest.approx(50e-6)
    assert rows["(loss)", "forward"]["seconds"] == pytest.approx(10e-6)
    assert rows["(loss)", "backward"]["seconds"] == pytest.approx(20e-6)
    assert rows["Linear_0", "backward"]["seconds"] == pytest.approx(100e-6)
    assert rows["Conv2d_0", "backward"]["seconds"] == pytest.approx(220e-6)
    assert rows["Conv2d_0", "backward"]["busy_s"] == pytest.approx(200e-6)
    assert rows["(other)", "update"]["seconds"] == pytest.approx(50e-6)


def test_device_books_close_with_idle_and_unexplained_apart(tmp_path):
    run = collect(save(tmp_path / "t.json", a_gpu_step()), tmp_path / "run")
    (step,) = run.steps
    assert step.wall_s == pytest.approx(1000e-6)
    assert step.device == "cuda"
    assert step.data_wait_s == pytest.approx(100e-6)
    assert step.forward_s == pytest.approx(250e-6)
    assert step.loss_s == pytest.approx(10e-6)
    assert step.backward_s == pytest.approx(320e-6)
    assert step.update_s == pytest.approx(50e-6)
    assert step.idle_s == pytest.approx(110e-6)
    # before the network was entered, and after the device was done with the update
    assert step.unexplained_s == pytest.approx(160e-6)


def test_kernels_keep_their_layer_and_phase(tmp_path):
    run = collect(save(tmp_path / "t.json", a_gpu_step()), tmp_path / "run")
    kernels = {row["name"]: (row["layer"], row["phase"]) for row in run.kernel_table.to_pylist()}
    assert kernels["gemm_back"] == ("Linear_0", "backward")
    assert kernels["conv"] == ("Conv2d_0", "forward")
    assert kernels["sgd"] == ("(other)", "update")


def test_a_kernel_without_its_launch_is_in_no_account(tmp_path):
    events = [*a_gpu_step(), span("kernel", "stray", 900, 950, 99, correlation=777, stream=7)]
    (step,) = collect(save(tmp_path / "t.json", events), tmp_path / "run").steps
    assert step.forward_s == pytest.approx(250e-6)
    assert step.unexplained_s == pytest.approx(160e-6)


def test_only_exposed_communication_counts(tmp_path):
    hidden = kernel("ncclDevKernel_AllReduce", 435, 500, 560, 70, stream=20)  # beside gemm_back
    exposed = kernel("ncclDevKernel_AllReduce", 445, 580, 600, 71, stream=20)  # nothing else runs
    path = save(tmp_path / "t.json", [*a_gpu_step(), *hidden, *exposed])
    (step,) = collect(path, tmp_path / "run").steps
    assert step.communication_s == pytest.approx(20e-6)
    assert step.backward_s == pytest.approx(320e-6)


def test_ranks_come_from_the_files(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
        save(folder / f"worker{rank}.json", [*a_gpu_step(), *a_gpu_step(1000, 1, 10)], **about)
    run = collect(folder, tmp_path / "run")
    assert [(step.rank, step.step) for step in run.steps] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_files_of_one_rank_follow_each_other(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for place in (2, 10, 1):
        save(folder / f"trace-{place}.json", a_gpu_step(at=place * 10_000))
    steps = collect(folder, tmp_path / "run").steps
    assert [step.step for step in steps] == [0, 1, 2]
    assert [step.start_s for step in steps] == sorted(step.start_s for step in steps)


def test_marks_of_instruments_are_no_layers(tmp_path):
    marks = [span("user_annotation", f"laptime mark 1 {i}", 110 + i, 110 + i) for i in range(4)]
    run = collect(save(tmp_path / "t.json", [*a_gpu_step(), *marks]), tmp_path / "run")
    assert [layer.name for layer in run.network] == ["Conv2d_0", "Linear_0"]


def test_a_backward_without_its_forward_is_charged_to_no_layer(tmp_path):
    events = [operator("aten::linear", 0, 10, 5), node("AddmmBackward0", 20, 50, 99)]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert seconds(run)["(other)", "backward"] == pytest.approx(30e-6)


def test_two_backward_passes_of_a_step_leave_the_gap_between_them_out(tmp_path):
    events = [
        operator("aten::linear", 0, 10, 0),
        node("AddmmBackward0", 20, 30, 0),
        operator("aten::conv2d", 60, 70, 1),
        node("ConvolutionBackward0", 80, 90, 1),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert seconds(run)["aten::linear", "backward"] == pytest.approx(10e-6)
    assert run.steps[0].unexplained_s == pytest.approx(30e-6)


def test_a_collected_run_is_a_run(tmp_path):
    collect(save(tmp_path / "t.json", a_gpu_step()), tmp_path / "run")
    run = load(tmp_path / "run")
    assert run.status == "finished"
    assert run.config["collected"]["source"] == "kineto"
    assert run.accounts()[Account.IDLE].total_s > 0
    assert run.layers()["Conv2d_0"].forward.median == pytest.approx(290e-6)
    assert {row["phase"] for row in run.layer_table.to_pylist()} == {phase.value for phase in Phase}
    assert (tmp_path / "run" / "csv" / "layers.csv").exists()
