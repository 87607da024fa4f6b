"""`laptime launch`: forwards to `train` for machines that are there, and writes a task for those to rent."""

import inspect
import json

import pytest
import yaml
from tests.training.launch import sky_stand_in

from laptime.cli.launch import launch
from laptime.cli.train import train

CONFIG = """
network = "zener4"
[data]
kind = "zener"
samples = 32
validation_samples = 8
[train]
epochs = 1
batch = 8
device = "cpu"
threads = 1
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cards.toml").write_text(CONFIG)
    return "cards.toml"


@pytest.fixture
def no_sky(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")


def test_every_option_of_train_is_one_of_launch():
    theirs = inspect.signature(train).parameters
    assert {name: str(each) for name, each in inspect.signature(launch).parameters.items()}.items() >= {
        name: str(each) for name, each in theirs.items()
    }.items()


def test_machines_that_are_there_are_train_s(laptime, config):
    explained = [laptime(verb, config, "--hosts", "a,b", "--explain").stdout for verb in ("train", "launch")]
    assert explained[0] == explained[1] != ""
    refused = laptime("launch", config, "--hosts", ",")
    assert refused.exit_code == 1
    assert "--hosts , names no host" in refused.stderr


def test_a_task_is_written_and_nothing_is_rented(laptime, config, tmp_path, no_sky):
    words = ["--cloud", "aws", "--gpu", "h100", "--gpus", "2", "--nodes", "2", "--spot", "--set", "epochs=3"]
    done = laptime("launch", config, *words)
    assert done.exit_code == 0, done.stderr
    task = yaml.safe_load((tmp_path / "cards.sky/task.yaml").read_text())
    assert task["num_nodes"] == 2
    assert task["resources"]["accelerators"] == {"H100": 2}
    assert "--set epochs=3" in task["run"]
    assert "--workers 2" in task["run"]
    assert "2 machines with 2 × H100 each at aws, spot, 4 ranks" in done.stdout
    assert "4 × H100: about $" in done.stdout
    assert "Nothing is rented yet." in done.stdout
    assert "pip install 'skypilot[aws]'" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_the_document_says_what_was_written(laptime, config, no_sky):
    done = laptime("launch", config, "--cloud", "any", "--gpu", "T4", "--out", "runs/there", "--json")
    document = json.loads(done.stdout)
    assert document["out"] == "runs/there"
    assert document["cluster"] == "laptime-there"
    assert document["resources"]["accelerators"] == {"T4": 1}
    assert document["dollars_per_hour"] > 0


def test_options_of_the_training_are_forwarded(laptime, config, tmp_path, no_sky):
    words = ["--cloud", "gcp", "--sweep", "batch=8,16", "--repeat", "2", "--no-profile"]
    assert laptime("launch", config, *words, "--parallel", "local", "--workers", "4").exit_code == 0
    run = yaml.safe_load((tmp_path / "cards.sky/task.yaml").read_text())["run"]
    for word in ("--sweep batch=8,16", "--repeat 2", "record.profile=false", "strategy=local", "--workers 4"):
        assert word in run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "'--hosts / --ray / --cloud': say where"),
        (["--gpu", "H100"], "'--gpu': it is for machines to rent; give --cloud, too"),
        (["--cloud", "ibmm"], "'ibmm' is not one of 'aws', 'gcp'"),
        (["--cloud", "aws", "--hosts", "a"], "'--hosts': it does not go with --cloud"),
        (["--cloud", "aws", "--resume"], "'--resume': it does not go with --cloud"),
        (["--cloud", "aws", "--gpus", "2"], "'--gpus': name the GPU, too"),
        (["--cloud", "aws", "--gpu", "H100:8"], "'--gpu': give the number apart: --gpu H100 --gpus 8"),
        (["--cloud", "aws", "--nodes", "0"], "'--nodes'"),
        (["--cloud", "aws", "--region", "us east"], "'--region': us east is no region"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_written(laptime, config, tmp_path, words, said):
    done = laptime("launch", config, *words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "cards.sky").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cards.toml", "--gpu", "banana"], "--gpu banana: no such GPU can be rented"),
        (["missing.toml"], "missing.toml"),
        (["folder"], "folder"),
        (["cards.toml", "--task", "cards.toml"], "is a file; give a folder"),
        (["cards.toml", "--task", "folder"], "holds other files"),
        (["cards.toml", "--requirements", "folder"], "there is no file folder"),
        (["cards.toml", "--set", "bath=8"], "bath"),
        (["cards.toml", "--sweep", "batch=8,x"], "batch"),
        (["cards.toml", "--nodes", "2", "--repeat", "2"], "several runs trains on one rented machine"),
        (["cards.toml", "--workers", "2", "--parallel", "model,stages=99"], "stages"),
        (["cards.toml", "--nodes", "2", "--parallel", "asynchronous"], "trains on one rented machine"),
        (["cards.toml", "--go"], "SkyPilot is not installed; pip install 'skypilot[aws]'"),
    ],
)
def test_what_cannot_be_launched_is_one_line(laptime, config, tmp_path, no_sky, words, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").touch()
    done = laptime("launch", *words, "--cloud", "aws")
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_go_runs_the_script_and_tells_of_its_end(laptime, config, tmp_path, monkeypatch, capfd):
    sky_stand_in.install(tmp_path, monkeypatch)
    (tmp_path / "commands/sky").write_text("#!/bin/sh\nexit 1\n")  # as where no cloud is set up
    done = laptime("launch", config, "--cloud", "aws", "--out", "runs/there", "--go")
    assert done.exit_code == 1
    assert "cards.sky/launch.sh ended with status 1" in done.stderr
    assert "SkyPilot does not tell how the training at laptime-there ended" in capfd.readouterr().err


@pytest.mark.slow
def test_go_rents_trains_and_brings_the_run_back(process, config, tmp_path, monkeypatch):
    rented = sky_stand_in.install(tmp_path, monkeypatch)
    done = process("launch", config, "--cloud", "aws", "--out", "runs/there", "--go")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/there/run.json").exists()
    assert not list(rented.iterdir())
    assert "The run is in runs/there" in done.stdout
