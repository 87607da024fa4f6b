import csv
import json

import pytest
from tests.store.samples import HOSTILE, a_finished_run


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


def test_names_survive_both_formats(laptime, tmp_path):
    path = a_finished_run(tmp_path / "run", HOSTILE)
    assert laptime("export", path, "--csv", "--perfetto").exit_code == 0
    with open(path / "csv" / "layers.csv", newline="") as file:
        assert {row["layer"] for row in csv.DictReader(file)} >= set(HOSTILE)
    events = json.loads((path / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} >= set(HOSTILE)
