"""The CSV files: the thesis' tables, read back with Python's csv."""

import csv
import json

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_step, add_steps, start

from laptime.model import Stage
from laptime.runs import load, schema, write_csv


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_layer_row_is_in_layers_csv_under_the_columns_of_the_table(tmp_path):
    run = load(a_finished_run(tmp_path / "run", HOSTILE))
    rows = read(run.path / "csv" / "layers.csv")
    assert list(rows[0]) == schema.layers.arrow.names
    assert [row["layer"] for row in rows] == run.layer_table["layer"].to_pylist()
    assert [float(row["seconds"]) for row in rows] == run.layer_table["seconds"].to_pylist()
    assert rows[0]["idle_s"] == ""


def test_iterations_csv_has_training_and_validation(tmp_path):
    rows = read(a_finished_run(tmp_path / "run", ["conv"]) / "csv" / "iterations.csv")
    assert list(rows[0]) == schema.steps.arrow.names
    assert [row["stage"] for row in rows] == ["train"] * 8 + ["validation"]
    assert [float(row["wall_s"]) for row in rows] == [0.1] * 9


def test_experiment_csv_tells_the_times_at_each_quarter(tmp_path):
    writer = start(
        tmp_path / "run", batch=64, optimizer={"name": "sgd, plain", "lr": 0.1}, classes=["a", "b"]
    )
    for epoch in range(4):  # 10 training steps, then 2 validation steps
        base = epoch * 12
        rows = [a_step(n, start_s=(base + n % 10) * 0.1) for n in range(epoch * 10, epoch * 10 + 10)]
        rows += [a_step(n, stage=Stage.VALIDATION, start_s=(base + 10 + n) * 0.1) for n in range(2)]
        writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    rows = read(tmp_path / "run" / "csv" / "experiment.csv")
    assert [row["percent"] for row in rows] == ["25", "50", "75", "100"]
    assert [row["iterations"] for row in rows] == ["10", "20", "30", "40"]
    assert [float(row["training_s"]) for row in rows] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert [float(row["validation_s"]) for row in rows] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [float(row["missing_s"]) for row in rows] == pytest.approx([0.024, 0.048, 0.072, 0.096])
    for row in rows:
        assert row["config.batch"] == "64"
        assert row["config.optimizer.name"] == "sgd, plain"
        assert json.loads(row["config.classes"]) == ["a", "b"]
        assert row["output.csv_layers"] == "csv/layers.csv"
        assert row["output.steps"] == "steps"


def test_ranks_run_side_by_side_so_their_time_is_not_added(tmp_path):
    zero, one = start(tmp_path / "run"), start(tmp_path / "run", rank=1)
    for writer in (zero, one):
        add_steps(writer, range(8))
    one.close("finished", {})
    zero.close("finished", {})
    rows = read(tmp_path / "run" / "csv" / "experiment.csv")
    assert float(rows[-1]["training_s"]) == pytest.approx(0.8)


def test_a_run_without_rows_still_has_its_three_files(tmp_path):
    start(tmp_path / "run", lr=1).close("interrupted", {})
    run = load(tmp_path / "run")
    assert [path.name for path in write_csv(run)] == ["layers.csv", "iterations.csv", "experiment.csv"]
    assert read(run.path / "csv" / "layers.csv") == []
    assert [row["training_s"] for row in read(run.path / "csv" / "experiment.csv")] == ["0.0"] * 4


def test_hostile_settings_survive_experiment_csv(tmp_path):
    start(tmp_path / "run", **{name: name for name in HOSTILE}).close("finished", {})
    for row in read(tmp_path / "run" / "csv" / "experiment.csv"):
        for name in HOSTILE:
            assert row[f"config.{name}"] == name


def test_what_rounding_leaves_is_written_as_zero(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(4), host_s=0.01, unexplained_s=-8.67e-19)
    add_steps(writer, range(4, 5), host_s=0.01, unexplained_s=-8.67e-19, loss=1e-15)
    writer.close("finished", {})
    rows = read(tmp_path / "run" / "csv" / "iterations.csv")
    assert {row["unexplained_s"] for row in rows} == {"0"}
    assert float(rows[-1]["loss"]) == 1e-15
    assert {row["missing_s"] for row in read(tmp_path / "run" / "csv" / "experiment.csv")} == {"0.0"}
