"""The timelines under `data/` were written by TensorFlow itself; `data/make_timeline.py` is the script."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from tests.runs.importers.traces import accounts, near, save

from laptime.runs.importers import collect

DATA = Path(__file__).parent / "data"
LAYERS = ["conv1", "conv2", "fc1", "fc2"]


@pytest.fixture
def run(tmp_path):
    return collect(DATA, tmp_path / "run")


def test_scopes_are_layers_in_the_order_they_run(run):
    assert [layer.name for layer in run.network] == LAYERS
    assert run.config["collected"]["source"] == "tensorflow"


def test_each_timeline_is_a_step_whose_books_close(run):
    assert [step.step for step in run.steps] == [0, 1, 2]
    for step in run.steps:
        assert step.forward_s > 0
        assert step.loss_s > 0
        assert step.backward_s > 0
        assert step.update_s > 0
        assert abs(step.unexplained_s) < 1e-9  # a timeline knows when nothing ran: that is idle
        assert step.idle_s > 0


def test_every_layer_has_the_sum_of_its_operations_as_the_thesis_added_them_up(run):
    wanted = defaultdict(float)
    for number, file in enumerate(sorted(DATA.glob("*.json"))):
        for event in json.loads(file.read_text())["traceEvents"]:
            if event["ph"] != "X":
                continue
            name = event["args"]["name"].removeprefix("ConstantFolding/")
            for layer in LAYERS:
                if name.startswith(f"gradients/{layer}/"):
                    wanted[number, layer, "backward"] += event["dur"] * 1e-6
                elif name.startswith(f"Momentum/update_{layer}/") or (
                    name.startswith(f"{layer}/") and name.endswith("/Momentum")
                ):
                    wanted[number, layer, "update"] += event["dur"] * 1e-6
                elif name.startswith(f"{layer}/"):
                    wanted[number, layer, "forward"] += event["dur"] * 1e-6
    rows = run.layer_table.to_pylist()
    found = {
        (row["step"], row["layer"], row["phase"]): row["seconds"] for row in rows if row["layer"] in LAYERS
    }
    assert found == pytest.approx(dict(wanted))
    assert len(found) == 3 * len(LAYERS) * 3


def test_one_timeline_is_enough(tmp_path):
    run = collect(DATA / "timeline-0.json", tmp_path / "run")
    assert len(run.steps) == 1
    assert run.named_share(skip=0) > 0.95


def process(pid, name):
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def operation(pid, name, start, end, lane=0):
    args = {"name": name, "op": name.rpartition("/")[2]}
    event = {"ph": "X", "cat": "Op", "pid": pid, "tid": lane, "name": args["op"], "args": args}
    return event | {"ts": start, "dur": end - start}


def test_each_gpu_is_a_rank_with_its_own_towers(tmp_path):
    events = []
    for gpu in (0, 1):
        events.append(process(gpu, f"/job:localhost/replica:0/task:0/device:GPU:{gpu}/stream:all Compute"))
        events += [
            operation(gpu, f"tower_{gpu}/conv1/Conv2D", 0, 10 + gpu),
            operation(gpu, f"tower_{gpu}/fc1/MatMul", 20, 25),
            operation(
                gpu, f"tower_{gpu}/gradients/tower_{gpu}/conv1/Conv2D_grad/Conv2DBackpropFilter", 30, 60
            ),
        ]
    events += [process(9, "/job:localhost/replica:0/task:0/device:CPU:0 Compute"), operation(9, "x/y", 0, 99)]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    rows = {(row["rank"], row["layer"], row["phase"]): row["seconds"] for row in run.layer_table.to_pylist()}
    assert rows[0, "conv1", "forward"] == pytest.approx(10e-6)
    assert rows[1, "conv1", "forward"] == pytest.approx(11e-6)
    assert rows[1, "conv1", "backward"] == pytest.approx(30e-6)
    assert [step.device for step in run.steps] == ["gpu:0", "gpu:1"]


def test_a_scope_around_the_whole_network_is_no_layer(tmp_path):
    events = [
        process(1, "/job:localhost/replica:0/task:0/device:CPU:0 Compute"),
        operation(1, "alexnet/conv1/Conv2D", 0, 10),
        operation(1, "alexnet/fc1/MatMul", 10, 20),
        operation(1, "gradients/alexnet/fc1/MatMul_grad/MatMul", 20, 30),
        operation(1, "Momentum/update_alexnet/conv1/weights/ApplyMomentum", 30, 40),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert [layer.name for layer in run.network] == ["conv1", "fc1"]
    phases = {(row["layer"], row["phase"]) for row in run.layer_table.to_pylist()}
    assert {("fc1", "backward"), ("conv1", "update")} <= phases


def test_operations_side_by_side_share_their_time_and_the_run_says_so(tmp_path):
    events = [
        process(1, "/job:localhost/replica:0/task:0/device:CPU:0 Compute"),
        operation(1, "conv1/Conv2D", 0, 100),
        operation(1, "fc1/MatMul", 0, 100, lane=1),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert [row["seconds"] for row in run.layer_table.to_pylist()] == pytest.approx([50e-6, 50e-6])
    assert run.steps[0].wall_s == pytest.approx(100e-6)
    assert any("2.0 operations ran at a time" in note for note in run.summary["notes"])


GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_what_the_cpu_computes_before_the_first_kernel_counts(tmp_path):
    events = [
        process(1, f"{CPU} Compute"),
        operation(1, "IteratorGetNext", 0, 10_000),
        operation(1, "conv1/weights/read", 10_000, 13_300),
        process(2, f"{GPU}/stream:all Compute"),
        operation(2, "conv1/Conv2D", 13_300, 20_300),
        operation(2, "gradients/conv1/Conv2D_grad/Conv2DBackpropFilter", 20_300, 30_300),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    (step,) = run.steps
    assert step.device == "gpu:0"
    assert step.wall_s == pytest.approx(30_300e-6)
    assert accounts(step) == near({"data_wait": 10_000, "forward": 3_300 + 7_000, "backward": 10_000})
    rows = {(row["layer"], row["phase"]): row["seconds"] for row in run.layer_table.to_pylist()}
    assert rows["conv1", "forward"] == pytest.approx(10_300e-6)


def test_what_the_cpu_computes_beside_a_kernel_is_hidden(tmp_path):
    events = [
        process(1, f"{CPU} Compute"),
        operation(1, "input/DecodeJpeg", 0, 100),
        operation(1, "_Recv", 0, 200),  # waits for the GPU
        process(2, f"{GPU}/stream:all Compute"),
        operation(2, "net/conv1/Conv2D", 20, 60),
        operation(2, "net/fc1/MatMul", 120, 150),
        process(3, f"{GPU} Compute"),
        operation(3, "net/fc1/MatMul", 10, 160),  # the host launches it
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert [layer.name for layer in run.network] == ["conv1", "fc1"]
    rows = {row["layer"]: row["seconds"] for row in run.layer_table.to_pylist()}
    assert rows == pytest.approx({"input": 60e-6, "conv1": 40e-6, "fc1": 30e-6})
    assert accounts(run.steps[0]) == near({"forward": 130, "idle": 30})  # up to 160, when the host is done


def test_a_kernel_that_several_rows_show_counts_once(tmp_path):
    events = [
        process(1, f"{GPU}/stream:all Compute"),
        operation(1, "conv1/Conv2D", 0, 100),
        operation(1, "fc1/MatMul", 100, 140),
        process(2, f"{GPU}/stream:13 Compute"),
        operation(2, "conv1/Conv2D", 0, 100),
        process(3, f"{GPU}/stream:14 Compute"),
        operation(3, "fc1/MatMul", 100, 140),
        operation(3, "MEMCPYHtoD", 140, 160),
        process(4, f"{GPU}/memcpy Compute"),
        operation(4, "MEMCPYHtoD", 140, 160),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    assert accounts(run.steps[0]) == near({"forward": 140, "copy": 20})
    assert [row["name"] for row in run.kernel_table.to_pylist()] == [
        "conv1/Conv2D",
        "fc1/MatMul",
        "MEMCPYHtoD",
    ]
    assert {row["layer"]: row["calls"] for row in run.layer_table.to_pylist()} == {"conv1": 1, "fc1": 1}
    assert not any("at a time" in note for note in run.summary["notes"])


def test_numbered_streams_are_enough(tmp_path):
    events = [
        process(1, f"{GPU}/stream:7 Compute"),
        operation(1, "conv1/Conv2D", 0, 100),
        process(2, f"{GPU}/stream:8 Compute"),
        operation(2, "fc1/MatMul", 50, 150),
    ]
    run = collect(save(tmp_path / "t.json", events), tmp_path / "run")
    rows = {row["layer"]: row["seconds"] for row in run.layer_table.to_pylist()}
    assert rows == pytest.approx({"conv1": 75e-6, "fc1": 75e-6})


def test_devices_may_have_their_short_names(tmp_path):
    events = [process(1, "/gpu:0/stream:all Compute"), operation(1, "conv1/Conv2D", 0, 100)]
    (step,) = collect(save(tmp_path / "t.json", events), tmp_path / "run").steps
    assert step.device == "gpu:0"
