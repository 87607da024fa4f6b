import dataclasses
import json
import math
import os
import threading
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.runs.samples import a_finished_run, a_network, a_step, add_steps, start

from laptime.errors import RunError, RunExists
from laptime.runs import RunWriter, load, schema
from laptime.runs import writer as writer_module
from laptime.runs.exporters import csv_files

RUN_KEYS = [
    "schema_version",
    "id",
    "status",
    "heartbeat",
    "created",
    "config",
    "environment",
    "summary",
    "outputs",
    "health",
]


def document(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads((path / "run.json").read_text(), parse_constant=refuse)


def numbers(path: Path) -> list[int]:
    return load(path).steps.table["step"].to_pylist()


def test_a_closed_run_has_the_files_of_the_contract(tmp_path):
    path = a_finished_run(tmp_path / "run", ["conv1", "fc"])
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert found == [
        "csv/experiment.csv",
        "csv/iterations.csv",
        "csv/layers.csv",
        "kernels/part-r0-000000-000000.parquet",
        "layers/part-r0-000000-000000.parquet",
        "network.json",
        "run.json",
        "steps/part-r0-000000-000000.parquet",
    ]
    content = document(path)
    assert list(content) == RUN_KEYS
    assert content["status"] == "finished"
    assert content["summary"] == {"steps": {"train": 8}}
    assert {"pid", "boot_id", "time", "host"} <= set(content["heartbeat"])
    assert all((path / output).exists() for output in content["outputs"].values())
    assert content["outputs"]["csv_layers"] == "csv/layers.csv"


def test_a_new_run_is_readable_before_its_first_flush(tmp_path):
    writer = start(tmp_path / "deep" / "run", lr=0.1)
    run = load(tmp_path / "deep" / "run")
    assert (run.id, run.status, run.config) == (writer.id, "running", {"lr": 0.1})
    assert len(run.steps) == 0
    assert run.network == ()


def test_rows_are_on_disk_after_a_flush_and_not_before(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(3))
    assert numbers(tmp_path / "run") == []
    writer.flush()
    add_steps(writer, range(3, 5))
    assert numbers(tmp_path / "run") == [0, 1, 2]
    writer.flush()
    assert numbers(tmp_path / "run") == [0, 1, 2, 3, 4]


def test_closing_merges_a_table_into_one_part_and_closing_twice_does_nothing(tmp_path):
    writer = start(tmp_path / "run")
    for flush in range(5):
        add_steps(writer, range(flush * 2, flush * 2 + 2))
        writer.flush()
    writer.close("failed", {"why": "out of memory"})
    before = document(tmp_path / "run")
    writer.close("finished", {"why": "no"})
    assert document(tmp_path / "run") == before
    assert before["status"] == "failed"
    assert [path.name for path in (tmp_path / "run" / "steps").iterdir()] == ["part-r0-000000-000004.parquet"]
    assert numbers(tmp_path / "run") == list(range(10))
    with pytest.raises(RunError, match="is closed"):
        add_steps(writer, range(1))


def test_strings_are_dictionary_encoded_on_disk_and_plain_in_arrow(tmp_path):
    path = a_finished_run(tmp_path / "run", ["conv1"])
    (part,) = (path / "layers").iterdir()
    facts = pq.read_metadata(part).row_group(0)
    coded = {
        facts.column(i).path_in_schema
        for i in range(facts.num_columns)
        if facts.column(i).has_dictionary_page
    }
    assert coded == {"stage", "layer", "phase", "how"}
    assert pq.read_schema(part).equals(schema.layers.arrow)


def test_run_ids_sort_by_time_and_differ():
    ids = [writer_module.new_id() for _ in range(200)]
    assert len(set(ids)) == 200
    stamps = [run_id[:15] for run_id in ids]
    assert stamps == sorted(stamps)
    assert len(ids[0]) <= 24


# --- what is there already is never overwritten ---------------------------------------------------


def refusal(path: Path, rank: int = 0) -> str:
    with pytest.raises(RunExists) as caught:
        start(path, rank=rank)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_that_holds_a_run_is_refused_and_left_alone(tmp_path):
    path = a_finished_run(tmp_path / "run", ["conv1"])
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert "already holds a run; give another directory" in refusal(path)
    assert "already holds a run; give another directory" in refusal(path, rank=1)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_directory_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is not empty (it holds thesis.tex)" in refusal(tmp_path)
    assert "is taken already" in refusal(tmp_path / "thesis.tex")


def test_an_empty_directory_is_taken(tmp_path):
    start(tmp_path).close("finished", {})
    assert load(tmp_path).status == "finished"


def test_two_processes_that_start_at_once_do_not_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "refuse_if_taken", lambda directory, rank: None)
    first = start(tmp_path / "run")
    assert "is taken already" in refusal(tmp_path / "run")
    assert load(tmp_path / "run").id == first.id


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"no run can be written to .*file/run: Not a directory"):
        start(tmp_path / "file" / "run")


# --- strict JSON ----------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Stubborn:
    def __str__(self) -> str:
        raise RuntimeError("no")


@dataclasses.dataclass
class Settings:
    lr: float
    where: Path


def test_anything_a_configuration_holds_becomes_strict_json(tmp_path):
    loop: dict = {}
    loop["self"] = loop
    config = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf, 1.5],
        "set": {"b", "a"},
        "path": Path("data/zener"),
        "type": dict,
        "numpy": np.float32(0.5),
        "int": np.int64(3),
        "array": np.arange(3),
        "colour": Colour.RED,
        "settings": Settings(lr=0.1, where=Path("x")),
        "tuple": (1, True, None),
        3: "a number as key",
        "stubborn": Stubborn(),
        "bytes": b"\xff",
        "undecodable": os.fsdecode(b"\xff.jpg"),
        "loop": loop,
    }
    start(tmp_path / "run", all=config)
    found = document(tmp_path / "run")["config"]["all"]
    assert found["nan"] is None
    assert found["inf"] == [None, None, 1.5]
    assert found["set"] == ["a", "b"]
    assert found["path"] == "data/zener"
    assert (found["numpy"], found["int"], found["array"]) == (0.5, 3, [0, 1, 2])
    assert found["colour"] == "red"
    assert found["settings"] == {"lr": 0.1, "where": "x"}
    assert found["tuple"] == [1, True, None]
    assert found["3"] == "a number as key"
    assert found["stubborn"] == "<Stubborn>"
    assert found["undecodable"] == "\\udcff.jpg"


def test_updates_add_to_what_is_known_and_are_copied_when_given(tmp_path):
    writer = start(tmp_path / "run", lr=0.1)
    growing = {"learned": [0.01]}
    writer.update(summary=growing, environment={"gpu": "none"}, config={"seed": 1})
    growing["learned"].append(9.0)
    writer.update(summary={"wall_s": 3.0}, outputs={"report": "report.html"})
    writer.flush()
    run = load(tmp_path / "run")
    assert run.summary == {"learned": [0.01], "wall_s": 3.0}
    assert run.environment == {"python": "3.11", "gpu": "none"}
    assert run.config == {"lr": 0.1, "seed": 1}
    assert run.outputs["report"] == "report.html"


# --- threads and ranks ----------------------------------------------------------------------------


def test_threads_that_append_while_another_flushes_lose_no_row(tmp_path):
    writer = start(tmp_path / "run")
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            writer.flush()

    def append(lane: int) -> None:
        for number in range(100):
            writer.append("steps", schema.steps.table([a_step(number, epoch=lane)]))

    flusher = threading.Thread(target=flush)
    appenders = [threading.Thread(target=append, args=(lane,)) for lane in range(3)]
    for thread in (flusher, *appenders):
        thread.start()
    for thread in appenders:
        thread.join()
    stop.set()
    flusher.join()
    writer.close("finished", {})
    rows = [(step.epoch, step.step) for step in load(tmp_path / "run").steps]
    assert sorted(rows) == [(lane, number) for lane in range(3) for number in range(100)]


@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_share_a_directory_in_whichever_order_they_come(tmp_path, first):
    path = tmp_path / "run"
    ranks: list[RunWriter | None] = [None, None]
    for rank in (first, 1 - first):
        ranks[rank] = start(path, rank=rank, who=f"rank {rank}")
        add_steps(ranks[rank], range(4))
        ranks[rank].flush()
    zero, one = ranks
    one.network(a_network(["not mine to write"]))
    assert not (path / "network.json").exists()
    assert "already holds rows of rank 1" in refusal(path, rank=1)
    run = load(path)
    assert run.config == {"who": "rank 0"}
    assert [(step.rank, step.step) for step in run.steps] == [(rank, n) for rank in (0, 1) for n in range(4)]
    for writer in (one, zero):
        add_steps(writer, range(4, 6))
        writer.close("finished", {})
    names = sorted(part.name for part in (path / "steps").iterdir())
    assert names == ["part-r0-000000-000001.parquet", "part-r1-000000-000001.parquet"]
    assert len(load(path).steps) == 12


def test_a_large_table_is_left_to_export_and_listed_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "CSV_ROWS", 5)
    writer = start(tmp_path / "run")
    add_steps(writer, range(6))
    writer.close("finished", {})
    run = load(tmp_path / "run")
    assert run.summary["left_to_export"] == ["csv/iterations.csv"]
    assert not (tmp_path / "run/csv/iterations.csv").exists()
    assert tmp_path / "run/csv/iterations.csv" in csv_files.write_csv(run)


def test_a_run_closes_only_as_something_that_is_over(tmp_path):
    writer = start(tmp_path / "run")
    with pytest.raises(ValueError, match="a run closes as finished, failed, interrupted, not 'running'"):
        writer.close("running", {})


def test_a_false_start_is_discarded_only_if_nothing_else_is_there(tmp_path):
    from laptime.runs import discard

    for name, keeps in (("clean", False), ("shared", True)):
        writer = RunWriter.create(tmp_path / name, config={}, environment={})
        writer.close("finished")
        if keeps:
            (tmp_path / name / "my_config.yaml").write_text("precious")
        assert discard(tmp_path / name) is not keeps
        assert (tmp_path / name).exists() is keeps
    assert (tmp_path / "shared" / "my_config.yaml").read_text() == "precious"
    assert (tmp_path / "shared" / "run.json").exists()
