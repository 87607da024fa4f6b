"""`laptime train`, as a user types it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from laptime.cli import app
from laptime.errors import ConfigError
from laptime.runs import load
from laptime.training.launch.experiment import grid, python, trials
from laptime.training.stop_signals import Relay

CONFIG = """
network = "zener4"
[data]
kind = "zener"
samples = 96
validation_samples = 32
[train]
epochs = 1
batch = 32
device = "cpu"
threads = 1
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "cards.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def trials_here(monkeypatch):
    """Trials in this process: starting one takes seconds. Two tests below start theirs."""

    def start(self, command, *, stdout, stderr):
        assert command[: len(python())] == python()
        done = CliRunner().invoke(app, command[len(python()) :])
        stderr.write(done.stderr.encode())
        return SimpleNamespace(poll=lambda: done.exit_code)

    monkeypatch.setattr(Relay, "start", start)


def test_a_training_is_recorded_and_shown(laptime, config, tmp_path):
    done = laptime("train", config, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    assert "conv2" in done.stdout
    assert f"The run is in {tmp_path / 'run'}" in done.stdout
    run = load(tmp_path / "run")
    assert run.config["name"] == "cards"
    assert len(run.steps) == 4
    assert {file.name for file in (run.path / "csv").iterdir()} == {
        "layers.csv",
        "iterations.csv",
        "experiment.csv",
    }


def test_settings_change_the_configuration_and_no_profile_leaves_layers_out(laptime, config, tmp_path):
    done = laptime("train", config, "--set", "batch=16", "--no-profile", "--out", tmp_path / "run", "--json")
    found = json.loads(done.stdout)
    assert found["train"]["steps"] == 6
    assert load(tmp_path / "run").config["record"]["profile"] is False


def test_explain_says_why_each_value_is_what_it_is_and_trains_nothing(laptime, config, tmp_path):
    done = laptime("train", config, "--set", "lr=0.5", "--explain", "--json")
    values = {row["key"]: row for row in json.loads(done.stdout)["values"]}
    assert values["train.batch"]["why"].endswith("cards.toml")
    assert (values["optimizer.lr"]["value"], values["optimizer.lr"]["why"]) == ("0.5", "--set")
    assert values["loader.workers"]["why"] == "default"
    assert all(row["meaning"] for row in values.values())
    assert "train.batch" in laptime("train", config, "--explain").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["cards.toml"]


def test_resuming_a_finished_training_with_more_epochs_goes_on(laptime, config, tmp_path):
    laptime("train", config, "--out", tmp_path / "run")
    done = laptime("train", config, "--out", tmp_path / "run", "--resume", "--set", "epochs=2")
    assert done.exit_code == 0, done.stderr
    run = load(tmp_path / "run")
    assert [step.epoch for step in run.steps if step.stage == "train"] == [0] * 3 + [1] * 3
    assert [step.step for step in run.steps] == list(range(8))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.toml"], "nowhere.toml"),
        (["CONFIG", "--set", "batch=many"], "train.batch"),
        (["CONFIG", "--set", "bach=3"], "batch"),
        (["CONFIG", "--set", "network.name=zenner4"], "zener4"),
        (["CONFIG", "--set", "batch=1000"], "more than data.samples"),
        (["CONFIG", "--set", "device=cuda:7"], "there is no device"),
        (["CONFIG", "--sweep", "batch"], "key=value,value"),
        (["CONFIG", "--sweep", "batch=16,none"], "train.batch"),
        (["CONFIG", "--set", "memory_limit=0.001"], "memory_limit"),
        (["CONFIG", "--sweep", "batch=16,,32"], "--sweep batch=16,,32 is not key=value,value"),
        (["CONFIG", "--sweep", "bach=16,32"], "--sweep bach: there is no such key"),
        (["CONFIG", "--sweep", "epochs=1,none"], "--sweep: train.epochs is 'none'"),
        (["CONFIG", "--set", "threads=100000"], "train.threads is 100000, and this machine has"),
        (["CONFIG", "--set", ".name=../../escape"], "no folder's name"),
        (["CONFIG", "--set", "network.options.hidden=-4"], "change network.options.hidden"),
    ],
)
def test_what_cannot_be_trained_is_told_in_one_line(words, said, laptime, config, tmp_path):
    done = laptime(
        "train", *(config if word == "CONFIG" else word for word in words), "--out", tmp_path / "r"
    )
    assert done.exit_code == 1
    last = done.stderr.strip().splitlines()[-1]
    assert said in last
    assert "Traceback" not in done.stderr


def test_a_trial_is_a_process_of_its_own(laptime, config, tmp_path):
    words = ["train", config, "--sweep", "batch=48", "--out", tmp_path / "grid", "--json"]
    done = laptime(*words)
    assert done.exit_code == 0, done.stderr
    (found,) = json.loads(done.stdout)["trials"]
    assert (found["trial"], found["status"]) == ("batch=48", "finished")
    run = json.loads((tmp_path / "grid" / "batch=48" / "run.json").read_text())
    assert run["heartbeat"]["pid"] != os.getpid()


@pytest.mark.usefixtures("trials_here")
def test_a_sweep_is_a_grid_that_goes_on_where_it_stopped(laptime, config, tmp_path):
    out = tmp_path / "grid"
    words = ["train", config, "--sweep", "batch=16,32", "--out", out]
    done = laptime(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["trials"]
    assert [row["trial"] for row in found] == ["batch=16", "batch=32"]
    assert {row["status"] for row in found} == {"finished"}
    assert [load(row["path"]).config["train"]["batch"] for row in found] == [16, 32]
    again = laptime(*words)
    assert again.exit_code == 1
    assert "--resume" in again.stderr
    resumed = json.loads(laptime(*words, "--resume", "--json").stdout)["trials"]
    assert {row["status"] for row in resumed} == {"done before"}


@pytest.mark.usefixtures("trials_here")
def test_folds_hold_out_every_sample_once(laptime, config, tmp_path):
    done = laptime("train", config, "--set", "validation.folds=2", "--out", tmp_path / "folds", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)["trials"]
    assert [row["trial"] for row in found] == ["fold-1", "fold-2"]
    runs = [load(row["path"]) for row in found]
    assert [run.config["samples"] for run in runs] == [48] * 2
    held = [sum(step.samples for step in run.steps if step.stage == "validation") for run in runs]
    assert held == [48] * 2


def test_a_grid_has_every_combination_and_its_last_value_varies_fastest():
    assert grid(["batch=1,2", "threads=3,4"]) == [
        ("batch=1", "threads=3"),
        ("batch=1", "threads=4"),
        ("batch=2", "threads=3"),
        ("batch=2", "threads=4"),
    ]
    with pytest.raises(ConfigError, match="twice"):
        grid(["batch=1,1"])


def test_trials_have_folders_of_their_own(tmp_path):
    found = trials(tmp_path, repeat=2, sweeps=["batch=1,2"], folds=2, seed=7)
    assert len({trial.out for trial in found}) == len(found) == 8
    assert found[0].settings == ("batch=1", "train.seed=7")
    assert found[-1].out == tmp_path / "batch=2" / "rep-2" / "fold-2"


def test_a_key_that_is_swept_twice_has_the_values_of_both():
    assert grid(["batch=1", "threads=3", "train.batch=2"]) == [
        ("batch=1", "threads=3"),
        ("batch=2", "threads=3"),
    ]
    with pytest.raises(ConfigError, match="batch has 1 twice"):
        grid(["batch=1", "train.batch=1"])


def test_a_sweep_cannot_be_explained(laptime, config):
    done = laptime("train", config, "--explain", "--sweep", "batch=16,32")
    assert done.exit_code == 2
    assert "by --set instead" in done.stderr


def test_ranks_that_share_a_processor_are_explained(laptime, config, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config.write_text(CONFIG.replace("threads = 1", ""))
    done = laptime("train", config, "--explain", "--workers", "3", "--json")
    values = {row["key"]: row for row in json.loads(done.stdout)["values"]}
    assert "shared by 3 ranks" in values["train.threads"]["why"]


def test_a_training_ends_with_its_losses_and_accuracies(laptime, config, tmp_path):
    done = laptime("train", config, "--out", tmp_path / "run")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("training loss")]
    assert re.fullmatch(
        r"training loss \S+, top-1 \S+ %, top-5 \S+ %; validation loss \S+, top-1 \S+ %, top-5 \S+ %; \S+ s",
        line,
    )


def test_only_a_run_that_can_go_on_is_said_to(laptime, config, tmp_path):
    words = ("train", config, "--out")
    assert "so far" not in laptime(*words, config).stderr  # a file
    assert "so far" not in laptime(*words, "/proc/x").stderr
    laptime(*words, tmp_path / "run")
    assert "so far" not in laptime(*words, tmp_path / "run").stderr  # there before
    own_network(tmp_path)
    failed = laptime(*words, tmp_path / "own", "--set", "network.name=ones_own:Net")
    assert f"the run so far is in {tmp_path / 'own'}\n" in failed.stderr
    assert "--resume" not in failed.stderr
    stopped = laptime(*words, tmp_path / "nan", "--set", "lr=1e30", "--set", "checkpoint.every_steps=1")
    assert f"--resume --out {tmp_path / 'nan'} goes on" in stopped.stderr


def own_network(folder, name="ones_own"):
    (folder / f"{name}.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, outputs=2):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(32 * 32, outputs))\n"
    )


def test_a_network_is_found_beside_the_configuration_that_names_it(laptime, config, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder comes first from then on
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    own_network(folder, "beside_it")
    (folder / "own.toml").write_text(CONFIG.replace("zener4", "beside_it:Net"))
    settings = ("--set", "network.options.outputs=5", "--set", "steps=1")
    done = laptime("train", folder / "own.toml", *settings, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.stderr


def test_a_training_goes_on_only_with_what_it_was_made_with(laptime, config, tmp_path):
    words = ("train", config, "--out", tmp_path / "run")
    laptime(*words)
    done = laptime(*words, "--resume", "--set", "batch=16", "--set", "data.samples=64")
    assert done.exit_code == 1
    assert "train.batch was 32 and is 16" in done.stderr
    assert "data.samples was 96 and is 64" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_complete_training_is_left_as_it_is(laptime, config, tmp_path):
    words = ("train", config, "--out", tmp_path / "run")
    laptime(*words)
    before = (tmp_path / "run" / "run.json").read_text()
    done = laptime(*words, "--resume")
    assert done.exit_code == 0
    assert "complete already" in done.stderr
    assert (tmp_path / "run" / "run.json").read_text() == before


def offered(done):
    """The words after the name of the command on the last line, by whatever path it is called."""
    return done.stdout.strip().splitlines()[-1].partition("laptime ")[2].split()


@pytest.mark.usefixtures("trials_here")
def test_repetitions_are_averaged_go_on_when_longer_and_are_refused_when_other(laptime, config, tmp_path):
    out = tmp_path / "rep"
    words = ("train", config, "--repeat", "2", "--out", out)
    done = laptime(*words)
    assert re.search(r"^mean of 2: loss \S+ ± \S+, .*val. top-1 \S+ % ± \S+$", done.stdout, re.MULTILINE)
    assert laptime(*offered(done)).exit_code == 0
    refused = laptime(*words, "--resume", "--set", "batch=16")
    assert refused.stderr.startswith(
        f"laptime: {out / 'rep-1'} cannot go on as another training: train.batch"
    )
    longer = laptime(*words, "--resume", "--set", "epochs=2", "--json")
    assert {row["status"] for row in json.loads(longer.stdout)["trials"]} == {"finished"}
    assert [step.epoch for step in load(out / "rep-2").steps if step.stage == "train"] == [0] * 3 + [1] * 3


@pytest.mark.usefixtures("trials_here")
def test_the_command_that_a_sweep_offers_works_with_more_than_two_trials(laptime, config, tmp_path):
    done = laptime(
        "train", config, "--sweep", "batch=8,16,32", "--set", "steps=2", "--out", tmp_path / "grid"
    )
    assert offered(done)[0] == "compare"
    assert laptime(*offered(done)).exit_code == 0


@pytest.mark.usefixtures("trials_here")
def test_a_sweep_whose_trials_all_failed_offers_nothing(laptime, config, tmp_path):
    own_network(tmp_path)
    settings = ("--set", "network.name=ones_own:Net", "--sweep", "network.options.outputs=2,3")
    done = laptime("train", config, *settings, "--out", tmp_path / "grid")
    assert done.exit_code == 1
    assert "compare" not in done.stdout
    assert "2 of 2 trials failed" in done.stderr


def test_an_interrupted_sweep_says_how_to_go_on(config, tmp_path):
    out = tmp_path / "grid"
    words = ["train", config, "--sweep", "batch=16,32", "--set", "epochs=1000", "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "laptime", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    saved = out / "batch=16" / "checkpoint" / "last.pt"
    deadline = time.monotonic() + 60
    while not saved.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    told = f"laptime: terminated; the trials so far are in {out}; --resume --out {out} goes on"
    assert said.splitlines()[-1] == told
    assert load(out / "batch=16").status == "interrupted"
