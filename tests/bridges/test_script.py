"""`laptime run` on scripts as people write them: what is found, where steps are cut, what is left behind."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.recorder.loops import torch_is_untouched
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

import laptime
from laptime.bridges.scripts import discovery
from laptime.bridges.scripts.run import run_script
from laptime.errors import RunExists, ScriptError
from laptime.estimate.run_correction import workload_of
from laptime.recorder import optimizer_steps

SCRIPTS = Path(__file__).parent / "scripts"
UNTOUCHED = (nn.Module.__call__, Optimizer.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__next__)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    argv, search = sys.argv, list(sys.path)
    sys.modules.pop("common", None)
    yield
    assert torch_is_untouched()
    assert (
        nn.Module.__call__,
        Optimizer.__init__,
        DataLoader.__iter__,
        _BaseDataLoaderIter.__next__,
    ) == UNTOUCHED
    assert (sys.argv, sys.path) == (argv, search)


@pytest.fixture
def run(tmp_path):
    """Run a script and return what was recorded."""

    def run(name, *arguments, status=0, **options):
        out = tmp_path / "run"
        options = {"every_step": True, **options}
        assert run_script(SCRIPTS / f"{name}.py", [str(a) for a in arguments], out=out, **options) == status
        return laptime.load(out)

    return run


def steps(found, *columns):
    return [tuple(getattr(step, column) for column in columns) for step in found.steps]


def names(found):
    return [layer.name for layer in found.network]


def phases(found, stage="train"):
    """The phases that each layer went through."""
    rows = [row for row in found.layer_table.to_pylist() if row["stage"] == stage]
    return {name: {r["phase"] for r in rows if r["layer"] == name} for name in names(found)}


EVERYTHING = {"forward", "backward", "update"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_has_its_epochs_stages_and_samples(workers, run, capfd):
    found = run("plain", "--epochs", 2, "--workers", workers)
    train, valid = [(6,), (6,), (6,), (4,)], [(5,), (5,)]
    assert steps(found, "samples") == (train + valid) * 2
    assert [str(step.stage) for step in found.steps] == (["train"] * 4 + ["validation"] * 2) * 2
    assert [step.epoch for step in found.steps] == [0] * 6 + [1] * 6
    assert [step.optimizer_step for step in found.steps] == [1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8]
    assert names(found) == ["features.0", "head"]
    assert phases(found) == {"features.0": EVERYTHING, "head": EVERYTHING}
    assert phases(found, "validation") == {"features.0": {"forward"}, "head": {"forward"}}
    assert all(step.data_wait_s > 0 for step in list(found.steps)[1:])
    assert (found.status, found.summary["notes"]) == ("finished", [])
    assert found.summary["named_share"] > 0.98
    assert found.config["arguments"] == ["--epochs", "2", "--workers", str(workers)]
    assert capfd.readouterr().out == "epoch 0 done\nepoch 1 done\n"


def test_without_a_loader_updates_and_evaluations_cut_the_steps(run):
    found = run("no_loader")
    assert "".join(str(step.stage)[0] for step in found.steps) == "vvvtttvvvttt"
    assert [step.optimizer_step for step in found.steps] == [0, 0, 0, 1, 2, 3, 3, 3, 3, 4, 5, 6]
    for step in found.steps:
        assert (step.update_s > 0, step.backward_s > 0) == (step.stage == "train",) * 2


@pytest.mark.parametrize("arguments", [[], ["loader"]])
def test_two_networks_in_turns_are_one_step_a_round(arguments, run):
    found = run("gan", *arguments)
    assert [step.optimizer_step for step in found.steps] == list(range(1, 9))
    assert [step.epoch for step in found.steps] == ([0] * 4 + [1] * 4 if arguments else [0] * 8)
    assert names(found) == ["maker.0", "maker.2", "judge.0", "judge.2"]
    assert all(found == EVERYTHING for found in phases(found).values())
    calls = Counter()
    for row in found.layer_table.to_pylist():
        if row["phase"] == "forward" and row["layer"] != "(loss)":
            calls[row["layer"], row["calls"]] += 1
    assert calls == {
        ("maker.0", 1): 8,
        ("maker.2", 1): 8,
        ("judge.0", 3): 8,
        ("judge.2", 3): 8,
    }


@pytest.mark.parametrize("second", ["Adam", "LBFGS"])
def test_one_optimizer_after_another_is_a_training_of_its_own(second, run):
    assert steps(run("one_after_another", second), "optimizer_step") == [(count,) for count in range(1, 8)]


def test_gradient_accumulation_shows_as_several_steps(run):
    found = run("accumulation")
    assert steps(found, "optimizer_step", "samples") == [(0, 6), (0, 6), (1, 6), (1, 6), (1, 6), (2, 6)]


@pytest.mark.parametrize(
    ("how", "status", "recorded"),
    [
        ("raises", 1, "failed"),
        ("exits", 3, "failed"),
        ("says", 1, "failed"),
        ("leaves", 0, "finished"),
        ("interrupted", 130, "interrupted"),
    ],
)
def test_however_a_script_ends_its_steps_are_kept(how, status, recorded, run, capfd):
    found = run("ends", how, status=status)
    assert found.status == recorded
    assert [step.optimizer_step for step in found.steps] == [1, 2, 3, 4]
    told = capfd.readouterr().err
    assert ("a reason" in told) == (how == "says")
    if how == "raises":
        assert told.count("File") == 1  # the script's own line, none of ours
        assert told.endswith("ValueError: boom\n")


@pytest.mark.parametrize("how", ["wrapped", "in place"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_network_is_one_unit_and_is_compiled_once(how, run, capfd):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = run("compiled", how)
    assert [(layer.name, layer.compiled) for layer in found.network] == [("(Net)", True)]
    assert phases(found) == {"(Net)": EVERYTHING}
    assert len(found.steps) == 5
    assert capfd.readouterr().out == "1 graphs\n"
    torch._dynamo.reset()


def test_networks_trained_one_after_the_other_keep_apart(run, capfd):
    found = run("two_networks")
    assert len(found.steps) == 4 + 5
    assert names(found) == ["features.0", "head", "Net.features.0", "Net.head"]
    rows = found.layer_table.to_pylist()
    assert {row["step"] for row in rows if row["layer"] == "head"} == {0, 1, 2, 3}
    assert {row["step"] for row in rows if row["layer"] == "Net.head"} == {4, 5, 6, 7, 8}
    assert [step.optimizer_step for step in found.steps] == list(range(1, 10))
    assert capfd.readouterr().out == "16 features\n"


def test_one_batch_over_and_over_is_a_step_each_time(run):
    found = run("one_batch")
    assert [step.optimizer_step for step in found.steps] == [1, 2, 3, 4, 5, 6, 7]


def test_a_script_that_calls_no_network_is_told_so(tmp_path, capfd):
    assert run_script(SCRIPTS / "no_network.py", [], out=tmp_path / "run") == 0
    told = capfd.readouterr()
    assert told.out == "3.0\n"
    assert "called no network with parameters" in told.err
    assert told.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_script_that_records_itself_keeps_its_recording(when, tmp_path, capfd):
    script, mine = SCRIPTS / "self_recorded.py", tmp_path / "mine"
    assert run_script(script, [str(mine), when], out=tmp_path / "run") == 0
    assert "records itself with laptime" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    assert len(laptime.load(mine).steps) == 3


def test_a_missing_script_and_a_taken_directory_are_told_before_anything_runs(run, tmp_path):
    with pytest.raises(ScriptError, match="there is no script"):
        run_script(SCRIPTS / "nothing.py", [], out=tmp_path / "run")
    run("one_batch")
    with pytest.raises(RunExists, match="already holds a run"):
        run("ends", "raises")


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path, capfd):
    script = tmp_path / "wrong.py"
    script.write_text("for\n")
    assert run_script(script, [], out=tmp_path / "run") == 1
    told = capfd.readouterr().err
    assert "SyntaxError" in told
    assert "runpy" not in told


def test_a_module_is_run_as_python_runs_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(SCRIPTS)
    assert run_script(Path("one_batch"), [], out=tmp_path / "run", module=True) == 0
    assert len(laptime.load(tmp_path / "run").steps) == 7


def test_a_trainer_of_transformers_cuts_its_own_steps(run, tmp_path):
    pytest.importorskip("transformers")
    found = run("trainer", tmp_path / "trainer")
    train = [("train", 4), ("train", 4), ("train", 4), ("train", 2)]
    valid = [("validation", 4), ("validation", 3)]
    assert steps(found, "stage", "samples") == (train + valid) * 2
    assert [step.optimizer_step for step in found.steps] == [0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4]
    assert [step.epoch for step in found.steps] == [0] * 6 + [1] * 6
    assert names(found)[0] == "transformer.wte"
    assert found.summary["notes"] == []


def test_a_trainer_of_lightning_cuts_its_own_steps(run, tmp_path):
    pytest.importorskip("lightning")
    found = run("lit", tmp_path)
    train = [("train", 6), ("train", 6), ("train", 4)]
    assert steps(found, "stage", "samples") == (train + [("validation", 4)] * 2) * 2
    assert [step.optimizer_step for step in found.steps] == [1, 2, 3, 3, 3, 4, 5, 6, 6, 6]
    assert [step.epoch for step in found.steps] == [0] * 5 + [1] * 5
    assert phases(found) == {"body.0": EVERYTHING, "head": EVERYTHING}
    assert phases(found, "validation") == {"body.0": {"forward"}, "head": {"forward"}}


def test_batches_that_are_drawn_ahead_keep_their_sizes(run):
    pytest.importorskip("accelerate")
    found = run("accelerated")
    train = [("train", 6), ("train", 6), ("train", 6), ("train", 4)]
    assert steps(found, "stage", "samples") == (train + [("validation", 5)] * 2) * 2
    assert [step.optimizer_step for step in found.steps] == [0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4]
    assert [step.epoch for step in found.steps] == [0] * 6 + [1] * 6


def test_a_teacher_is_no_validation_and_a_module_under_construction_no_network(run):
    found = run("taught")
    assert [str(step.stage) for step in found.steps] == ["train"] * 6
    assert names(found) == ["teacher.features.0", "teacher.head", "student.body.0", "student.head"]
    assert phases(found)["teacher.head"] == {"forward"}
    assert phases(found)["student.body.0"] == EVERYTHING


def test_an_optimizer_of_something_else_than_a_network_cuts_steps_too(run):
    found = run("image")
    assert [step.optimizer_step for step in found.steps] == [1, 2, 3, 4, 5, 6]
    assert all(step.update_s > 0 for step in found.steps)


def test_inference_is_recorded_as_validation(run):
    found = run("inference")
    assert steps(found, "stage", "samples") == [("validation", 6)] * 3


def test_what_a_script_saves_and_copies_carries_nothing_of_ours(run, tmp_path):
    found = run("saves", tmp_path / "net.pt")
    assert [str(step.stage) for step in found.steps] == ["train"] * 4 + ["validation"]
    assert {row["calls"] for row in found.layer_table.to_pylist()} == {1}
    loads = f"import torch, sys; sys.path.insert(0, {str(SCRIPTS)!r}); sys.modules['laptime'] = None; "
    loads += f"print(torch.load({str(tmp_path / 'net.pt')!r}, weights_only=False)(torch.ones(2, 8)).shape)"
    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert loaded.stdout == "torch.Size([2, 4])\n"


def test_too_many_optimizers_and_networks_are_noted_not_raised(run, monkeypatch):
    monkeypatch.setattr(optimizer_steps, "MOST_OPTIMIZERS", 1)
    monkeypatch.setattr(discovery, "MOST_NETWORKS", 1)
    found = run("two_networks")
    assert found.status == "finished"
    assert any("first 1 networks" in note for note in found.summary["notes"])


def test_nothing_is_looked_for_inside_of_networks(run):
    """What a script calls from outside is looked at once; the layers of its networks never are."""
    looked = []
    original = discovery.ScriptRecorder._meet_stranger

    def counting(self, module):
        looked.append(type(module).__name__)
        return original(self, module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery.ScriptRecorder, "_meet_stranger", counting)
        run("one_batch")
    assert looked == ["Net"]


@pytest.mark.parametrize("name", ["spawned", pytest.param("plain", marks=pytest.mark.slow)])
def test_scripts_run_in_a_process_of_their_own(name, tmp_path):
    """The spawned loader imports the script again, so for pickle `__main__` must be the script."""
    code = "import sys; from pathlib import Path; from laptime.bridges.scripts.run import run_script; "
    code += "sys.exit(run_script(Path(sys.argv[1]), sys.argv[3:], out=Path(sys.argv[2]), every_step=True))"
    command = [sys.executable, "-W", "error", "-c", code, SCRIPTS / f"{name}.py", tmp_path / "run"]
    found = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert (found.returncode, found.stderr) == (0, "")
    run = laptime.load(tmp_path / "run")
    assert len(run.steps) == {"spawned": 3, "plain": 6}[name]
    assert run.status == "finished"


def test_what_a_script_does_after_its_last_step_is_no_part_of_it(run):
    found = run("long_end")
    assert len(found.steps) == 4
    assert found.steps[3].host_s < 0.25  # the script sleeps for half a second at its end


def test_the_workload_of_a_training_inside_main_has_its_parameters_and_updates(run):
    workload = workload_of(run("in_main"))
    assert workload.parameters == 8 * 16 + 16 + 16 * 2 + 2
    assert workload.memory.state > 0
    assert any(operation.phase == "update" for operation in workload.operations)
