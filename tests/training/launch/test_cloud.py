"""Machines to rent: what is written for SkyPilot, and that it trains; no machine is rented."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.training.launch import sky_stand_in as stand_in

from laptime.errors import ConfigError
from laptime.runs import load
from laptime.training.config.reading import read_config
from laptime.training.launch import cloud_files
from laptime.training.launch.cloud import CloudTraining, Machines, write_task
from laptime.training.launch.rented_gpus import rented_gpu

SKYPILOT = "skypilot==0.14.1"  # needs click<8.2, so it has an environment of its own
CONFIG = """
network = "{network}"
[data]
{data}
[train]
epochs = 1
batch = 8
device = "cpu"
threads = 1
"""
ZENER = 'kind = "zener"\nsamples = 32\nvalidation_samples = 8'


@pytest.fixture
def write(tmp_path):
    """Writes a task of a configuration; options are those of the machines and of the training."""

    def write(data=ZENER, *, network="zener4", machines=None, **training):
        path = tmp_path / "cards.toml"
        path.write_text(CONFIG.format(network=network, data=data))
        given = {"trials": [], "arguments": (), "workers": 1, "out": tmp_path / "out", "laptime": "0.1.0"}
        asked = CloudTraining(resolved=read_config(path), **given | training)
        return write_task(tmp_path / "cards.sky", machines or Machines(), asked)

    return write


def task_of(written):
    return yaml.safe_load(written.file.read_text())


def files_of(written):
    return written.file.parent / "files"


# -- which GPU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cloud", "name"),
    [
        ("H100", "aws", "H100"),
        ("h100", "any", "H100"),
        ("H100-SXM", "any", "H100-SXM"),
        ("NVIDIA L4", "gcp", "L4"),
        ("a100 80gb", "azure", "A100-80GB"),
        ("h100-sxm", "aws", "H100"),
        ("h100-sxm", "runpod", "H100-SXM"),
        ("h100-pcie", "runpod", "H100"),
        ("h200", "runpod", "H200"),
        ("rtx-4090", "any", "RTX4090"),
        ("v100-sxm2-32gb", "aws", "V100-32GB"),
    ],
)
def test_a_gpu_goes_by_the_name_of_skypilot_or_of_our_catalog(text, cloud, name):
    assert rented_gpu(text, cloud).name == name


def test_a_price_is_that_of_the_card_that_the_cloud_means():
    assert rented_gpu("H100", "aws").price.device == "h100-sxm"
    assert rented_gpu("H100", "runpod").price.device == "h100-pcie"
    assert rented_gpu("B300", "any").price is None
    eight = Machines(gpu=rented_gpu("H100", "aws"), gpus=4, nodes=2)
    assert eight.dollars_per_hour == 8 * eight.gpu.price.dollars_per_hour


@pytest.mark.parametrize(
    ("text", "cloud", "said"),
    [
        ("H10000", "aws", "no such GPU can be rented; nearest: H100"),
        ("banana", "aws", "no such GPU can be rented; known: A10, A100"),
        ("gtx-580", "aws", "no such GPU can be rented"),
        ("h100-sxm", "any", "H100 at most clouds and H100-SXM at runpod; give the name, or --cloud"),
    ],
)
def test_a_gpu_that_is_unknown_or_unclear_is_refused_with_names(text, cloud, said):
    with pytest.raises(ConfigError, match=said) as error:
        rented_gpu(text, cloud)
    assert "\n" not in str(error.value)


# -- what is written -----------------------------------------------------------------------------------------


def test_only_what_was_asked_for_is_in_the_resources():
    assert Machines().resources() == {"autostop": {"idle_minutes": 60, "down": True}}
    asked = Machines(
        cloud="aws", region="us-east-1", gpu=rented_gpu("H100", "aws"), gpus=8, cpus=32, memory_gib=128
    )
    assert asked.resources() == {
        "infra": "aws/us-east-1",
        "accelerators": {"H100": 8},
        "cpus": "32+",
        "memory": "128+",
        "autostop": {"idle_minutes": 60, "down": False},
    }
    assert Machines(region="eu-west-1").resources()["infra"] == "*/eu-west-1"


def test_an_idle_machine_is_ended_only_where_it_cannot_be_stopped():
    down = [Machines(cloud=cloud).resources()["autostop"]["down"] for cloud in ("gcp", "lambda", "any")]
    assert down == [False, True, True]
    assert Machines(cloud="gcp", spot=True).resources()["autostop"]["down"]


def test_the_configuration_and_this_laptime_go_along(write):
    written = write()
    assert sorted(os.listdir(files_of(written))) == [
        ".skyignore",
        "cards.toml",
        "laptime-0.1.0-py3-none-any.whl",
    ]
    task = task_of(written)
    assert task["workdir"] == str(files_of(written))
    assert "torch==" in task["setup"]
    assert "laptime-0.1.0-py3-none-any.whl" in task["setup"]
    assert task["run"].startswith("exec venv/bin/python -m laptime train cards.toml")


def test_the_wheel_holds_what_is_here_and_can_be_installed(tmp_path):
    wheel = cloud_files.write_wheel(tmp_path, "0.1.0")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read("laptime-0.1.0.dist-info/METADATA").decode()
    assert {"laptime/cli/launch.py", "laptime/hardware/catalog/prices.toml"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    assert "Requires-Dist: torch" in metadata
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "there")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    assert (tmp_path / "there/laptime/cli/launch.py").exists()


def test_a_network_of_ones_own_goes_along_and_is_found_there(write, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(3, 2)\n")
    written = write('kind = "synthetic"\nshape = [3]', network=f"{folder}/mine.py:net")
    assert (files_of(written) / "mine.py").exists()
    assert "--set network.name=mine.py:net" in task_of(written)["run"]


def test_data_goes_along_in_one_archive_and_is_found_there(write, tmp_path):
    (tmp_path / "images/star").mkdir(parents=True)
    (tmp_path / "images/star/1.png").write_bytes(b"png")
    written = write('kind = "folder"\nsize = 32\npath = "images"')
    with tarfile.open(files_of(written) / "data.tar") as archive:
        assert "data/path/images/star/1.png" in archive.getnames()
    task = task_of(written)
    assert "tar -xf data.tar" in task["setup"]
    assert "laptime[images] @" in task["setup"]
    assert "--set data.path=data/path/images" in task["run"]


def test_data_that_the_machine_can_fetch_does_not_go_along(write):
    written = write('kind = "folder"\nsize = 32\npath = "images"\nremote = "s3://bucket/images"')
    assert not (files_of(written) / "data.tar").exists()
    assert "laptime[images,remote] @" in task_of(written)["setup"]


def test_large_data_is_refused_with_a_way_out(write, tmp_path, monkeypatch):
    monkeypatch.setattr(cloud_files, "MOST_BYTES", 2**30)
    (tmp_path / "text").touch()
    os.truncate(tmp_path / "text", 2**30 + 1)  # no bytes on the disk
    with pytest.raises(ConfigError, match=r"more than 1 GiB, too much to send; .* set data.remote"):
        write(f'kind = "text"\npath = "{tmp_path}/text"', network="lstm")


def test_data_that_is_not_here_is_refused(write, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path: there is nothing at .*images"):
        write(f'kind = "folder"\nsize = 32\npath = "images"\nremote = "{tmp_path}/elsewhere"')


def test_several_runs_or_parameter_servers_are_refused_on_several_machines(write, tmp_path):
    with pytest.raises(ConfigError, match="an experiment of several runs trains on one rented machine"):
        write(machines=Machines(nodes=2), trials=[read_config(write().file.parent / "files/cards.toml")])


def test_requirements_go_along(write, tmp_path):
    (tmp_path / "needs.txt").write_text("timm\n")
    written = write(requirements=tmp_path / "needs.txt")
    assert (files_of(written) / "requirements.txt").read_text() == "timm\n"
    assert "-r requirements.txt" in task_of(written)["setup"]


def test_a_task_is_written_anew_and_nothing_else_is_overwritten(write, tmp_path):
    write()
    write()
    (tmp_path / "cards.sky/task.yaml").unlink()
    with pytest.raises(ConfigError, match="holds other files"):
        write()


# -- the script, with a stand-in for SkyPilot ----------------------------------------------------------------


@pytest.fixture
def rented(tmp_path, monkeypatch):
    """The folder of the rented machines, empty once they are given back."""
    return stand_in.install(tmp_path, monkeypatch)


def launched(written, *words, run=None):
    """Run the script; with `run`, that shell script takes the place of the training."""
    if run is not None:
        written.file.write_text(yaml.safe_dump(task_of(written) | {"run": run}))
    command = ["sh", str(written.script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def machines(rented):
    return sorted(path.name for path in rented.iterdir())


def test_the_run_comes_back_and_the_machine_is_given_back(write, rented, tmp_path):
    done = launched(
        write(), run="mkdir -p run/steps; echo rows > run/steps/part-r0-1; echo {} > run/run.json"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/steps/part-r0-1").read_text() == "rows\n"
    assert sorted(os.listdir(tmp_path / "out")) == ["run.json", "steps"]
    assert machines(rented) == []


def test_of_other_machines_only_the_rows_of_their_ranks_come_back(write, rented, tmp_path):
    run = (
        "mkdir -p run/steps; echo $SKYPILOT_NODE_RANK > run/network.json; "
        "echo rows > run/steps/part-r$SKYPILOT_NODE_RANK-1; "
        "echo well > run/health-r$SKYPILOT_NODE_RANK.json; "
        "echo bytes > run/exchanges-r$SKYPILOT_NODE_RANK.json"
    )
    done = launched(write(machines=Machines(nodes=3)), run=run)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "out/steps")) == [f"part-r{rank}-1" for rank in range(3)]
    assert len(list((tmp_path / "out").glob("health-r*"))) == 3
    assert len(list((tmp_path / "out").glob("exchanges-r*"))) == 3
    assert (tmp_path / "out/network.json").read_text() == "0\n"
    assert machines(rented) == []


def test_a_failed_training_comes_back_too_and_the_machine_is_given_back(write, rented, tmp_path):
    done = launched(write(), run="mkdir run; echo {} > run/run.json; exit 3")
    assert done.returncode == 100
    assert (tmp_path / "out/run.json").exists()
    assert machines(rented) == []


def test_a_training_that_never_began_leaves_nothing(write, rented, tmp_path):
    done = launched(write(), run="exit 1")
    assert done.returncode == 100
    assert "the training left no run" in done.stderr
    assert not (tmp_path / "out").exists()
    assert machines(rented) == []


def test_a_lost_connection_ends_no_training_and_fetch_brings_it_back(write, rented, tmp_path, monkeypatch):
    monkeypatch.setenv(stand_in.LOST, "1")
    written = write()
    lost = launched(written, run="mkdir run; echo {} > run/run.json")
    assert lost.returncode == 1
    assert "the training goes on at laptime-out" in lost.stderr
    assert machines(rented) == ["laptime-out"]
    monkeypatch.delenv(stand_in.LOST)
    fetched = launched(written, "fetch")
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "out/run.json").exists()
    assert machines(rented) == []


def test_a_machine_is_kept_while_its_run_is_not_here(write, rented, monkeypatch):
    monkeypatch.setenv(stand_in.NO_SSH, "1")
    done = launched(write(), run="mkdir run; echo {} > run/run.json")
    assert done.returncode == 1
    assert "could not be fetched" in done.stderr
    assert machines(rented) == ["laptime-out"]


def test_a_run_that_is_here_is_not_overwritten(write, rented, tmp_path):
    (tmp_path / "out").mkdir()
    done = launched(write(), run="true")
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert machines(rented) == []


def test_without_skypilot_the_script_says_how_to_get_it(write, monkeypatch):
    written = write(machines=Machines(cloud="gcp"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = launched(written)
    assert done.returncode == 1
    assert done.stderr.strip() == "laptime: SkyPilot is not installed; pip install 'skypilot[gcp]'"


@pytest.mark.slow
def test_the_task_trains_on_one_machine(write, rented, tmp_path):
    done = launched(write(workers=2))
    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "out")
    assert run.status == "finished"
    assert {step.rank for step in run.steps} == {0, 1}
    assert machines(rented) == []


@pytest.mark.slow
def test_the_task_trains_one_run_on_two_machines(write, rented, tmp_path):
    done = launched(write(machines=Machines(nodes=2), workers=2))
    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "out")
    assert run.status == "finished"
    assert {step.rank for step in run.steps} == {0, 1, 2, 3}
    assert machines(rented) == []


@pytest.mark.slow
def test_a_training_that_fails_on_two_machines_says_why(write, rented, tmp_path):
    written = write(machines=Machines(nodes=2), arguments=("--set", "train.device=cuda"))
    done = launched(written)
    assert done.returncode == 100
    assert "cuda" in done.stderr
    assert "\nlaptime: " in done.stderr


@pytest.mark.slow
def test_data_and_a_sweep_train_on_a_machine(write, rented, tmp_path):
    (tmp_path / "text").write_text("to be or not to be " * 200)
    sweep = ("--sweep", "train.batch=8,16")
    done = launched(write(f'kind = "text"\npath = "{tmp_path}/text"', network="lstm", arguments=sweep))
    assert done.returncode == 0, done.stderr
    assert {load(run.parent).status for run in (tmp_path / "out").glob("*/run.json")} == {"finished"}


# -- SkyPilot itself -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sky_python(tmp_path_factory):
    """An interpreter with SkyPilot: the one that LAPTIME_SKY_PYTHON names, or one that is made."""
    if given := os.environ.get("LAPTIME_SKY_PYTHON"):
        return given
    folder = tmp_path_factory.mktemp("skypilot")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin/pip"), "install", "--quiet", SKYPILOT]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{SKYPILOT} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(folder / "bin/python")


READ = """
import json, sys
import sky
for file in sys.argv[1:]:
    task = sky.Task.from_yaml(file)
    task.validate_name()
    task.validate_run()
    task.expand_and_validate_workdir()  # the rest of validate() asks GitHub for the clouds' catalogs
    (asked,) = task.resources
    print(json.dumps(dict(cloud=str(asked.cloud).lower(), gpus=asked.accelerators, spot=asked.use_spot,
        region=asked.region, nodes=task.num_nodes, workdir=task.workdir, cpus=asked.cpus,
        memory=asked.memory, disk=asked.disk_size, down=asked.autostop_config.down)))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_skypilot_reads_what_is_written(write, sky_python, tmp_path):
    h100 = rented_gpu("H100", "any")
    asked = [
        Machines(),
        Machines(cloud="aws", gpu=h100, gpus=8, nodes=4, spot=True, region="us-east-1"),
        Machines(gpu=h100, gpus=1, cpus=16, memory_gib=64, disk_gib=200),
        *(Machines(cloud=cloud, gpu=h100, gpus=1) for cloud in ("gcp", "azure", "lambda", "runpod")),
        Machines(cloud="kubernetes", nodes=2, cpus=4),
    ]
    files = []
    for number, each in enumerate(asked):
        file = tmp_path / f"{number}.yaml"
        file.write_text(write(machines=each).file.read_text())
        files.append(str(file))
    home = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": ""}
    done = subprocess.run([sky_python, "-c", READ, *files], capture_output=True, text=True, env=home)
    assert done.returncode == 0, done.stderr
    for each, line in zip(asked, done.stdout.strip().splitlines()[-len(asked) :], strict=True):
        read = json.loads(line)
        assert read["cloud"] == ("none" if each.cloud == "any" else each.cloud)
        assert read["gpus"] == ({"H100": each.gpus} if each.gpu else None)
        assert (read["nodes"], read["spot"], read["region"]) == (each.nodes, each.spot, each.region)
        assert read["cpus"] == (None if each.cpus is None else f"{each.cpus}+")
        assert read["memory"] == (None if each.memory_gib is None else f"{each.memory_gib}+")
        assert read["down"] == (not each.stops)
        assert Path(read["workdir"]).is_dir()
