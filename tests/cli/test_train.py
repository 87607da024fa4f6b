"""`laptime train`, as a user types it."""

import json

import pytest

from laptime.errors import ConfigError
from laptime.store import load
from laptime.train.experiment import grid, trials

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
