import json
import sys

import pytest

from laptime.runs import load

SCRIPT = """
import os, sys
import torch
from torch import nn

print("arguments", sys.argv[1:])
os.system("echo from a child")
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
if "--elsewhere" in sys.argv:
    os.chdir("/")
for _ in range(12):
    loss = nn.functional.cross_entropy(network(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if "--raise" in sys.argv:
    raise ValueError("boom")
sys.exit(3 if "--fail" in sys.argv else 0)
"""


@pytest.fixture(autouse=True)
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_recorded_and_keeps_its_stdout_to_itself(process, tmp_path):
    done = process("run", "train.py", "--out", "mine", "--json", "-m", "--help")
    assert done.returncode == 0
    # In either order: a pipe's buffer is the script's own, with and without us.
    assert sorted(done.stdout.splitlines()) == [
        "arguments ['--out', 'mine', '--json', '-m', '--help']",
        "from a child",
    ]
    assert "laptime: the run is in runs/train-" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert len(load(run).steps) == 12


def test_json_takes_stdout_for_itself(process, tmp_path):
    done = process("run", "--json", "--every-step", "--out", "mine", "train.py", "--elsewhere")
    found = json.loads(done.stdout)
    assert found["exit_status"] == 0
    assert found["train"]["steps"] == 12
    assert "from a child" in done.stderr
    assert (tmp_path / "mine" / "run.json").exists()


FORKS = """
import os, sys
if os.fork() == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
exec(compile(open("train.py").read().replace("sys.exit(", "print("), "train.py", "exec"))
if os.fork() == 0:
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 4
"""


def test_a_fork_of_the_script_ends_as_it_would_and_tells_nothing(process, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    done = process("run", "--json", "--out", "mine", "forks.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["train"]["steps"] == 12
    assert load(tmp_path / "mine").status == "finished"


def test_the_exit_status_is_the_script_s(laptime):
    assert laptime("run", "--out", "a", "train.py", "--fail").exit_code == 3
    done = laptime("run", "--out", "b", "train.py", "--raise")
    assert done.exit_code == 1
    assert "ValueError: boom" in done.stderr
    assert "laptime: the run is in b" in done.stderr


def test_a_module_is_run_by_its_name(laptime):
    done = laptime("run", "--out", "a", "-m", "train", "one", "-m")
    assert done.exit_code == 0
    assert done.stdout == "arguments ['one', '-m']\n"


@pytest.fixture
def engine(monkeypatch):
    """The arguments that would reach the engine."""
    seen = {}

    def run_script(path, arguments, **options):
        seen.update(path=str(path), arguments=arguments, **options)
        return 0

    monkeypatch.setattr("laptime.bridges.scripts.run.run_script", run_script)
    return seen


def test_options_before_the_script_are_laptime_s(laptime, engine, tmp_path):
    done = laptime(
        "run",
        "--every-step",
        "--budget",
        "0.1",
        "--layers",
        "2",
        "--kernels",
        "5,7-8",
        "--out",
        "o",
        "x.py",
        "--budget",
    )
    assert done.exit_code == 0
    assert engine == {
        "path": "x.py",
        "arguments": ["--budget"],
        "out": tmp_path / "o",
        "module": False,
        "every_step": True,
        "budget": 0.1,
        "layers": 2,
        "kernels": [5, 7, 8],
    }


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("module", "module"),
        ("0", 0),
        ("head=fc1+fc2,body=features", {"head": ["fc1", "fc2"], "body": ["features"]}),
    ],
)
def test_the_division_into_layers_has_a_notation(laptime, engine, text, layers):
    laptime("run", "--layers", text, "x.py")
    assert engine["layers"] == layers


def test_a_directory_that_holds_a_run_is_refused_before_the_script_starts(laptime, run, engine):
    done = laptime("run", "--out", run, "x.py")
    assert done.exit_code == 1
    assert "already holds a run" in done.stderr
    assert not engine


def test_a_missing_script_is_one_line(laptime):
    done = laptime("run", "missing.py")
    assert done.exit_code == 1
    assert done.stderr.startswith("laptime: there is no script missing.py")
    assert done.stderr.count("\n") == 1


def test_argv_is_left_as_it_was(laptime, engine):
    before = list(sys.argv)
    laptime("run", "x.py", "y")
    assert sys.argv == before
