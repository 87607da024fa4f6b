"""The Hugging Face callback on real trainers: steps, accumulation, evaluation, and how a training ends."""

import gc
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.recorder.cases import bert, gpt2
from tests.recorder.loops import Tick, hooks, rows, torch_is_untouched
from torch import nn
from torch.utils.data import Dataset

import laptime
from laptime.errors import AlreadyRecording, MissingExtra
from laptime.recorder.backends import FakeClock

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
UNTOUCHED = transformers.Trainer.train


@pytest.fixture(autouse=True)
def _nothing_is_left_patched():
    yield
    assert torch_is_untouched()
    gc.collect()
    assert transformers.Trainer.train is UNTOUCHED


class Tokens(Dataset):
    def __init__(self, count, labels=None):
        self.count, self.labels = count, labels

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.arange(9) % 7 + index % 7
        return {"input_ids": tokens, "labels": tokens if self.labels is None else index % self.labels}


def trainer(tmp_path, model, callbacks, train=None, valid=None, **options):
    settings = {
        "output_dir": tmp_path / "trainer",
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    arguments = transformers.TrainingArguments(**settings | options)
    data = {"train_dataset": train or Tokens(14), "eval_dataset": valid or Tokens(7)}
    return transformers.Trainer(model, arguments, callbacks=callbacks, **data)


def recorded(tmp_path, model, **options):
    callback = laptime.TrainerCallback(out=tmp_path / "run", every_step=True)
    trainer(tmp_path, model, [callback], **options).train()
    kinds = {type(hook).__name__ for module in model.modules() for hook in module._forward_pre_hooks.values()}
    assert kinds == set()
    return callback.run


def test_steps_have_their_stage_epoch_samples_and_loss(tmp_path):
    run = recorded(tmp_path, gpt2(), num_train_epochs=2, eval_strategy="epoch")
    stages = [("train", 4)] * 3 + [("train", 2), ("validation", 4), ("validation", 3)]
    assert [(str(step.stage), step.samples) for step in run.steps] == stages * 2
    assert [step.epoch for step in run.steps] == [0] * 6 + [1] * 6
    assert [step.optimizer_step for step in run.steps] == [1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8]
    assert all(2 < step.loss < 5 for step in run.steps)
    assert {row["phase"] for row in rows(run, stage="validation")} == {"forward"}
    assert run.summary["named_share"] > 0.98
    assert (run.status, run.summary["notes"]) == ("finished", [])
    assert (run.config["trainer"], run.config["network"]) == ("transformers", "GPT2LMHeadModel")


def test_the_accounts_of_a_trainer_step_are_all_there(tmp_path):
    run = recorded(tmp_path, bert(), train=Tokens(14, labels=5), valid=Tokens(7, labels=5), max_grad_norm=1.0)
    for step in run.steps:
        for account in ("copy", "forward", "loss", "backward", "update", "host"):
            assert getattr(step, f"{account}_s") > 0, account
    assert all(step.data_wait_s > 0 for step in list(run.steps)[:-1])  # one batch is drawn ahead
    assert [layer.kind for layer in run.network][:1] == ["Embedding"]
    for layer in run.network:
        if layer.parameters:
            assert {row["phase"] for row in rows(run, layer=layer.name)} == {"forward", "backward", "update"}


@pytest.mark.parametrize("counts_items", [True, False])
def test_accumulated_batches_are_steps(counts_items, tmp_path):
    """Models that are told how many items an update has return a share of its loss, others their own loss."""
    model = gpt2() if counts_items else Regression()
    data = (Tokens(14), Tokens(7)) if counts_items else (Points(14), Points(7))
    run = recorded(tmp_path, model, train=data[0], valid=data[1], gradient_accumulation_steps=2)
    assert [step.optimizer_step for step in run.steps] == [0, 1, 1, 2]
    assert [step.update_s > 0 for step in run.steps] == [False, True] * 2
    assert [step.samples for step in run.steps] == [4, 4, 4, 2]
    assert [step.loss is not None for step in run.steps] == [not counts_items, True] * 2
    if counts_items:
        assert all(2 < step.loss < 5 for step in run.steps if step.loss is not None)


class Points(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((8,), float(index % 3)), "labels": torch.zeros(2)}


class Regression(nn.Module):
    """A module of the user's own."""

    def __init__(self, clock=None):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.tick = Tick(clock, 2.0) if clock else nn.Identity()
        self.last = nn.Linear(8, 2)

    def forward(self, x, labels=None):
        out = self.last(self.tick(self.first(x)))
        return {"loss": F.mse_loss(out, labels), "logits": out}


def test_a_module_of_ones_own_is_charged_to_the_second(tmp_path):
    clock = FakeClock()
    callback = laptime.TrainerCallback(out=tmp_path / "run", clock=clock)
    made = trainer(tmp_path, Regression(clock), [callback], Points(40), Points(4))
    made.train()
    steps = list(callback.run.steps)
    assert [step.forward_s for step in steps] == pytest.approx([2.0] * 10)
    assert [step.wall_s for step in steps] == pytest.approx([2.0] * 10)
    assert {row["seconds"] for row in rows(callback.run, layer="first", phase="forward")} == {2.0}


class Breaking(Regression):
    def __init__(self, error):
        super().__init__()
        self.error, self.calls = error, 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return super().forward(x, labels)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("error", "status"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_a_training_that_fails_keeps_its_steps_and_the_next_one_works(error, status, late, tmp_path):
    model = Breaking(error)
    callback = laptime.TrainerCallback(out=tmp_path / "run", every_step=True)
    made = trainer(tmp_path, model, [] if late else [callback], Points(16), Points(4))
    if late:
        made.add_callback(callback)
    with pytest.raises(error):
        made.train()
    assert hooks(model) == 0
    assert torch_is_untouched()
    assert (callback.run.status, len(callback.run.steps)) == (status, 2)
    another = laptime.TrainerCallback(out=tmp_path / "another", every_step=True)
    trainer(tmp_path, Regression(), [another], Points(16), Points(4)).train()
    assert len(another.run.steps) == 4


def test_a_callback_records_each_training_in_a_directory_of_its_own(tmp_path):
    callback = laptime.TrainerCallback(out=tmp_path / "run")
    made = trainer(tmp_path, Regression(), [callback], Points(16), Points(8))
    for expected in ("run", "run-2"):
        made.train()
        made.evaluate()  # outside a training: nobody's step
        assert callback.run.path == tmp_path / expected
        assert len(callback.run.steps) == 4


def test_two_callbacks_at_once_are_refused_in_one_line(tmp_path):
    callbacks = [laptime.TrainerCallback(out=tmp_path / name) for name in ("one", "two")]
    with pytest.raises(AlreadyRecording, match="end it before starting another"):
        trainer(tmp_path, Regression(), callbacks, Points(16), Points(4)).train()
    assert callbacks[0].run.status == "failed"


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_model_that_the_trainer_compiles_is_one_unit(tmp_path):
    torch._dynamo.reset()
    run = recorded(
        tmp_path,
        Regression(),
        train=Points(16),
        valid=Points(4),
        torch_compile=True,
        torch_compile_backend="aot_eager",
    )
    assert [(layer.name, layer.compiled) for layer in run.network] == [("(Regression)", True)]
    assert [step.samples for step in run.steps] == [4] * 4
    assert {row["phase"] for row in rows(run, layer="(Regression)")} == {"forward", "backward", "update"}
    torch._dynamo.reset()


def test_gradient_checkpointing_recomputes_in_the_backward_of_its_layers(tmp_path):
    run = recorded(tmp_path, gpt2(), gradient_checkpointing=True)
    assert run.summary["named_share"] > 0.98
    for row in rows(run, phase="backward"):
        assert row["layer"] == "(loss)" or row["layer"] in [layer.name for layer in run.network]


def test_without_transformers_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "laptime.bridges.transformers", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'laptime\[transformers\]'"):
        laptime.TrainerCallback()
