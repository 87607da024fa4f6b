import json
from pathlib import Path

import pytest
from tests.cli.verbs import caller
from tests.runs.importers.traces import a_gpu_step, a_trace, plain_network, save

from laptime.cli.collect import collect
from laptime.cli.compare import CompareCommand, compare
from laptime.cli.export import export
from laptime.cli.show import show

TIMELINES = Path(__file__).parents[1] / "runs" / "importers" / "data"


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    verbs = {"collect": (collect, None), "show": (show, None), "export": (export, None)}
    return caller(monkeypatch, tmp_path, compare=(compare, CompareCommand), **verbs)


@pytest.fixture
def trace(tmp_path):
    steps = [event for number in range(8) for event in a_gpu_step(number * 1000, number, number * 10)]
    return save(tmp_path / "trace.json", steps)


def test_a_trace_becomes_a_run_that_every_verb_reads(laptime, trace):
    done = laptime("collect", trace, "--out", "one")
    assert done.exit_code == 0
    assert "Conv2d_0" in done.stdout
    assert "written to one" in done.stderr
    assert "Conv2d_0" in laptime("show", "one").stdout
    assert laptime("export", "one", "--csv", "--perfetto").exit_code == 0
    found = json.loads(laptime("compare", "one", "one", "--json").stdout)
    assert found["train"]["layers"][0]["layer"] == "Conv2d_0"


def test_json_is_one_document(laptime, trace):
    found = json.loads(laptime("collect", trace, "--out", "one", "--json").stdout)
    assert found["run"] == "one"
    assert found["content"]["train"]["steps"] == 8


def test_without_out_the_run_goes_under_runs(laptime, trace, tmp_path):
    assert laptime("collect", trace).exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("trace-")


def test_timelines_of_tensorflow_show_their_scopes(laptime):
    text = laptime("collect", TIMELINES, "--out", "tf").stdout
    assert text.index("conv1") < text.index("fc2")


def test_a_log_takes_a_pattern(laptime, tmp_path):
    (tmp_path / "log").write_text("7;0.5;120\n8;0.4;121\n")
    pattern = r"(?P<step>\d+);(?P<loss>[\d.]+);(?P<ms>\d+)"
    found = json.loads(laptime("collect", "log", "--pattern", pattern, "--out", "one", "--json").stdout)
    assert found["content"]["train"]["steps"] == 2


def test_what_cannot_be_collected_is_told_in_one_line(laptime, tmp_path):
    (tmp_path / "empty.json").write_text("")
    for given in ("empty.json", "nowhere"):
        done = laptime("collect", given)
        assert done.exit_code == 1
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_log_without_times_is_shown_as_one(laptime, tmp_path):
    (tmp_path / "log").write_text("{'loss': 2.1, 'epoch': 0.1}\n{'loss': '1.5', 'epoch': '0.2'}\n")
    text = laptime("collect", "log", "--out", "one").stdout
    assert "2 training steps · how long they took is not known" in text
    assert "The log holds no accounts" in text
    assert "unexplained" not in text


def test_operators_are_called_so_and_a_forward_pass_is_no_training(laptime, tmp_path):
    trace = a_trace(tmp_path / "t.json", plain_network(), backward=False)
    text = laptime("collect", trace, "--out", "one").stdout
    assert "Where a step goes" in text
    assert "Operators of a step, in ms" in text
    assert "training" not in text
    assert "Layer" not in text
    compared = laptime("compare", "one", "one").stdout
    assert "A step, B against A" in compared
    assert "Operators, in ms" in compared
