"""A training that goes on more than once: each step counts once, and what is advised works."""

import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.training import test_loop as loop
from tests.training.test_loop import configured, losses, training

import laptime
from laptime.cli import app
from laptime.errors import TrainingError
from laptime.runs import query
from laptime.training import checkpoint
from laptime.views.run_document import content

KEY = ("attempt", "stage", "step", "rank")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setitem(sys.modules, loop.__name__, loop)


class Cut(Exception):
    pass


def cut_at(step):
    def cut(now):
        if now.step == step:
            raise Cut

    return cut


def stored_keys(out):
    """The key of every row of steps on disk, those that do not count included."""
    table = replace(laptime.load(out).stored("steps"), every_attempt=True).read(list(KEY))
    return list(zip(*(table[name].to_pylist() for name in KEY), strict=True))


@pytest.fixture
def resumed_twice(tmp_path):
    """Broken off at step 9, then at 8, both times resumed from the checkpoint at 6; then to the end."""
    config = configured(train={"batch": 8, "epochs": 3}, checkpoint={"every": 0})
    out = tmp_path / "run"

    def stop(now):
        if now.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        training(out, config, watch=stop).run()
    saved = (out / "checkpoint" / "last.pt").read_bytes()
    for step in (9, 8):
        with pytest.raises(Cut):
            training(out, config, resume=True, watch=cut_at(step)).run()
        assert (out / "checkpoint" / "last.pt").read_bytes() == saved
    whole = training(tmp_path / "whole", config).run()
    return training(out, config, resume=True).run(), whole


def test_two_resumes_from_one_checkpoint_leave_no_row_twice(resumed_twice):
    run, whole = resumed_twice
    keys = stored_keys(run.path)
    assert len(keys) == len(set(keys)) > len(whole.steps)
    assert {key[0] for key in keys} == {0, 1, 2, 3}


def test_a_step_that_was_taken_again_counts_once_in_every_view(resumed_twice):
    run, whole = resumed_twice
    assert len(run.steps) == len(whole.steps) == run.steps.table.num_rows == len(list(run.steps))
    assert losses(run) == losses(whole)
    assert run.accounts(skip=0).wall.count == 15
    assert run.layers(skip=0).steps == whole.layers(skip=0).steps
    assert run.layers(skip=0)["first"].calls == 1
    found = content(run)
    assert found["train"]["steps"] == 15
    assert found["health"]["told"] == []
    assert any("taken again after a resume" in note for note in found["notes"])
    counted = query("SELECT stage, count(*) AS n FROM steps GROUP BY stage ORDER BY stage", run.path)
    assert counted.table["n"].to_pylist() == [15, 6]
    layers = query("SELECT count(DISTINCT attempt) AS n FROM layers GROUP BY stage, step, rank", run.path)
    assert set(layers.table["n"].to_pylist()) == {1}
    csv = (run.path / "csv" / "iterations.csv").read_text().splitlines()
    assert len(csv) == 1 + len(whole.steps)


def test_the_seconds_of_a_resumed_run_go_on_from_its_checkpoint(resumed_twice):
    run, _ = resumed_twice
    starts = run.steps.table["start_s"].to_numpy()
    ends = starts + run.steps.table["wall_s"].to_numpy()
    assert np.all(np.diff(starts) > 0)
    assert starts[1:] == pytest.approx(ends[:-1], abs=1e-6)


def test_what_is_said_without_a_checkpoint_leads_to_a_command_that_works(tmp_path, capfd):
    config = tmp_path / "c.toml"
    config.write_text(
        '[network]\nname = "zener4"\n[data]\nkind = "synthetic"\nsamples = 8\nshape = [1, 32, 32]\n'
        'classes = 5\n[train]\nbatch = 4\nepochs = 1\ndevice = "cpu"\n[checkpoint]\nevery = 0\n'
    )
    with pytest.raises(Cut):
        training(tmp_path / "run", watch=cut_at(2)).run()
    with pytest.raises(SystemExit) as status:
        app(["train", str(config), "--resume", "--out", str(tmp_path / "run")])
    assert status.value.code == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "no checkpoint" in line]
    advice = line.rpartition("with ")[2].split()
    assert advice == ["--out", str(tmp_path / "run-2")]
    app(["train", str(config), *advice, "--json"], standalone_mode=False)
    assert laptime.load(tmp_path / "run-2").status == "finished"


@pytest.mark.parametrize("damage", ["cut", "version"])
def test_a_checkpoint_of_no_use_is_told_with_a_directory_to_start_in(damage, tmp_path):
    training(tmp_path / "run").run()
    (tmp_path / "run-2").mkdir()
    file = tmp_path / "run" / "checkpoint" / "last.pt"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    else:
        checkpoint.save(file, checkpoint.load(file) | {"version": 0})
    with pytest.raises(TrainingError, match=r"start anew without --resume and with --out .*/run-3$") as error:
        training(tmp_path / "run", resume=True)
    assert "\n" not in str(error.value)


def test_a_directory_that_is_new_needs_only_the_option_left_out(tmp_path):
    with pytest.raises(TrainingError, match=r"start without --resume$"):
        training(tmp_path / "run", resume=True)


def test_unfinished_files_of_killed_writers_are_removed_and_those_of_living_ones_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "run", watch=_interrupt).run()
    run = tmp_path / "run"
    dead, alive = 2**22 + 1, os.getppid()
    gone = [run / f".run.{dead}.tmp", run / "steps" / f".part-r0-000009-000009.{dead}.tmp"]
    gone += [run / "checkpoint" / f".last.{dead}.tmp", run / "csv" / f".layers.{os.getpid()}.tmp"]
    kept = [
        run / f".run.{alive}.tmp",
        run / "steps" / f".part-r1-000000-000000.{dead}.tmp",
        run / ".mine.tmp",
    ]
    for file in (*gone, *kept):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
    training(run, resume=True).run()
    assert [file for file in gone if file.exists()] == []
    assert [file for file in kept if not file.exists()] == []


def _interrupt(now):
    if now.step == 2:
        os.kill(os.getpid(), signal.SIGINT)
