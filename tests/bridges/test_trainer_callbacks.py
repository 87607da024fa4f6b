"""The contract of callbacks for trainers: every entry of `bridges.TRAINERS` keeps it."""

import sys
from importlib import import_module
from inspect import signature

import pytest
import torch
import torch.nn.functional as F
from tests.recorder.loops import torch_is_untouched
from torch import nn
from torch.utils.data import DataLoader, Dataset

import laptime
from laptime.bridges import TRAINERS, TrainerBridge
from laptime.bridges.scripts.discovery import caller_of
from laptime.errors import RecordingError

STEPS = 4


class Fails(Exception):
    """Raised by a network under training."""


class Samples(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index)), "labels": index % 2}


class Network(nn.Module):
    """Gives its own loss, as transformers wants it; fails at the third call if it is to."""

    def __init__(self, fails):
        super().__init__()
        self.layer, self.fails, self.calls = nn.Linear(8, 2), fails, 0

    def forward(self, x, labels):
        self.calls += 1
        if self.fails and self.calls == 3:
            raise Fails
        return {"loss": F.cross_entropy(self.layer(x), labels)}


def lightning(callback, tmp_path, fails):
    package = pytest.importorskip("lightning.pytorch")

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network(fails)

        def training_step(self, batch, index):
            return self.network(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = package.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback], enable_model_summary=False, **quiet
    )
    trainer.fit(Module(), DataLoader(Samples(), batch_size=4))


def transformers(callback, tmp_path, fails):
    package = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = package.TrainingArguments(
        output_dir=tmp_path / "trainer",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    package.Trainer(Network(fails), arguments, callbacks=[callback], train_dataset=Samples()).train()


TRAIN = {"LightningCallback": lightning, "TrainerCallback": transformers}


@pytest.fixture(params=TRAINERS, ids=lambda one: one.callback)
def entry(request):
    yield request.param
    assert torch_is_untouched()


def test_every_entry_has_a_training_here_and_a_name_in_laptime():
    assert {one.callback for one in TRAINERS} == set(TRAIN) <= set(laptime.__all__)


def test_a_training_is_recorded_step_by_step(entry, tmp_path):
    callback = getattr(laptime, entry.callback)(out=tmp_path / "run", every_step=True)
    TRAIN[entry.callback](callback, tmp_path, fails=False)
    run = callback.run
    assert run.status == "finished"
    assert [(str(step.stage), step.samples, step.optimizer_step) for step in run.steps] == [
        ("train", 4, number + 1) for number in range(STEPS)
    ]
    assert all(step.loss is not None and step.forward_s > 0 and step.update_s > 0 for step in run.steps)
    assert [layer.kind for layer in run.network] == ["Linear"]
    assert run.config["trainer"]


def test_a_second_training_has_a_run_of_its_own(entry, tmp_path):
    callback = getattr(laptime, entry.callback)(out=tmp_path / "run")
    for _ in range(2):
        TRAIN[entry.callback](callback, tmp_path, fails=False)
    assert callback.run.path.name == "run-2"
    assert len(laptime.load(tmp_path / "run").steps) == len(callback.run.steps) == STEPS


def test_what_fails_ends_the_run_as_failed_and_is_raised(entry, tmp_path):
    callback = getattr(laptime, entry.callback)(out=tmp_path / "run")
    with pytest.raises(Fails):
        TRAIN[entry.callback](callback, tmp_path, fails=True)
    assert callback.run.status == "failed"
    assert len(callback.run.steps) == 2


def test_there_is_no_run_before_a_training_and_a_wrong_option_is_refused_at_once(entry, tmp_path):
    with pytest.raises(RecordingError, match="no training has started"):
        getattr(laptime, entry.callback)(out=tmp_path / "run").run  # noqa: B018
    with pytest.raises(RecordingError, match="budget"):
        getattr(laptime, entry.callback)(out=tmp_path / "run", budget=7)


def test_a_bridge_lets_a_running_trainer_cut_the_steps_of_a_recording(entry):
    follow = import_module(entry.bridge).follow
    assert list(signature(follow).parameters) == ["trainer", "recorder", "network", "drive"]


def test_a_trainer_that_is_entered_is_found_among_the_callers_of_a_network(monkeypatch):
    class Trainer:
        def train(self, network):
            return caller_of(network)

    monkeypatch.setitem(sys.modules, "somebodys.trainer", type(sys)("somebodys.trainer"))
    sys.modules["somebodys.trainer"].Trainer = Trainer
    entry = TrainerBridge(callback="Theirs", bridge="laptime.bridges.theirs", homes=("somebodys.trainer",))
    monkeypatch.setattr("laptime.bridges.scripts.discovery.TRAINERS", (*TRAINERS, entry))
    caller = Trainer().train(nn.Linear(2, 2))
    assert caller.home == "laptime.bridges.theirs"
    assert isinstance(caller.trainer, Trainer)
