"""Trainings on other machines, over ssh: the hosts are network namespaces of this one (`tools.testbed`)."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tools.testbed as testbed
from tests.runs.samples import a_step
from tests.training.ranks_here import Training, losses, train_on_ranks

import laptime
from laptime.errors import ConfigError, TrainingError
from laptime.model.exchanges import Collective, RankExchanges
from laptime.runs import RunWriter, schema
from laptime.runs.exchanges import read_exchanges
from laptime.training.config.reading import read_config
from laptime.training.launch.host_folders import HostFolder, gather, left_behind, remember
from laptime.training.launch.hosts import host_files
from laptime.training.launch.node import Node
from laptime.training.launch.ssh_hosts import Ssh, read_hosts

CONFIG = """
network = "{network}"
[data]
kind = "zener"
samples = {samples}
validation_samples = 40
[train]
epochs = {epochs}
batch = 8
device = "cpu"
threads = 1
[optimizer]
name = "sgd"
[checkpoint]
every_steps = 2
[parallel]
strategy = "{strategy}"
"""


def config(strategy="data", *, network="zener4", samples=64, epochs=2):
    return CONFIG.format(network=network, strategy=strategy, samples=samples, epochs=epochs)


# -- without hosts -------------------------------------------------------------------------------------------


def test_hosts_are_named_with_commas_or_in_a_file_with_comments(tmp_path):
    assert read_hosts("a, b,user@c") == ["a", "b", "user@c"]
    (tmp_path / "hosts").write_text("# of the lab\na\n\nb  # the slow one\n")
    assert read_hosts(str(tmp_path / "hosts")) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"), [(",", "names no host"), ("a,b,a", "names a twice"), ("-oProxyCommand=x", "is no name")]
)
def test_hosts_that_cannot_be_meant_are_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        read_hosts(text)


def test_a_network_of_ones_own_travels_with_its_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "net.py").touch()
    (tmp_path / "lab" / "models").mkdir()
    file = tmp_path / "lab" / "mine.toml"
    file.write_text(config(network="lab/net.py:build"))
    files, settings = host_files(read_config(file))
    assert files == {"mine.toml": file, "net.py": Path("lab/net.py")}
    assert settings == ["network.name=net.py:build"]
    file.write_text(config(network="models.small:build"))
    assert host_files(read_config(file)) == ({"mine.toml": file, "models": tmp_path / "lab" / "models"}, [])


def test_data_is_expected_at_the_path_that_it_has_here(tmp_path):
    (tmp_path / "images").mkdir()
    file = tmp_path / "mine.toml"
    file.write_text('network = "alexnet"\n[data]\nkind = "folder"\npath = "images"\n')
    assert host_files(read_config(file))[1] == [f"data.path={tmp_path / 'images'}"]


def test_a_node_is_told_by_its_environment_which_one_it_is(monkeypatch):
    assert Node.here() is None
    node = Node(number=1, nodes=3, address="127.0.0.1", meeting="10.0.0.1:4321")
    for key, value in node.environment().items():
        monkeypatch.setenv(key, value)
    assert Node.here() == node
    assert node.interface() == "lo"


def test_ssh_can_be_replaced_as_rsync_does():
    assert Ssh.of("ssh -F 'my file'", None).command == ("ssh", "-F", "my file")


@pytest.fixture
def shells(tmp_path):
    """In place of ssh: every host is this one, but for `gone`."""
    script = tmp_path / "shells"
    script.write_text('#!/bin/sh\n[ "$1" = gone ] && exit 255\nshift\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return Ssh.of(str(script), None)


def host_folder(place, host, rank):
    """A host's folder with a run in which one rank has written a step."""
    path = place / f"laptime-{host:x<8}"
    (path / "run").mkdir(parents=True)
    writer = RunWriter.create(path / "run", config={}, environment={}, rank=rank, joins=rank > 0)
    writer.append("steps", schema.steps.table([a_step(0, rank=rank)]))
    sent = Collective(kind="send", calls=1, bytes=4, exposed_s=0.0)
    writer.exchanges(lambda: RankExchanges(steps=1, collectives=(sent,)))
    writer.close()
    return HostFolder(host=host, path=str(path), ranks=(rank,))


def test_what_a_host_does_not_give_back_is_fetched_later(tmp_path, shells):
    out, said = tmp_path / "out", []
    folders = [host_folder(tmp_path, name, rank) for rank, name in enumerate(("a", "gone"))]
    gather(folders, shells, out, said.append)
    assert {step.rank for step in laptime.load(out).steps} == {0}
    assert len(said) == 1
    assert "could not be fetched" in said[0]
    assert (left_behind(out), Path(folders[0].path).exists()) == ([folders[1]], False)
    reached = [dataclasses.replace(folder, host="b") for folder in left_behind(out)]
    gather(reached, shells, out, said.append)
    assert {step.rank for step in laptime.load(out).steps} == {0, 1}
    assert set(read_exchanges(laptime.load(out))) == {0, 1}
    files = ["csv", "exchanges-r0.json", "exchanges-r1.json", "run.json", "steps"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert not Path(folders[1].path).exists()


def test_without_the_first_hosts_part_every_part_stays_where_it_is(tmp_path, shells):
    out, said = tmp_path / "out", []
    folders = [host_folder(tmp_path, name, rank) for rank, name in enumerate(("gone", "b"))]
    gather(folders, shells, out, said.append)
    assert left_behind(out) == folders
    assert all(Path(folder.path).exists() for folder in folders)


@pytest.mark.parametrize(
    ("host", "path"), [("a", "/"), ("a", "/tmp/../laptime-abcd1234"), ("-oX", "/tmp/laptime-abcd1234")]
)
def test_no_folder_is_removed_that_laptime_did_not_make(host, path, tmp_path):
    remember([HostFolder(host=host, path=path, ranks=(0,))], tmp_path)
    with pytest.raises(TrainingError, match="is damaged; remove it"):
        left_behind(tmp_path)


# -- on the test bed -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts():
    if reason := testbed.missing():
        pytest.skip(reason)
    with testbed.a_testbed(3) as built:
        yield built


@pytest.fixture
def python(tmp_path):
    """The hosts' interpreter: this one, with this checkout. ssh passes no PYTHONPATH on."""
    return wrapper(tmp_path / "python", f"export PYTHONPATH={os.pathsep.join(sys.path[1:])}")


def wrapper(path, *lines):
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec {sys.executable} "$@"']) + "\n")
    path.chmod(0o755)
    return path


def command(tmp_path, hosts, python, *options, text=None):
    file = tmp_path / "mine.toml"
    file.write_text(text or config())
    names = ",".join(getattr(host, "name", host) for host in hosts)
    ssh = f"ssh -F {testbed.ssh_config()} -o ConnectTimeout=3"
    words = [sys.executable, "-m", "laptime", "train", str(file), "--hosts", names, "--ssh", ssh]
    return [*words, "--python", str(python), "--out", str(tmp_path / "run"), "--json", *options]


def called(words, status=0):
    done = subprocess.run(words, capture_output=True, text=True, timeout=150)
    assert done.returncode == status, done.stderr[-3000:]
    return done


def processes(hosts):
    """Those on the hosts, but for their sshd."""
    found = {}
    for host in hosts:
        listed = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True)
        for pid in listed.stdout.split():
            words = Path(f"/proc/{pid}/cmdline")
            text = words.read_bytes().replace(b"\0", b" ").decode() if words.exists() else ""
            if text and "sshd" not in text:
                found[int(pid)] = text
    return found


def await_(condition, seconds=60):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)
    return result


def folders(out):
    """The hosts' folders, which this machine sees since they share its disk."""
    if not (out / "hosts.json").exists():
        return []
    return [Path(each["path"]) for each in json.loads((out / "hosts.json").read_text())["folders"]]


def saved(out):
    """The hosts' folders, once there is a checkpoint."""
    known = folders(out)
    return known if known and (known[0] / "run/checkpoint/last.pt").exists() else []


def taken(run):
    return {
        step.rank: sum(s.rank == step.rank and s.stage == "train" for s in run.steps) for step in run.steps
    }


def test_two_hosts_learn_what_two_ranks_here_learn_and_their_run_comes_back(tmp_path, hosts, python):
    done = called(command(tmp_path, hosts[:2], python))
    run = laptime.load(tmp_path / "run")
    assert (run.status, taken(run)) == ("finished", {0: 8, 1: 8})
    assert run.config["ranks"] == 2
    assert json.loads(done.stdout)["run"]["status"] == "finished"
    assert done.stderr == "mine: device cpu (as asked)\n"
    rows = (tmp_path / "run/csv/iterations.csv").read_text().splitlines()
    assert len(rows) == 1 + len(run.steps)
    assert not processes(hosts)
    assert not (tmp_path / "run/hosts.json").exists()
    here = train_on_ranks([Training(config(), tmp_path / "here")], 2)["here"]
    assert losses(run) == pytest.approx(losses(here), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "count", "workers"), [("data", 3, 1), ("model", 2, 1), ("model", 2, 2)])
def test_hosts_learn_what_as_many_ranks_here_learn(strategy, count, workers, tmp_path, hosts, python):
    text = config(strategy)
    called(command(tmp_path, hosts[:count], python, "--workers", str(workers), text=text))
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert set(taken(run)) == set(range(count * workers))
    here = train_on_ranks([Training(text, tmp_path / "here")], count * workers)["here"]
    assert losses(run) == pytest.approx(losses(here), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("import laptime; laptime.__version__ = '0.0.1'", "laptime 0.0.1 and this machine"),
        ("import importlib.metadata as m; m.version = lambda name: '1.0'", "torch 1.0 and this machine"),
    ],
)
def test_a_host_with_another_version_is_refused_in_one_line(change, said, tmp_path, hosts, python):
    (tmp_path / "sitecustomize.py").write_text(change)
    lines = (
        f"export PYTHONPATH={os.pathsep.join(sys.path[1:])}",
        f"ip -o address | grep -q {hosts[1].address}/ &&",
    )
    other = wrapper(tmp_path / "other", lines[0], f"{lines[1]} PYTHONPATH={tmp_path}:$PYTHONPATH")
    done = called(command(tmp_path, hosts[:2], other), 1)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"{hosts[1].name} has {said}" in done.stderr
    assert "--python" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_host_without_laptime_or_python_or_that_is_not_there_is_refused_in_one_line(
    tmp_path, hosts, python
):
    bare = wrapper(tmp_path / "bare", 'export PYTHONPATH=; set -- -S -I "$@"')
    nobody = f"{testbed.NETWORK}.99"
    cases = [
        (command(tmp_path, hosts[:1], bare), f"{hosts[0].name} has no laptime in {bare}; install"),
        (command(tmp_path, hosts[:1], tmp_path / "none"), f"{hosts[0].name} has no {tmp_path / 'none'}"),
        (command(tmp_path, [hosts[0], nobody], python), f"{nobody} cannot be reached by ssh"),
    ]
    for words, said in cases:
        done = called(words, 1)
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert said in done.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_failure_on_the_hosts_is_told_in_one_line_and_leaves_nothing(tmp_path, hosts, python):
    done = called(command(tmp_path, hosts[:2], python, "--set", "train.device=cuda:7"), 1)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "there is no device 'cuda:7'" in done.stderr
    assert not processes(hosts)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_network_in_a_file_is_trained_on_the_hosts(tmp_path, hosts, python):
    layers = "nn.Flatten(), nn.Linear(32 * 32, 5)"
    (tmp_path / "net.py").write_text(
        f"from torch import nn\ndef build():\n    return nn.Sequential({layers})\n"
    )
    called(command(tmp_path, hosts[:2], python, text=config(network=f"{tmp_path}/net.py:build")))
    assert taken(laptime.load(tmp_path / "run")) == {0: 8, 1: 8}


@pytest.mark.slow
def test_an_interrupt_ends_all_hosts_after_the_same_step_and_resuming_goes_on(tmp_path, hosts, python):
    words = command(tmp_path, hosts[:2], python, text=config(samples=320, epochs=500))
    out = tmp_path / "run"
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    there = await_(lambda: saved(out))
    launcher.send_signal(signal.SIGINT)
    said = launcher.communicate(timeout=100)[1]
    assert launcher.returncode == 130, said
    assert f"laptime: interrupted; the run so far is in {out}; --resume --out {out} goes on" in said
    run = laptime.load(out)
    steps = taken(run)
    assert run.status == "interrupted"
    assert steps[0] == steps[1] > 0
    assert not processes(hosts)
    assert not any(folder.exists() for folder in there)
    called([*words, "--resume", "--set", f"train.steps={steps[0] + 3}"])
    run = laptime.load(out)
    assert run.status == "finished"
    assert {(step.rank, step.attempt) for step in run.steps} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert taken(run) == {0: steps[0] + 3, 1: steps[0] + 3}


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process_and_resuming_brings_its_run_back(tmp_path, hosts, python):
    words = command(tmp_path, hosts[:2], python, text=config(samples=320, epochs=500))
    out = tmp_path / "run"
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    there = await_(lambda: saved(out))
    assert processes(hosts)
    launcher.kill()
    launcher.wait()
    await_(lambda: not processes(hosts), 45)
    called([*words, "--resume", "--set", "train.steps=2"])
    assert set(taken(laptime.load(out))) == {0, 1}
    assert not any(folder.exists() for folder in there)
    assert not (out / "hosts.json").exists()


@pytest.mark.slow
def test_a_rank_that_is_killed_on_a_host_starts_again_with_all_others(tmp_path, hosts, python):
    words = command(tmp_path, hosts[:2], python, text=config(samples=320, epochs=6))
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    await_(lambda: saved(tmp_path / "run"))
    of_second = processes(hosts[1:2])
    rank = max(pid for pid, text in of_second.items() if "-m laptime train" in text)
    os.kill(rank, signal.SIGKILL)
    said = launcher.communicate(timeout=150)[1]
    assert launcher.returncode == 0, said
    assert f"{hosts[1].name}: rank 1 was ended by signal 9" in said
    assert "all ranks started again from the last checkpoint" in said
    run = laptime.load(tmp_path / "run")
    assert run.status == "finished"
    assert {step.attempt for step in run.steps if step.rank == 1} == {0, 1}
    assert len({step.step for step in run.steps if step.stage == "train" and step.rank == 1}) == 120


@pytest.mark.slow
def test_a_broken_connection_ends_the_training_and_its_run_is_kept(tmp_path, hosts, python):
    words = command(tmp_path, hosts[:2], python, text=config(samples=320, epochs=500))
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    await_(lambda: saved(tmp_path / "run"))
    listed = subprocess.run(
        ["pgrep", "-P", str(launcher.pid), "-f", hosts[1].name], capture_output=True, text=True
    )
    os.kill(int(listed.stdout.split()[0]), signal.SIGKILL)
    said = launcher.communicate(timeout=100)[1]
    assert launcher.returncode == 1, said
    assert f"the ssh connection to {hosts[1].name} broke" in said.splitlines()[-1]
    await_(lambda: not processes(hosts), 45)
    assert set(taken(laptime.load(tmp_path / "run"))) == {0, 1}


@pytest.mark.slow
def test_a_host_that_is_cut_off_ends_the_training_and_its_part_is_fetched_later(tmp_path, hosts, python):
    words = command(tmp_path, hosts[:2], python, text=config(samples=320, epochs=500))
    words[words.index("--ssh") + 1] += " -o ServerAliveInterval=2"
    out = tmp_path / "run"
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    there = await_(lambda: saved(out))
    testbed.cut(hosts[1])
    try:
        said = launcher.communicate(timeout=100)[1]
    finally:
        testbed.join(hosts[1])
    assert launcher.returncode == 1, said
    assert f"the ssh connection to {hosts[1].name} broke" in said.splitlines()[-1]
    assert f"the run of {hosts[1].name} could not be fetched and stays in {there[1]} there" in said
    assert [folder.exists() for folder in there] == [False, True]
    assert set(taken(laptime.load(out))) == {0}
    await_(lambda: not processes(hosts), 120)
    called([*words, "--resume", "--set", "train.steps=4"])
    assert set(taken(laptime.load(out))) == {0, 1}
    assert not there[1].exists()


@pytest.mark.slow
def test_repetitions_train_on_the_hosts_one_after_the_other(tmp_path, hosts, python):
    options = ("--repeat", "2", "--set", "train.steps=2")
    done = called(command(tmp_path, hosts[:2], python, *options))
    assert [trial["status"] for trial in json.loads(done.stdout)["trials"]] == ["finished", "finished"]
    runs = [laptime.load(tmp_path / "run" / f"rep-{number}") for number in (1, 2)]
    assert [taken(run) for run in runs] == [{0: 2, 1: 2}] * 2


def test_a_plan_that_cannot_be_carried_out_is_refused_before_any_host_is_asked(tmp_path, python):
    plans = {"local": "parallel.groups = 2 does not divide 3 ranks", "mixed": "mixed trains on a Ray cluster"}
    for strategy, said in plans.items():
        text = config(strategy) + "groups = 2\n"
        done = called(command(tmp_path, ["nowhere1", "nowhere2", "nowhere3"], python, text=text), 1)
        assert done.stderr.startswith(f"laptime: {said}")
        assert len(done.stderr.splitlines()) == 1
