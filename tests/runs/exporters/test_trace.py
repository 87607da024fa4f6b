"""Trace events, checked as the trace viewers read them."""

import itertools
import json
from collections import defaultdict

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_kernel, a_layer_time, a_step, add_steps, start

from laptime.model import Phase
from laptime.runs import load, schema, write_trace


def checked(path):
    """The trace's events, after what every viewer relies on has been checked."""
    trace = json.loads(path.read_text(), parse_constant=pytest.fail)
    events = trace["traceEvents"]
    tracks = defaultdict(list)
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= set(event)
        assert event["ph"] in "XMC"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        for (start_a, end_a), (start_b, end_b) in itertools.combinations(sorted(spans), 2):
            apart = end_a <= start_b + 1e-6 or end_b <= start_a + 1e-6
            nested = (start_a <= start_b and end_b <= end_a) or (start_b <= start_a and end_a <= end_b)
            assert apart or nested
    return events


def names_of(events, what):
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == what}


def test_a_trace_has_steps_layers_and_kernels_on_named_tracks(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1", "fc"]))
    events = checked(write_trace(run, tmp_path / "trace.json"))
    assert list(names_of(events, "process_name").values()) == ["rank 0 (cpu)"]
    assert set(names_of(events, "thread_name").values()) == {
        "accounts",
        "layers forward",
        "layers backward",
        "layers update",
        "kernels (stream 7)",
    }
    steps = [event for event in events if event.get("cat") == "step"]
    assert [event["name"] for event in steps] == [f"step {n}" for n in range(8)]
    assert steps[3]["ts"] == pytest.approx(0.3e6)
    assert steps[3]["dur"] == pytest.approx(0.1e6)
    assert steps[3]["args"]["backward_s"] == 0.05
    assert steps[3]["args"]["idle_s"] is None
    layers = [event for event in events if event.get("cat") == "layer"]
    assert len(layers) == 8 * 3 * 4
    assert {event["args"]["how"] for event in layers if event["args"]["phase"] == "update"} == {"allocated"}


def test_by_default_the_last_twenty_instrumented_steps_are_shown(tmp_path):
    writer = start(tmp_path / "run")
    rows = [a_step(n, instrumented=n % 2 == 0) for n in range(100)]
    writer.append("steps", schema.steps.table(rows))
    writer.append("layers", schema.layers.table([a_layer_time(n, "conv") for n in range(0, 100, 2)]))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    events = checked(write_trace(run, tmp_path / "trace.json"))
    shown = [event["name"] for event in events if event.get("cat") == "step"]
    assert shown == [f"step {n}" for n in range(60, 100, 2)]
    assert sum(event.get("cat") == "layer" for event in events) == 20
    chosen = checked(write_trace(run, tmp_path / "chosen.json", steps=range(10, 13)))
    assert [event["name"] for event in chosen if event.get("cat") == "step"] == [
        "step 10",
        "step 11",
        "step 12",
    ]


def test_ranks_are_processes_and_streams_are_tracks(tmp_path):
    writers = [start(tmp_path / "run", rank=rank) for rank in (0, 1)]
    for rank, writer in enumerate(writers):
        add_steps(writer, range(3), device=f"cuda:{rank}")
        rows = [a_kernel(2, "conv", rank=rank, stream=stream) for stream in (7, 2**45)]
        writer.append("kernels", schema.kernels.table(rows))
        writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    assert set(names_of(events, "process_name").values()) == {"rank 0 (cuda:0)", "rank 1 (cuda:1)"}
    titles = list(names_of(events, "thread_name").values())
    assert titles.count(f"kernels (stream {2**45})") == 2
    assert titles.count("accounts") == 2


def test_spans_that_would_tangle_are_cut_and_keep_their_seconds(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(1))
    rows = [
        a_layer_time(0, "twice", start_s=0.00, seconds=0.04, calls=2),
        a_layer_time(0, "between", start_s=0.02, seconds=0.04),
        a_layer_time(0, "inside", start_s=0.03, seconds=0.01),
        a_layer_time(0, "nothing", start_s=0.03, seconds=0.0),
        a_layer_time(0, "other phase", Phase.BACKWARD, start_s=0.01, seconds=0.04),
    ]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    found = {event["name"]: event for event in events if event.get("cat") == "layer"}
    assert found["twice"]["dur"] == pytest.approx(0.02e6)
    assert found["twice"]["args"]["seconds"] == 0.04
    assert found["between"]["dur"] == pytest.approx(0.04e6)


def test_hostile_names_and_losses_survive_the_trace(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(1), loss=float("nan"))
    writer.append("layers", schema.layers.table([a_layer_time(0, name) for name in HOSTILE]))
    writer.append("kernels", schema.kernels.table([a_kernel(0, "conv", name=name) for name in HOSTILE]))
    writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    for kind in ("layer", "kernel"):
        assert sorted(event["name"] for event in events if event.get("cat") == kind) == sorted(HOSTILE)


def test_a_run_without_steps_is_a_trace_without_events(tmp_path):
    start(tmp_path / "run").close("finished", {})
    assert checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json")) == []


def test_the_loss_and_the_time_it_takes_are_two_numbers(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(1), loss=2.5, loss_s=0.01, forward_s=0.02)
    writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    (step,) = (event for event in events if event.get("cat") == "step")
    assert (step["args"]["loss"], step["args"]["loss_s"]) == (2.5, 0.01)


def test_a_second_attempt_follows_where_the_first_ended(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(2))
    writer.append("steps", schema.steps.table([a_step(1, attempt=1, start_s=0.0)]))
    writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    steps = {event["name"]: event["ts"] for event in events if event.get("cat") == "step"}
    assert steps == {"step 0": 0.0, "step 1": 100_000.0, "step 1 (attempt 1)": 200_000.0}


def test_memory_is_a_counter_where_it_is_known(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(2))
    rows = [a_layer_time(0, "conv"), a_layer_time(1, "conv", memory_bytes=1 << 30)]
    writer.append("layers", schema.layers.table(rows))
    writer.close("finished", {})
    events = checked(write_trace(load(tmp_path / "run"), tmp_path / "trace.json"))
    counted = [(event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert counted == [(100_000.0, {"bytes": 1 << 30})]
