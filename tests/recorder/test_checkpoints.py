"""Checkpoints that trainers write during a recording are those that they write without one."""

import copy
import os
import pickle
import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.bridges.scripts.discovery import ScriptRecorder
from tests.recorder.cases import gpt2
from tests.recorder.loops import torch_is_untouched
from tests.recorder.saved_contents import content, difference, mentions

lightning = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings(
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:.*torch.jit:DeprecationWarning",
)


@pytest.fixture(autouse=True)
def _torch_is_left_alone():
    yield
    assert torch_is_untouched()


@contextmanager
def folder(tmp_path, name):
    """A working folder of the same name each time, kept under its own afterwards: checkpoints hold paths."""
    work, before = tmp_path / "work", Path.cwd()
    work.mkdir()
    os.chdir(work)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.move(work, tmp_path / name)


def found(tmp_path):
    """As `laptime run` watches a script."""
    return ScriptRecorder(tmp_path / "run", every_step=True).watching()


def refuse_differences(one, other):
    """Two folders hold the same files."""
    names = sorted(str(file.relative_to(one)) for file in one.rglob("*") if file.is_file())
    assert names
    assert names == sorted(str(file.relative_to(other)) for file in other.rglob("*") if file.is_file())
    for name in names:
        expected, given = (one / name).read_bytes(), (other / name).read_bytes()
        assert difference(content(expected), content(given)) == "", name
        assert mentions(given) == mentions(expected), name


# -- Lightning -------------------------------------------------------------------------------------------


class Lit(lightning.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(
            nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 5)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.metric = F.cross_entropy

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = self.criterion(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class SavesInTheStep(lightning.Callback):
    """Writes checkpoints where the trainer itself writes none: between a batch's passes."""

    def on_before_backward(self, trainer, module, loss):
        trainer.save_checkpoint(f"before-backward-{trainer.global_step}.ckpt")

    def on_before_optimizer_step(self, trainer, module, optimizer):
        Path(f"network-{trainer.global_step}.pickle").write_bytes(pickle.dumps(copy.deepcopy(module.network)))


def fit(*callbacks):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 8), torch.randint(0, 5, (12,)))
    checkpoints = lightning.callbacks.ModelCheckpoint("checkpoints", every_n_train_steps=1, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[*callbacks, checkpoints, SavesInTheStep()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Lit(), DataLoader(data, batch_size=4))


@pytest.mark.parametrize("recording", ["callback", "run"])
def test_lightning_writes_the_checkpoints_that_it_writes_without_a_recording(recording, tmp_path):
    with folder(tmp_path, "bare"):
        fit()
    with folder(tmp_path, "recorded"), found(tmp_path) if recording == "run" else nullcontext():
        callbacks = [laptime.LightningCallback(tmp_path / "run", every_step=True)]
        fit(*(callbacks if recording == "callback" else []))
    assert len(laptime.load(tmp_path / "run").steps) == 6
    assert len(list((tmp_path / "bare").rglob("*.ckpt"))) == 12
    refuse_differences(tmp_path / "bare", tmp_path / "recorded")


# -- transformers ----------------------------------------------------------------------------------------


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        tokens = torch.arange(9) % 7 + index % 7
        return {"input_ids": tokens, "labels": tokens}


class SavesBeforeTheUpdate(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, optimizer, **kwargs):
        model.save_pretrained(f"pretrained-{state.global_step}")
        torch.save(model, f"network-{state.global_step}.pt")
        torch.save(optimizer.state_dict(), f"optimizer-{state.global_step}.pt")


def hugging_face(*callbacks):
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        "trainer",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    callbacks = [*callbacks, SavesBeforeTheUpdate()]
    transformers.Trainer(gpt2(), arguments, train_dataset=Tokens(), callbacks=callbacks).train()


@pytest.mark.parametrize("recording", ["callback", "run"])
def test_hugging_face_writes_the_checkpoints_that_it_writes_without_a_recording(recording, tmp_path):
    with folder(tmp_path, "bare"):
        hugging_face()
    with folder(tmp_path, "recorded"), found(tmp_path) if recording == "run" else nullcontext():
        callbacks = [laptime.TrainerCallback(tmp_path / "run", every_step=True)]
        hugging_face(*(callbacks if recording == "callback" else []))
    assert len(laptime.load(tmp_path / "run").steps) == 3
    assert len(list((tmp_path / "bare").rglob("model.safetensors"))) == 6
    refuse_differences(tmp_path / "bare", tmp_path / "recorded")


# -- accelerate ------------------------------------------------------------------------------------------


def accelerated():
    torch.manual_seed(0)
    runner = accelerate.Accelerator(cpu=True)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    data = DataLoader(TensorDataset(torch.randn(12, 8), torch.randint(0, 5, (12,))), batch_size=4)
    network, optimizer, data = runner.prepare(network, torch.optim.Adam(network.parameters()), data)
    for number, (x, y) in enumerate(data):
        output = network(x)
        runner.save_state(f"after-forward-{number}")
        loss = F.cross_entropy(output, y)
        runner.save_state(f"after-loss-{number}")
        runner.backward(loss)
        runner.save_model(network, f"after-backward-{number}")
        optimizer.step()
        optimizer.zero_grad()


def test_accelerate_writes_the_states_that_it_writes_without_a_recording(tmp_path):
    with folder(tmp_path, "bare"):
        accelerated()
    with folder(tmp_path, "recorded"), found(tmp_path):
        accelerated()
    assert len(laptime.load(tmp_path / "run").steps) == 3
    refuse_differences(tmp_path / "bare", tmp_path / "recorded")
