"""Each section runs from end to end on the Zener network and has its columns. No times are asserted."""

import json
import time
from functools import partial

import pytest
from benchmarks.networks import CPU, CUDA, configuration
from benchmarks.worker import Order, measure

from benchmarks import __main__ as bench
from benchmarks import memory, slowdown


@pytest.fixture
def quick(monkeypatch):
    """Blocks of a few steps, and no second of warm-up before them."""
    monkeypatch.setattr(slowdown, "first_steps", partial(slowdown.first_steps, seconds=0.1))
    for name in ("BLOCK_S", "BARE_S", "WARMUP_S", "SETTLE_S", "PEER_S"):
        monkeypatch.setattr(slowdown, name, 0.01)
    monkeypatch.setattr(slowdown.DeepSpeedFlops, "installed", staticmethod(lambda: False))


def zener(tmp_path, *sections):
    order = Order(name="zener4-b32", device="cpu", sections=sections, seconds=1.0, rounds=2)
    return measure(order, began=time.monotonic(), root=tmp_path, say=lambda _: None)


def report(*documents, memory=None):
    return {
        "date": "2026-11-15",
        "command": "python -m benchmarks",
        "seconds": 60.0,
        "load": 0.0,
        "environment": documents[0]["environment"] if documents else {},
        "configurations": list(documents),
        "memory": memory,
        "failed": [],
    }


def test_the_slowdown_section_fills_its_row(tmp_path, quick):
    row = zener(tmp_path, "slowdown")
    for key in ("every_step", "budget", "left", "torch_profiler", "left_by_peers"):
        assert row[key]["low"] <= row[key]["ratio"] <= row[key]["high"]
    assert row["every_step"]["rounds"] == row["budget"]["rounds"] == 2
    assert (row["every_step"]["target"], row["budget"]["target"]) == (0.05, 0.02)
    assert row["deepspeed"] is None
    assert row["unexplained_share"] < 0.01
    assert row["named_share"] > 0.98
    json.dumps(row)
    (table,) = bench.tables(report(row))
    assert all(len(line) == len(table.header) for line in table.rows)
    assert [line[0] for line in table.rows] == ["Zener four-layer b32", "thesis: AlexNet", "thesis: VGG-11"]
    assert table.rows[1][2] == "+245 %"


def test_deepspeed_stands_beside_when_it_is_installed(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(slowdown.DeepSpeedFlops, "installed", staticmethod(lambda: True))

    class Peer(slowdown.Bare):
        name = "deepspeed"

        def __init__(self, work):
            assert work.network is not None

        installed = staticmethod(lambda: True)

    monkeypatch.setattr(slowdown, "DeepSpeedFlops", Peer)
    assert zener(tmp_path, "slowdown")["deepspeed"]["rounds"] == 2


def test_the_trace_section_compares_every_layer_in_both_phases(tmp_path):
    trace = zener(tmp_path, "trace")["trace"]
    rows = {(row["layer"], row["phase"]) for row in trace["layers"]}
    assert rows == {
        (layer, phase) for layer in ("conv1", "conv2", "fc1", "fc2") for phase in ("forward", "backward")
    }
    assert all(row["laptime_s"] > 0 and row["trace_s"] > 0 for row in trace["layers"])
    assert trace["compared"] == "spans, same steps"
    assert trace["unknown_share"] == 0.0
    assert len(trace["worst"]) == 5


def test_the_memory_section_records_every_step_and_gives_its_plateaus(tmp_path):
    found = memory.measure(steps=2000, root=tmp_path)
    assert found["recorded"] == {"train": 2000}
    assert found["first_bytes"] > 0
    assert len(found["windows"]) == memory.WINDOWS
    (table,) = bench.tables(report(memory=found))
    assert all(len(line) == len(table.header) for line in table.rows)


def test_a_slope_is_found_beside_a_sawtooth():
    samples = [(count, 10**8 + 50 * count + (count % 7) * 10**5, 10**6) for count in range(0, 100_000, 200)]
    found = memory.plateaus(samples)
    assert found["bytes_per_step"] == pytest.approx(50, rel=0.05)
    assert found["blocks_per_step"] == 0.0


def test_the_command_prints_and_writes_what_its_worker_measured(tmp_path, capfd):
    markdown, document = tmp_path / "bench.md", tmp_path / "bench.json"
    options = ["--device", "cpu", "--only", "zener4-b32", "--sections", "trace", "--seconds", "1"]
    assert bench.main([*options, "--markdown", str(markdown), "--json", str(document)]) == 0
    assert "Zener four-layer b32" in capfd.readouterr().out
    assert "| Zener four-layer b32 | spans, same steps |" in markdown.read_text(encoding="utf-8")
    found = json.loads(document.read_bytes())
    assert found["environment"]["variables"]["MALLOC_MMAP_THRESHOLD_"] == "268435456"
    assert [row["name"] for row in found["configurations"]] == ["zener4-b32"]


def test_an_unknown_configuration_is_named_with_those_that_exist():
    with pytest.raises(SystemExit, match="zener4-b32"):
        configuration("lenet", "cpu")


def test_time_is_divided_by_weight_and_the_memory_section_comes_last():
    options = bench._parser().parse_args(["--seconds", "100"])
    orders = bench.plan(options, "cpu")
    assert [order.name for order in orders] == [*(one.name for one in CPU), "memory"]
    assert sum(order.seconds for order in orders) == pytest.approx(100 * len(CPU))
    assert orders[1].seconds > orders[4].seconds


def test_the_rows_of_the_issue_are_all_there():
    judged = {one.name: one.target for one in CUDA}
    assert {name for name, target in judged.items() if target == 0.01} == {
        "alexnet-b128", "vgg11-b12", "vgg11-b64", "resnet50-b128", "gpt2-b8",
    }  # fmt: skip
    assert {name for name, target in judged.items() if target == 0.05} == {
        "alexnet-b16", "alexnet-b64", "resnet50-b32", "googlenet-b64",
    }  # fmt: skip
