"""How a verb ends when something goes wrong that nobody foresaw, and what it prints of foreign text."""

import json
import os
import sys

import pytest
from tests.estimate.runs import a_run, a_workload
from tests.runs.samples import a_finished_run
from typer.testing import CliRunner

from laptime.cli import app

EVIL = "\x1b[31mred\x1b]0;title\x07\u202e"


@pytest.fixture
def laptime():
    return lambda *words, **options: CliRunner().invoke(app, list(map(str, words)), **options)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("two\nlines \x1b[2J"), "an unexpected RuntimeError: two"),
        (RecursionError("deep"), "something is nested too deeply"),
        (MemoryError(), "there is not enough memory"),
        (ModuleNotFoundError("no x", name="x"), "an unexpected ModuleNotFoundError: no x"),
        (OSError("no name"), "an unexpected OSError: no name"),
    ],
)
def test_an_unforeseen_error_is_one_line_and_says_how_to_report_it(
    laptime, monkeypatch, tmp_path, error, said
):
    monkeypatch.setattr(sys.modules["laptime.cli.show"], "_read", lambda *_: (_ for _ in ()).throw(error))
    ended = laptime("show", tmp_path)
    assert ended.exit_code == 1
    assert ended.stderr.startswith(f"laptime: {said}")
    assert ended.stderr.count("\n") == 1
    assert "LAPTIME_TRACEBACK=1" in ended.stderr
    assert "Traceback" not in ended.output


def test_a_bug_report_holds_the_traceback(laptime, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["laptime.cli.show"], "_read", lambda *_: 1 / 0)
    monkeypatch.setenv("LAPTIME_TRACEBACK", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = laptime("show", tmp_path)
    (report,) = tmp_path.glob("laptime-bug-*.txt")
    assert str(report) in ended.stderr
    assert "ZeroDivisionError" in report.read_text()


def test_escapes_and_bidirectional_marks_of_a_run_are_not_printed(laptime, tmp_path):
    run = a_finished_run(tmp_path / "run", [f"conv{EVIL}"])
    document = json.loads((run / "run.json").read_text())
    document["environment"] = {"device": {"name": EVIL, "type": "cuda"}, "torch": EVIL}
    document["summary"]["notes"] = [EVIL]
    (run / "run.json").write_text(json.dumps(document))
    for words in (("show", run), ("compare", run, run), ("export", run, "--out", tmp_path / "out")):
        ended = laptime(*words)
        assert_shown(ended.output)


def test_escapes_in_device_files_and_errors_are_not_printed(laptime, tmp_path):
    good = tmp_path / "mine.toml"
    good.write_text(
        'name = "mine"\nkind = "gpu"\nmemory_bandwidth_gbs = 10\nfp32 = 1\n'
        'title = "\\u001b[31mred"\nnote = "\\u202eevil"\nsource = "\\u001b]0;x\\u0007"\n'
    )
    assert_shown(laptime("devices", good).output)
    (tmp_path / "bad.toml").write_text('name = "\\u001b[31mred"\n')
    ended = laptime("devices", tmp_path / "bad.toml")
    assert ended.exit_code == 1
    assert_shown(ended.output)
    assert_shown(laptime("show", tmp_path / f"no{EVIL.replace('/', '')}").output)


BROKEN = "two\nlines\x1b[2J"


def test_names_with_line_breaks_stay_on_one_line(laptime, tmp_path):
    plain, broken = (a_finished_run(tmp_path / name, [layer]) for name, layer in (("a", "x"), ("b", BROKEN)))
    document = json.loads((broken / "run.json").read_text())
    document["environment"] = {"device": {"name": BROKEN, "type": "cuda"}, "torch": BROKEN}
    document["summary"]["notes"] = [BROKEN]
    (broken / "run.json").write_text(json.dumps(document))
    for words in (("show", broken), ("compare", broken, broken), ("compare", plain, broken)):
        assert_on_one_line(laptime(*words))


def test_a_saved_prediction_with_line_breaks_stays_on_one_line(laptime, tmp_path):
    a_workload().save(tmp_path / "wide.json")
    document = json.loads(laptime("predict", tmp_path / "wide.json", "--json").stdout)
    made = document["predictions"][0]
    made |= {"network": BROKEN, "device": BROKEN, "notes": [BROKEN], "basis": BROKEN, "bottleneck": BROKEN}
    made["layer_times"][0]["layer"] = BROKEN
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(document))
    assert_on_one_line(laptime("show", saved))
    assert_on_one_line(laptime("compare", a_run(tmp_path / "run").path, saved))


def test_a_device_file_and_its_errors_stay_on_one_line(laptime, tmp_path):
    broken = json.dumps(BROKEN)
    figures = 'kind = "gpu"\nmemory_bandwidth_gbs = 10\nfp32 = 1\n'
    (tmp_path / "mine.toml").write_text(
        f'name = "mine"\ntitle = {broken}\nnote = {broken}\nsource = {broken}\n{figures}'
    )
    a_workload().save(tmp_path / "wide.json")
    assert_on_one_line(laptime("devices", tmp_path / "mine.toml"))
    assert_on_one_line(laptime("predict", tmp_path / "wide.json", "--device", tmp_path / "mine.toml"))
    (tmp_path / "bad.toml").write_text(f"name = {broken}\nkind = {broken}\n")
    ended = laptime("devices", tmp_path / "bad.toml")
    assert (ended.exit_code, ended.stderr.count("\n")) == (1, 1)
    assert_shown(ended.stderr)


def assert_on_one_line(ended):
    """No line begins with what followed a line break, and nothing of it reaches the terminal."""
    assert ended.exit_code == 0, ended.stderr
    assert not [line for line in ended.output.splitlines() if line.lstrip(" -").startswith("lines")]
    assert_shown(ended.output)


def assert_shown(output):
    assert output.replace("\n", "").replace("\t", "").isprintable(), repr(output)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_does_not_block_show(laptime, tmp_path):
    os.mkfifo(tmp_path / "run.json")
    ended = laptime("show", tmp_path)
    assert ended.exit_code == 1
    assert "it is a pipe, not a plain file" in ended.stderr
