import json
import subprocess
import sys

import pytest
from tests.cli.conftest import ENTRY_POINT

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


FAILS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        if len(x) == 3:
            raise ValueError("inside")
        return self.layer(x)

network = Net()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

def train():
    for size in (4, 4, 4, 3):
        network(torch.randn(size, 8)).sum().backward()
        optimizer.step()

try:
    train()
except ValueError as error:
    raise RuntimeError("outside") from error
"""


def test_a_traceback_begins_at_the_script_and_has_no_frame_of_laptime(process, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    done = process("run", "--every-step", "--out", "mine", "fails.py")
    assert done.returncode == 1
    told, _, _ = done.stderr.partition("\nlaptime: ")
    first, second = told.split("\nThe above exception was the direct cause of the following exception:\n\n")
    for traceback, error in ((first, "ValueError: inside"), (second, "RuntimeError: outside")):
        head, begin, *_, last = traceback.strip().splitlines()
        assert head == "Traceback (most recent call last):"
        assert begin.startswith(f'  File "{tmp_path / "fails.py"}", line ')
        assert last == error
    assert "/laptime/" not in told.replace(str(tmp_path), "")


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
def work():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)
work()
"""


def test_ctrl_c_shows_the_script_s_traceback_as_python_would(process, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    done = process("run", "--out", "mine", script)
    python = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == python.stderr
    assert done.stderr.endswith("KeyboardInterrupt\n")


def test_a_syntax_error_and_an_own_hook_are_told_as_python_would(process, tmp_path):
    (tmp_path / "bad.py").write_text("def f(:")
    done = process("run", "--out", "mine", tmp_path / "bad.py")
    python = subprocess.run(
        [sys.executable, tmp_path / "bad.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, python.stderr)
    (tmp_path / "hook.py").write_text("import sys\nsys.excepthook = lambda *_: print('my own')\n1 / 0\n")
    assert process("run", "--out", "mine", "hook.py").stdout == "my own\n"


def test_the_command_to_type_next_works_where_this_one_was_typed(process):
    done = process("run", "--out", "mine", "train.py", PATH="/usr/bin:/bin")
    assert done.stderr.splitlines()[-1] == f"  {ENTRY_POINT} show mine shows all of it"
