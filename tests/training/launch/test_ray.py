"""Trainings and trials on the nodes of a Ray cluster.

They are hosts of the test bed (`tools.testbed`), each with an address and a /tmp of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tools.testbed as testbed
from typer.testing import CliRunner

import laptime
from laptime.cli import app
from laptime.training.launch.ray_cluster import Need
from laptime.training.launch.ray_process import files_of

pytest.importorskip("ray", reason="laptime[ray] is not installed")

CONFIG = """
network = "{network}"
data = {{kind = "zener", samples = 320, validation_samples = 30}}
train = {{batch = 8, epochs = 5000, steps = {steps}, threads = 1, device = "cpu"}}
optimizer = {{name = "momentum", lr = 0.02}}
checkpoint = {{every = 1}}
"""
NETWORK = (
    "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 5))\n"
)
ASYNCHRONOUS = ("--parallel", "asynchronous", "--workers", "2")
LONG = 100_000  # steps: nobody waits for the end
ACCOUNTS = (
    *("data_wait", "copy", "forward", "loss", "backward", "update", "communication", "idle", "host"),
    *("instrument", "unexplained"),
)


# -- without a cluster ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ([], 1, "data does not train on a Ray cluster: use --workers on this machine, --hosts on several"),
        ([*ASYNCHRONOUS, "--hosts", "a,b"], 2, "give one of them"),
        ([*ASYNCHRONOUS[:2], "--ray", "127.0.0.1:9"], 1, "cannot be joined (Connection refused)"),
    ],
)
def test_what_ray_cannot_do_is_refused_before_anything_starts(options, status, said, tmp_path):
    (tmp_path / "a.toml").write_text(CONFIG.format(network="zener4", steps=2))
    words = ["train", str(tmp_path / "a.toml"), "--ray", "auto", "--out", str(tmp_path / "run"), *options]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()


def test_a_node_takes_as_many_processes_as_all_its_resources_allow():
    node = {"CPU": 8.0, "GPU": 2.0}
    assert [Need(cpus=cpus, gpus=gpus).times_in(node) for cpus, gpus in ((3, 0), (1, 1), (1, 4))] == [2, 2, 0]


def test_a_process_sends_what_its_ranks_write_and_rank_0_the_rest(tmp_path):
    names = [
        "run.json",
        "steps/part-r0-0-0.parquet",
        "steps/part-r2-0-0.parquet",
        "health-r2.json",
        ".reserve",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {path.name for path in files_of(tmp_path, (0, 1))} == {"run.json", "part-r0-0-0.parquet"}
    assert {path.name for path in files_of(tmp_path, (2,))} == {"part-r2-0-0.parquet", "health-r2.json"}


# -- on the test bed -----------------------------------------------------------------------------------------


VARIABLES = {"PYTHONPATH": os.pathsep.join(sys.path[1:])}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two hosts; a third is there without Ray."""
    if reason := testbed.missing():
        pytest.skip(reason)
    with testbed.a_testbed(3) as hosts:
        testbed.start_ray(hosts[:2], variables=VARIABLES)
        yield hosts


class Launcher:
    """`laptime train` on the first host, in a folder of its /tmp."""

    def __init__(self, hosts, name, *, network="zener4", steps=60):
        self.hosts, self.inside = hosts, f"/tmp/{name}"
        self.outside = testbed.tmp_of(hosts[0]) / name
        self.outside.mkdir()
        self.run = self.outside / "run"
        (self.outside / "a.toml").write_text(CONFIG.format(network=network, steps=steps))

    def start(self, *options):
        words = ["env", "RAY_AUTH_MODE=disabled", sys.executable, "-m", "laptime", "train"]
        words += [f"{self.inside}/a.toml", "--out", f"{self.inside}/run", "--ray", "auto", "--json", *options]
        return subprocess.Popen(
            testbed.ray_command(self.hosts[0], *words),
            env=os.environ | VARIABLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def done(self, *options, status=0):
        """The command to its end: its output and what it said."""
        return ended(self.start(*options), status)

    def left(self):
        """Processes on the hosts, and folders with runs; the third is killed now and then."""
        hosts = self.hosts[:2]
        folders = [str(path) for host in hosts for path in testbed.tmp_of(host).glob("laptime-*/run")]
        return folders + list(processes(hosts, "-m laptime").values())


def ended(process, status=0):
    output, said = process.communicate(timeout=400)
    assert process.returncode == status, said[-3000:]
    return output, said


def processes(hosts, word):
    found = {}
    for host in hosts:
        listed = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True)
        for pid in listed.stdout.split():
            try:
                text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if word in text:
                found[int(pid)] = text
    return found


def await_(condition, seconds=240, what=lambda: "it did not happen"):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, what()
        time.sleep(0.1)
    return result


def trained(run):
    rows = Counter((step.rank, step.step) for step in run.steps)
    assert set(rows.values()) == {1}  # none twice
    return Counter(step.rank for step in run.steps if step.stage == "train")


def rows_of(launcher, *ranks):
    return lambda: all(list(launcher.run.glob(f"steps/part-r{rank}-*")) for rank in ranks)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_groups_are_placed_on_both_hosts_and_their_run_comes_back_whole(cluster):
    launcher = Launcher(cluster, "whole", network="net.py:build", steps=150)
    (launcher.outside / "net.py").write_text(NETWORK)
    process = launcher.start(*ASYNCHRONOUS, "--set", f"network.name={launcher.inside}/net.py:build")
    for host in cluster[:2]:  # one group each
        await_(lambda host=host: processes([host], "host_process"))
    output, said = ended(process)
    assert said == "a: device cpu (as asked)\n"
    assert json.loads(output)["run"]["status"] == "finished"
    run = laptime.load(launcher.run)
    assert trained(run) == {0: 150, 1: 150}
    assert run.config["ranks"] == 2
    for step in run.steps:
        accounts = [getattr(step, f"{name}_s") or 0.0 for name in ACCOUNTS]
        assert sum(accounts) == pytest.approx(step.wall_s, rel=1e-6)
    assert {row["rank"] for row in run.layer_table.to_pylist()} == {0, 1}
    lines = (launcher.run / "csv" / "iterations.csv").read_text().splitlines()
    assert len(lines) == 1 + len(run.steps)
    assert any(step.staleness for step in run.steps)
    await_(lambda: not launcher.left(), 60, launcher.left)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_of_a_group_stay_together(cluster):
    launcher = Launcher(cluster, "mixed", steps=40)
    launcher.done("--parallel", "mixed,groups=2", "--workers", "4")
    assert trained(laptime.load(launcher.run)) == dict.fromkeys(range(4), 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_ends_all_after_a_checkpoint_and_resuming_goes_on(cluster):
    launcher = Launcher(cluster, "stop", steps=LONG)
    process = launcher.start(*ASYNCHRONOUS)
    await_(rows_of(launcher, 0, 1))
    await_((launcher.run / "checkpoint" / "last.pt").exists)
    process.send_signal(signal.SIGINT)
    said = ended(process, 130)[1]
    assert "laptime: interrupted; the run so far is in" in said
    run = laptime.load(launcher.run)
    assert run.status == "interrupted"
    before = trained(run)
    assert set(before) == {0, 1}
    await_(lambda: not launcher.left(), 60, launcher.left)
    steps = before[0] + 20
    launcher.done(*ASYNCHRONOUS, "--resume", "--set", f"train.steps={steps}")
    run = laptime.load(launcher.run)
    assert run.status == "finished"
    assert trained(run)[0] == steps
    # All go on where the first group's checkpoint is; the other may have been behind it.
    assert {(step.rank, step.attempt) for step in run.steps} == {(0, 0), (1, 0), (0, 1), (1, 1)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_launcher_leaves_nothing_on_the_nodes(cluster):
    launcher = Launcher(cluster, "kill", steps=LONG)
    process = launcher.start(*ASYNCHRONOUS)
    await_(rows_of(launcher, 0, 1))
    assert launcher.left()
    process.kill()
    process.communicate()
    await_(lambda: not launcher.left(), 90, launcher.left)
    assert set(trained(laptime.load(launcher.run))) == {0, 1}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_groups_of_a_host_that_dies_go_on_elsewhere(cluster):
    launcher = Launcher(cluster, "dies", steps=1500)
    third = cluster[2]
    testbed.start_ray_node(third, f"{cluster[0].address}:{testbed.RAY_PORT}", variables=VARIABLES)
    # A group for each host: Ray spreads them.
    process = launcher.start("--parallel", "asynchronous", "--workers", "3", "--no-profile")
    await_(lambda: processes([third], "host_process"))
    await_(rows_of(launcher, 0, 1, 2))
    testbed.kill(third)
    said = ended(process)[1]
    assert f"(the Ray node {third.address} is gone); the others went on, and it was started again" in said
    run = laptime.load(launcher.run)
    assert run.status == "finished"
    assert trained(run) == dict.fromkeys(range(3), 1500)
    assert any(f"{third.address} is gone" in note for note in run.summary["notes"])
    assert {step.attempt for step in run.steps} == {0, 1}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trials_run_on_both_hosts_and_one_that_fails_does_not_stop_the_others(cluster):
    launcher = Launcher(cluster, "sweep", steps=20)
    said = launcher.done("--sweep", "memory_limit=30,0.01,20", status=1)[1]  # GiB, of which torch needs more
    assert {host.address for host in cluster[:2]} <= set(said.split())
    assert "1 of 3 trials failed, the first of them memory_limit=0.01" in said
    assert "in use already; raise it" in said
    places = [launcher.run / name for name in ("memory_limit=30", "memory_limit=20")]
    assert [trained(laptime.load(place)) for place in places] == [{0: 20}, {0: 20}]
    options = ("--sweep", "memory_limit=30,20", "--set", "train.steps=25", "--resume")
    output, _ = launcher.done(*options)
    assert [trial["status"] for trial in json.loads(output)["trials"]] == ["finished"] * 2
    runs = [laptime.load(place) for place in places]
    assert [trained(run) for run in runs] == [{0: 25}, {0: 25}]
    assert {step.attempt for step in runs[0].steps} == {0, 1}
    await_(lambda: not launcher.left(), 60, launcher.left)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_ends_all_trials(cluster):
    launcher = Launcher(cluster, "stops", steps=LONG)
    process = launcher.start("--repeat", "3")
    await_(lambda: len(list(launcher.run.glob("rep-*/checkpoint/last.pt"))) == 3)
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    runs = [laptime.load(path) for path in sorted(launcher.run.iterdir())]
    assert [run.status for run in runs] == ["interrupted"] * 3
    await_(lambda: not launcher.left(), 60, launcher.left)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_with_another_version_or_too_little_room_is_refused_in_one_line(cluster):
    launcher = Launcher(cluster, "refused")
    said = launcher.done("--parallel", "asynchronous", "--workers", "9", status=1)[1]
    assert said.startswith("laptime: the Ray cluster has no room for 9 × 1 CPU: its nodes have 2 CPUs")
    assert said.count("\n") == 1
    third, other = cluster[2], testbed.tmp_of(cluster[2]).with_name("other")
    other.mkdir()
    (other / "sitecustomize.py").write_text("import laptime; laptime.__version__ = '0.0.1'")
    path = os.pathsep.join([str(other), VARIABLES["PYTHONPATH"]])
    testbed.start_ray_node(third, f"{cluster[0].address}:{testbed.RAY_PORT}", variables={"PYTHONPATH": path})
    try:
        said = launcher.done(*ASYNCHRONOUS, status=1)[1]
    finally:
        testbed.kill(third)
    assert said.startswith(f"laptime: the Ray node {third.address} has laptime 0.0.1 and this machine")
    assert said.count("\n") == 1
    assert not launcher.run.exists()
