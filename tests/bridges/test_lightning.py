"""The Lightning callback on real trainers: accounts to the second, stages, and how a fit ends."""

import sys

import pytest
import torch
import torch.nn.functional as F
from tests.recorder.loops import hooks, rows, torch_is_untouched
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.errors import MissingExtra, RecordingError
from laptime.recorder.backends import FakeClock

lightning = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


@pytest.fixture(autouse=True)
def _torch_is_left_alone():
    yield
    assert torch_is_untouched()


class Tick(nn.Module):
    """Takes its time, forward and backward."""

    def __init__(self, clock, forward_s, backward_s=0.0):
        super().__init__()
        self.clock, self.seconds = clock, (forward_s, backward_s)

    def forward(self, x):
        clock, (forward_s, backward_s) = self.clock, self.seconds

        class Delay(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                clock.advance(forward_s)
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                clock.advance(backward_s)
                return gradient.clone()

        return Delay.apply(x)


class SlowSGD(torch.optim.SGD):
    """An optimizer whose own work takes 8 s."""

    clock = FakeClock()

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        self.clock.advance(8.0)
        return loss


class Lit(lightning.LightningModule):
    """Two layers in `self.model`; a criterion, logging and Python around them."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.model = nn.Sequential(
            nn.Linear(8, 8), Tick(clock, 1.0, 0.5), nn.ReLU(), nn.Linear(8, 5), Tick(clock, 2.0, 0.25)
        )
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, index):
        x, y = batch
        self.clock.advance(0.1)
        out = self.model(x)
        loss = self.criterion(out, y)
        self.clock.advance(0.2)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        return self.criterion(self.model(x), y)

    def configure_optimizers(self):
        SlowSGD.clock = self.clock
        return SlowSGD(self.parameters(), lr=0.1)

    def on_before_zero_grad(self, optimizer):
        self.clock.advance(0.4)

    def on_before_optimizer_step(self, optimizer):
        self.clock.advance(0.8)


class Parts(Lit):
    """Calls two parts of itself, with a functional operation and a logging line between them."""

    def __init__(self, clock, logs=False):
        super().__init__(clock)
        self.model = None
        self.body = nn.Sequential(nn.Linear(8, 8), Tick(clock, 1.0, 0.5))
        self.head = nn.Linear(8, 5)
        self.logs = logs

    def training_step(self, batch, index):
        x, y = batch
        x = self.body(x)
        if self.logs:
            self.clock.advance(0.1)
        else:
            x = Tick(self.clock, 4.0, 0.75)(x).relu()
        return F.cross_entropy(self.head(x), y)

    def validation_step(self, batch, index):
        return self(batch[0])

    def forward(self, x):
        return self.head(self.body(x))


def loader(count=14, size=6):
    return DataLoader(TensorDataset(torch.randn(count, 8), torch.randint(0, 5, (count,))), batch_size=size)


def trainer(tmp_path, callback, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    return lightning.Trainer(callbacks=[callback], **quiet, **settings | options)


def recorded(tmp_path, module, clock, valid=False, **options):
    callback = laptime.LightningCallback(out=tmp_path / "run", every_step=True, clock=clock)
    trainer(tmp_path, callback, **options).fit(module, loader(), loader(8, 4) if valid else None)
    assert hooks(module) == 0
    assert "training_step" in vars(type(module)) or type(module) is Parts
    assert not hasattr(type(module).training_step, "__wrapped__")
    return callback.run


def seconds(run, **wanted):
    return [row["seconds"] for row in rows(run, **wanted)]


def test_closure_forward_backward_and_update_are_not_mixed_up(tmp_path):
    clock = FakeClock()
    run = recorded(tmp_path, Lit(clock), clock, gradient_clip_val=1.0)
    assert len(run.steps) == 3
    for step in run.steps:
        assert step.forward_s == pytest.approx(3.0)
        assert step.backward_s == pytest.approx(0.75)
        assert step.update_s == pytest.approx(8.0)
        assert step.host_s == pytest.approx(0.1 + 0.2 + 0.4 + 0.8)
        assert step.loss_s == pytest.approx(0.0)
    assert [layer.name for layer in run.network] == ["model.0", "model.3"]
    assert seconds(run, layer="model.0", phase="forward") == pytest.approx([1.0] * 3)
    assert seconds(run, layer="model.0", phase="backward") == pytest.approx([0.5] * 3)
    assert seconds(run, layer="model.3", phase="forward") == pytest.approx([2.0] * 3)
    assert seconds(run, layer="model.3", phase="backward") == pytest.approx([0.25] * 3)
    assert run.summary["notes"] == []


def test_steps_have_their_stage_epoch_samples_and_loss(tmp_path):
    clock = FakeClock()
    run = recorded(tmp_path, Lit(clock), clock, valid=True, max_epochs=2)
    stages = ["train"] * 3 + ["validation"] * 2  # and no step of the sanity check
    assert [str(step.stage) for step in run.steps] == stages * 2
    assert [step.samples for step in run.steps] == [6, 6, 2, 4, 4] * 2
    assert [step.epoch for step in run.steps] == [0] * 5 + [1] * 5
    assert [step.optimizer_step for step in run.steps] == [1, 2, 3, 3, 3, 4, 5, 6, 6, 6]
    assert all(0 < step.loss < 5 for step in run.steps)
    assert {row["phase"] for row in rows(run, stage="validation")} == {"forward"}
    assert (run.status, run.config["trainer"], run.config["module"]) == ("finished", "lightning", "Lit")


def test_accumulated_batches_are_steps_and_keep_their_own_loss(tmp_path):
    clock = FakeClock()
    torch.manual_seed(0)
    run = recorded(tmp_path, Lit(clock), clock, accumulate_grad_batches=2)
    assert [step.optimizer_step for step in run.steps] == [0, 1, 2]
    assert [step.update_s for step in run.steps] == pytest.approx([0.0, 8.0, 8.0])
    assert [step.forward_s for step in run.steps] == pytest.approx([3.0] * 3)
    assert all(1.0 < step.loss < 3.0 for step in run.steps)


def test_functional_operations_between_two_parts_go_to_the_layer_before(tmp_path):
    clock = FakeClock()
    run = recorded(tmp_path, Parts(clock), clock, valid=True)
    train = [step for step in run.steps if step.stage == "train"]
    assert [step.forward_s for step in train] == pytest.approx([5.0] * 3)
    assert [step.loss_s for step in train] == pytest.approx([0.0] * 3)
    assert seconds(run, layer="body.0", phase="forward", stage="train") == pytest.approx([5.0] * 3)
    assert seconds(run, layer="body.0", phase="backward") == pytest.approx([1.25] * 3)
    assert seconds(run, layer="body.0", phase="forward", stage="validation") == pytest.approx([1.0] * 2)
    assert {row["calls"] for row in rows(run)} == {1}
    assert [layer.name for layer in run.network] == ["body.0", "head"]


def test_python_between_two_parts_is_host_time(tmp_path):
    clock = FakeClock()
    run = recorded(tmp_path, Parts(clock, logs=True), clock)
    for step in run.steps:
        assert step.forward_s == pytest.approx(1.0)
        assert step.host_s == pytest.approx(0.1 + 0.4 + 0.8)


def test_steps_without_layer_marks_have_the_same_accounts(tmp_path):
    clock = FakeClock()
    callback = laptime.LightningCallback(out=tmp_path / "run", clock=clock)
    trainer(tmp_path, callback).fit(Lit(clock), loader(240))
    steps = list(callback.run.steps)
    assert {step.instrumented for step in steps} == {True, False}
    for step in steps:
        assert step.forward_s == pytest.approx(3.0)
        assert step.backward_s == pytest.approx(0.75)
        assert step.update_s == pytest.approx(8.0)


class Adversaries(lightning.LightningModule):
    """Two networks and two optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Linear(4, 8)
        self.judge = nn.Sequential(nn.Linear(8, 1))

    def training_step(self, batch, index):
        make, judge = self.optimizers()
        real, _ = batch
        fake = self.maker(torch.randn(len(real), 4))
        judge.zero_grad()
        wrong = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake.detach())).mean()
        self.manual_backward(wrong)
        judge.step()
        make.zero_grad()
        self.manual_backward(F.softplus(-self.judge(fake)).mean())
        make.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.maker.parameters()), torch.optim.Adam(self.judge.parameters())]


def test_optimization_by_hand_with_two_optimizers(tmp_path):
    callback = laptime.LightningCallback(out=tmp_path / "run", every_step=True)
    trainer(tmp_path, callback).fit(Adversaries(), loader())
    run = callback.run
    assert [layer.name for layer in run.network] == ["maker", "judge.0"]
    assert [step.optimizer_step for step in run.steps] == [1, 2, 3]
    for layer in ("maker", "judge.0"):
        assert {row["phase"] for row in rows(run, layer=layer)} == {"forward", "backward", "update"}
    assert run.summary["named_share"] > 0.98


class Failing(Lit):
    def __init__(self, clock, error):
        super().__init__(clock)
        self.error = error

    def training_step(self, batch, index):
        if index == 2:
            raise self.error
        return super().training_step(batch, index)


@pytest.mark.parametrize(
    ("error", "leaves", "status"),
    [(ValueError("boom"), ValueError, "failed"), (KeyboardInterrupt(), SystemExit, "interrupted")],
)
def test_however_a_fit_ends_the_steps_are_kept_and_the_next_fit_works(error, leaves, status, tmp_path):
    import signal

    before = signal.getsignal(signal.SIGINT)
    clock = FakeClock()
    module = Failing(clock, error)
    callback = laptime.LightningCallback(out=tmp_path / "run", every_step=True, clock=clock)
    try:
        with pytest.raises(leaves):
            trainer(tmp_path, callback).fit(module, loader())
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores further Ctrl-C while it shuts down
    assert callback.run.status == status
    assert len(callback.run.steps) == 2
    assert hooks(module) == 0
    assert torch_is_untouched()
    another = laptime.LightningCallback(out=tmp_path / "another", clock=clock)
    trainer(tmp_path, another).fit(Lit(clock), loader())
    assert len(another.run.steps) == 3


def test_a_callback_records_each_fit_in_a_directory_of_its_own(tmp_path):
    callback = laptime.LightningCallback(out=tmp_path / "run")
    with pytest.raises(RecordingError, match="no training has started"):
        callback.run  # noqa: B018
    for expected in ("run", "run-2", "run-3"):
        trainer(tmp_path, callback).fit(Lit(FakeClock()), loader())
        assert callback.run.path == tmp_path / expected


def test_a_wrong_option_is_told_when_the_callback_is_made():
    with pytest.raises(RecordingError, match="a share of step time"):
        laptime.LightningCallback(budget=7)
    with pytest.raises(TypeError, match="every_stp"):
        laptime.LightningCallback(every_stp=True)


def test_the_other_name_of_lightning_works_as_well(tmp_path):
    other = pytest.importorskip("pytorch_lightning")

    class Module(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 5)

        def training_step(self, batch, index):
            return F.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = laptime.LightningCallback(out=tmp_path / "run", every_step=True)
    other.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        default_root_dir=tmp_path,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(Module(), loader())
    assert [layer.name for layer in callback.run.network] == ["layer"]
    assert all(step.update_s > 0 for step in callback.run.steps)


def test_without_lightning_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "laptime.bridges.lightning", raising=False)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'laptime\[lightning\]'"):
        laptime.LightningCallback()
