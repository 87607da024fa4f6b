"""`laptime report`."""

import json

import pytest
from tests.cli.verbs import caller
from tests.views.comparisons import a_run
from tests.views.test_prediction_page import a_prediction, beside
from typer.core import TyperCommand

from laptime.cli.report import report


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    return caller(monkeypatch, tmp_path, report=(report, TyperCommand))


@pytest.fixture
def runs(tmp_path):
    for number in (1, 2):
        a_run(tmp_path / "exp" / f"rep-{number}", seed=number, steps=8)
    return tmp_path


def save(path, *predictions):
    path.write_text(json.dumps({"predictions": list(predictions) or [a_prediction()]}))


def test_a_run_has_its_report_inside(laptime, runs):
    done = laptime("report", "exp/rep-1")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "exp/rep-1/report.html\n", "")
    assert "<h1>rep-1" in (runs / "exp/rep-1/report.html").read_text()


def test_a_folder_of_runs_becomes_a_comparison_in_this_folder(laptime, runs):
    done = laptime("report", "exp")
    assert (done.exit_code, done.stdout) == (0, "report.html\n")
    assert "rep-2 against rep-1" in (runs / "report.html").read_text()


def test_two_folders_are_two_groups_as_compare_has_them(laptime, runs):
    for name in ("x", "y"):
        a_run(runs / "new" / name, steps=8)
    assert laptime("report", "exp", "new").exit_code == 0
    page = (runs / "report.html").read_text()
    assert "<h1>new against exp" in page
    assert "2 runs against 2: the intervals are over runs" in page


def test_a_run_given_twice_is_one_run(laptime, runs):
    assert laptime("report", "exp/rep-1", runs / "exp/rep-1").stdout == "exp/rep-1/report.html\n"


def test_out_is_a_file_or_a_folder(laptime, runs):
    (runs / "there").mkdir()
    assert laptime("report", "exp", "--out", "there").stdout == "there/report.html\n"
    assert laptime("report", "exp/rep-1", "--out", "new/one.html").exit_code == 0
    assert (runs / "new" / "one.html").is_file()


def test_json_says_where_it_is_and_how_large(laptime, runs):
    found = json.loads(laptime("report", "exp", "--json").stdout)
    assert found == {"report": "report.html", "bytes": (runs / "report.html").stat().st_size}


def test_a_saved_prediction_has_a_page_of_its_own(laptime, tmp_path):
    save(tmp_path / "p.json")
    done = laptime("report", "p.json")
    assert (done.exit_code, done.stdout) == (0, "report.html\n")
    assert "wide: a training step, predicted" in (tmp_path / "report.html").read_text()


def test_a_run_and_a_prediction_stand_side_by_side(laptime, runs, monkeypatch):
    save(runs / "p.json")
    monkeypatch.setattr("laptime.views.comparison.predicted.against", lambda run, path: beside([]))
    for given in (("exp/rep-1", "p.json"), ("p.json", "exp/rep-1")):
        assert laptime("report", *given).exit_code == 0
        assert "wide: measured and predicted" in (runs / "report.html").read_text()


def test_several_runs_beside_a_prediction_are_wrong_usage(laptime, runs):
    save(runs / "p.json")
    save(runs / "q.json")
    for given in (("exp", "p.json"), ("exp/rep-1", "p.json", "q.json")):
        done = laptime("report", *given)
        assert done.exit_code == 2
        assert "a prediction stands beside one run" in done.stderr


@pytest.mark.parametrize("given", ["nothing", "empty", "other.json", "text.txt"])
def test_what_is_neither_run_nor_prediction_is_told_in_one_line(laptime, runs, given):
    (runs / "empty").mkdir()
    (runs / "other.json").write_text("{}")
    (runs / "text.txt").write_text("no run")
    done = laptime("report", given)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert given in done.stderr


def test_a_place_that_cannot_be_written_is_told_in_one_line(laptime, runs):
    (runs / "file").write_text("")
    done = laptime("report", "exp/rep-1", "--out", "file/report.html")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "--out" in done.stderr
