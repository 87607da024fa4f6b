import csv
import json
from pathlib import Path

import pytest
from tests.runs.samples import HOSTILE, a_finished_run


def test_csv_goes_into_the_run(laptime, run):
    done = laptime("export", run, "--csv")
    assert done.exit_code == 0
    files = done.stdout.splitlines()
    assert files == [str(run / "csv" / name) for name in ("layers.csv", "iterations.csv", "experiment.csv")]


def test_csv_goes_where_it_is_sent(laptime, run, tmp_path):
    laptime("export", run, "--csv", "--out", "tables/here")
    assert {file.name for file in (tmp_path / "tables" / "here").iterdir()} == {
        "layers.csv",
        "iterations.csv",
        "experiment.csv",
    }


@pytest.mark.parametrize(
    ("out", "file"),
    [([], "runs/one/trace.json"), (["--out", "t.json"], "t.json"), (["--out", "."], "trace.json")],
)
def test_a_trace_goes_into_the_run_or_where_it_is_sent(laptime, run, tmp_path, out, file):
    done = laptime("export", run, "--perfetto", *out)
    assert done.exit_code == 0
    assert json.loads((tmp_path / file).read_text())["traceEvents"]


def test_export_json_lists_the_files(laptime, run):
    done = laptime("export", run, "--csv", "--perfetto", "--json")
    (one,) = json.loads(done.stdout)["exports"]
    assert len(one["files"]) == 4


def test_what_was_written_is_told_though_mlflow_fails_after_it(laptime, run):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    wanted = ["--csv", "--perfetto", "--mlflow", "http://127.0.0.1:9"]
    done = laptime("export", run, *wanted)
    assert done.exit_code == 1
    assert [Path(line).name for line in done.stdout.splitlines()] == [
        *("layers.csv", "iterations.csv", "experiment.csv", "trace.json"),
    ]
    assert "no MLflow server answers" in done.stderr.splitlines()[-1]
    done = laptime("export", run, *wanted, "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert sum(line.startswith("laptime: written: ") for line in done.stderr.splitlines()) == 4


def test_names_survive_both_formats(laptime, tmp_path):
    path = a_finished_run(tmp_path / "run", HOSTILE)
    assert laptime("export", path, "--csv", "--perfetto").exit_code == 0
    with open(path / "csv" / "layers.csv", newline="") as file:
        assert {row["layer"] for row in csv.DictReader(file)} >= set(HOSTILE)
    events = json.loads((path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= set(HOSTILE)


def test_event_files_go_into_the_run_or_beside_those_of_others(laptime, run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    other = a_finished_run(tmp_path / "runs" / "two", ["conv1"])
    done = laptime("export", run, "--tensorboard")
    assert done.exit_code == 0
    assert {Path(line).parent for line in done.stdout.splitlines()} == {
        run / "tensorboard",
        run / "tensorboard" / "train",
        run / "tensorboard" / "validation",
    }
    done = laptime("export", run, other, "--tensorboard", "--out", "logs", "--json")
    first, second = json.loads(done.stdout)["exports"]
    assert [Path(file).parts[:-1] for file in first["files"]] == [
        ("logs", "one"),
        ("logs", "one", "train"),
        ("logs", "one", "validation"),
    ]
    assert all((tmp_path / file).is_file() for file in first["files"] + second["files"])


def test_mlflow_is_told_once_and_the_second_time_says_so(laptime, run):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    first = laptime("export", run, "--mlflow", "ml", "--json")
    (one,) = json.loads(first.stdout)["exports"]
    assert one["files"] == []
    assert (one["mlflow"]["uri"], one["mlflow"]["experiment"], one["mlflow"]["replaced"]) == (
        "ml",
        "runs",
        [],
    )
    second = laptime("export", run, "--mlflow", "ml", "--experiment", "runs")
    assert second.exit_code == 0
    (line,) = second.stdout.splitlines()
    assert line.startswith("ml: run ")
    assert line.endswith("in experiment runs, in place of an earlier export")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "choose at least one"),
        (["--csv", "--tensorboard", "--out", "x"], "one format"),
        (["--mlflow", "ml", "--out", "x"], "one format"),
        (["--mlflow", ""], "give a folder"),
        (["--csv", "--experiment", "x"], "--mlflow URI"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(laptime, run, arguments, says):
    done = laptime("export", run, *arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


def test_a_server_that_is_not_there_is_one_line(laptime, run):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    done = laptime("export", run, "--mlflow", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no MLflow server answers at http://127.0.0.1:9" in line


def test_a_place_for_events_that_cannot_be_written_is_one_line(laptime, run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "file").write_text("")
    done = laptime("export", run, "--tensorboard", "--out", "file")
    assert done.exit_code == 1
    assert "file cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
