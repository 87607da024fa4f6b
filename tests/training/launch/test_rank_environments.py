"""Which rank a process is, as launchers say: torchrun, Kubernetes' PyTorchJob and SLURM."""

import os
import subprocess
import sys

import pytest

import laptime
from laptime.training.ranks import Ranks, first_slurm_host

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_JOB_NODELIST": "gpu[07-09,12],login",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
}


@pytest.fixture
def told(monkeypatch):
    """Sets an environment, in which nothing else speaks of ranks."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *SLURM):
        monkeypatch.delenv(name, raising=False)

    def tell(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        return Ranks.here()

    return tell


def test_a_process_of_its_own_is_the_only_rank(told):
    assert told() == Ranks()
    assert not told().started


def test_torchrun_says_rank_and_machine(told):
    ranks = told(
        RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="7"
    )
    assert (ranks.rank, ranks.ranks, ranks.local, ranks.locals) == (3, 4, 1, 2)
    assert (ranks.address, ranks.port, ranks.started) == ("a", 7, True)


def test_kubernetes_says_rank_and_master_only(told):
    ranks = told(RANK="1", WORLD_SIZE="4", MASTER_ADDR="job-master-0", MASTER_PORT="23456")
    assert (ranks.rank, ranks.ranks, ranks.local, ranks.locals) == (1, 4, 0, 1)
    assert (ranks.address, ranks.port) == ("job-master-0", 23456)


def test_a_task_of_slurm_meets_the_others_on_the_first_host(told):
    ranks = told(**SLURM)
    assert (ranks.rank, ranks.ranks, ranks.local, ranks.locals) == (5, 7, 1, 3)
    assert (ranks.address, ranks.started) == ("gpu07", True)


def test_all_tasks_of_a_step_choose_one_port_and_another_step_another(told):
    first = told(**SLURM).port
    assert told(SLURM_PROCID="2", SLURM_LOCALID="2", SLURM_NODEID="0").port == first
    assert told(SLURM_STEP_ID="1").port != first
    assert 1024 < first < 32768


def test_equal_tasks_on_each_node_may_be_given_as_one_number(told):
    without = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_TASKS_PER_NODE"}
    assert told(**without, SLURM_NTASKS_PER_NODE="4").locals == 4


def test_a_batch_script_of_slurm_is_no_rank(told):
    batch = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    assert told(**batch) == Ranks()


def test_torchrun_inside_slurm_goes_first(told):
    assert told(**SLURM, RANK="0", WORLD_SIZE="2").ranks == 2


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a,b", "a"), ("gpu[1,3-4]", "gpu1"), ("n[001-128]-ib,x", "n001-ib"), ("login", "login"), ("", "")],
)
def test_the_first_host_of_a_slurm_list(nodes, first):
    assert first_slurm_host(nodes) == first


@pytest.mark.slow
def test_tasks_of_slurm_train_together_as_they_are(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        'network = "zener4"\n[data]\nsamples = 64\n[train]\nbatch = 8\nepochs = 1\ndevice = "cpu"\n'
    )
    words = [sys.executable, "-m", "laptime", "train", str(config), "--out", str(tmp_path / "run"), "--json"]
    of_step = {"SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    of_step |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
    tasks = [
        subprocess.Popen(
            words,
            env={**os.environ, **of_step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [task.communicate(timeout=150) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert said[0][0]
    assert said[1] == ("", "")  # rank 0 tells
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert {step.rank for step in run.steps} == {0, 1}
