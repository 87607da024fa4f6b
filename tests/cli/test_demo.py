import json

import pytest

from laptime.cli.outcome import laptime_command
from laptime.runs import load


@pytest.mark.timeout(60)
def test_the_demo_trains_records_and_says_what_to_do_next(process, tmp_path):
    done = process("demo", "--epochs", "1", "--out", "first run", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where there is no terminal, and nothing of torch's chatter
    for line in (
        "Where a training step goes",
        "Where a validation step goes",
        "explained 100.0 %",
        "conv2",
        "fc1",
    ):
        assert line in done.stdout
    assert "laptime show 'first run'" in done.stdout
    assert "laptime export 'first run' --perfetto" in done.stdout
    run = load(tmp_path / "first run")
    assert run.status == "finished"
    assert {step.stage for step in run.steps} == {"train", "validation"}
    assert all(step.instrumented for step in run.steps[5:20])
    assert run.kernel_table.num_rows
    assert process("show", "first run").returncode == 0


def test_the_demo_s_json_is_one_document_with_the_accuracy(laptime):
    done = laptime("demo", "--epochs", "1", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert 0.4 < found["accuracy"] <= 1.0
    assert found["train"]["explained_share"] == pytest.approx(1.0, abs=0.01)
    assert found["run"]["path"].startswith("runs/demo-")


def test_the_demo_does_not_overwrite_a_run(laptime, run):
    done = laptime("demo", "--epochs", "1", "--out", run)
    assert done.exit_code == 1
    assert done.stderr.startswith("laptime: ")
    assert "already holds a run" in done.stderr


def test_commands_to_type_next_are_those_that_this_shell_finds(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    started = tmp_path / "bin" / "laptime"
    started.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(started)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert laptime_command() == str(started)  # as after `make demo`, which has .venv/bin/laptime
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert laptime_command() == "laptime"
    monkeypatch.setattr("sys.argv", ["/somewhere/laptime/__main__.py"])
    assert laptime_command().endswith(" -m laptime")
