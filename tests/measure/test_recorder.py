"""The recorder on other people's loops: what they do, how they end, and what they get wrong."""

import copy
import gc
import itertools
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.errors import AlreadyRecording, ForeignOptimizer, RecordingError, RunExists, UnsupportedDevice
from laptime.measure import patches
from laptime.measure.clocks import FakeClock, clock_for
from laptime.measure.hooks import is_watched
from laptime.measure.recorder import Recorder
from laptime.record import Stage


class Net(nn.Module):
    """Two layers and something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


class Tick(nn.Module):
    """Lets a fake clock advance during a layer's forward pass."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x):
        self.clock.advance(self.seconds)
        return x


def batches(count=4, size=6):
    return [(torch.randn(size, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


def train_step(network, optimizer, batch):
    x, y = batch
    loss = F.cross_entropy(network(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)


def rows(run, **wanted):
    return [
        row for row in run.layer_table.to_pylist() if all(row[key] == value for key, value in wanted.items())
    ]


def hooks(network):
    return sum(
        is_watched(module) + len(module._forward_pre_hooks) + len(module._forward_hooks)
        for module in network.modules()
    )


def torch_is_untouched():
    return (
        patches.active() is None
        and "to" not in vars(torch.Tensor)
        and "__call__" not in vars(nn.modules.loss._Loss)
        and F.cross_entropy.__module__ == "torch.nn.functional"
        and not hasattr(F.cross_entropy, "__wrapped__")
        and not hasattr(torch.autograd._engine_run_backward, "__wrapped__")
        and not _global_optimizer_pre_hooks
    )


def test_every_batch_is_a_step_and_the_books_are_closed(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(5)):
            recording.log(loss=train_step(network, optimizer, batch), top1=0.5)
    run = recording.run
    assert [step.step for step in run.steps] == [0, 1, 2, 3, 4]
    assert [step.optimizer_step for step in run.steps] == [1, 2, 3, 4, 5]
    assert all(step.samples == 6 and step.loss > 0 and step.top1 == 0.5 for step in run.steps)
    assert run.status == "finished"
    assert run.summary["unexplained_share"] == pytest.approx(0, abs=0.01)
    assert run.summary["named_share"] > 0.98
    assert {row["phase"] for row in rows(run, layer="first")} == {"forward", "backward", "update"}
    assert {row["how"] for row in rows(run, phase="update")} == {"allocated"}


def test_steps_touch_each_other_and_layers_lie_inside_their_step(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches()):
            train_step(network, optimizer, batch)
    steps = list(recording.run.steps)
    for earlier, later in itertools.pairwise(steps):
        assert later.start_s == pytest.approx(earlier.start_s + earlier.wall_s)
    for row in rows(recording.run):
        step = steps[row["step"]]
        assert row["start_s"] >= step.start_s - 1e-9
        assert row["start_s"] + row["seconds"] <= step.start_s + step.wall_s + 1e-9 or row["calls"] > 1


def test_layers_take_along_norms_and_own_all_parameters(tmp_path):
    network = Net()
    with laptime.record(network, sgd(network), out=tmp_path / "run") as recording:
        for batch in recording.steps(batches(1)):
            train_step(network, torch.optim.SGD(network.parameters(), 0.1), batch)
    layers = {layer.name: layer for layer in recording.run.network}
    assert list(layers) == ["first", "last"]
    assert layers["first"].parameters == 8 * 16 + 16 + 32  # its batch norm comes along
    assert sum(layer.parameters for layer in layers.values()) == sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("how", ["finishes", "breaks", "raises", "interrupts", "exits"])
def test_however_a_loop_ends_the_run_is_readable_and_no_hook_remains(how, tmp_path):
    network = Net()
    optimizer = sgd(network)
    errors = {"raises": ValueError("boom"), "interrupts": KeyboardInterrupt(), "exits": SystemExit(3)}

    def loop():
        with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
            for number, batch in enumerate(recording.steps(batches(6))):
                train_step(network, optimizer, batch)
                if number == 3:
                    if how == "breaks":
                        break
                    if how in errors:
                        raise errors[how]

    if how in errors:
        with pytest.raises(type(errors[how])):
            loop()
    else:
        loop()
    run = laptime.load(tmp_path / "run")
    assert run.status == {"finishes": "finished", "breaks": "finished", "raises": "failed"}.get(
        how, "interrupted"
    )
    assert len(run.steps) == (6 if how == "finishes" else 4)
    assert hooks(network) == 0
    assert torch_is_untouched()


def test_an_exception_inside_forward_leaves_nothing_behind(tmp_path):
    network = Net()

    def loop():
        with laptime.record(network, sgd(network), out=tmp_path / "run") as recording:
            for _ in recording.steps(batches(2)):
                network(torch.randn(3, 9))

    with pytest.raises(RuntimeError, match="shapes"):
        loop()
    assert hooks(network) == 0
    assert torch_is_untouched()
    assert laptime.load(tmp_path / "run").status == "failed"


def test_a_second_recording_at_once_is_refused_and_the_first_goes_on(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "one") as recording:
        for number, batch in enumerate(recording.steps(batches(3))):
            train_step(network, optimizer, batch)
            if number == 0:
                with pytest.raises(AlreadyRecording, match="end it before"):
                    laptime.record(Net(), out=tmp_path / "two").start()
    assert len(recording.run.steps) == 3
    assert not (tmp_path / "two").exists()


def test_recordings_one_after_the_other_are_fine(tmp_path):
    network = Net()
    optimizer = sgd(network)
    for name in ("one", "two"):
        with laptime.record(network, optimizer, out=tmp_path / name) as recording:
            for batch in recording.steps(batches(2)):
                train_step(network, optimizer, batch)
        assert len(recording.run.steps) == 2


def test_an_optimizer_of_another_network_is_refused(tmp_path):
    with pytest.raises(ForeignOptimizer, match="no parameter of the network"):
        laptime.record(Net(), sgd(Net()), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((42,), "takes a module"),
        (({"a": 1},), "not an nn.Module"),
        ((Net(), "adam"), "not a torch optimizer"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments, words, tmp_path):
    with pytest.raises(RecordingError, match=words) as caught:
        laptime.record(*arguments, out=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_network_inside_another_is_refused(tmp_path):
    network = Net()
    with pytest.raises(RecordingError, match="is part of network 'whole'"):
        laptime.record({"whole": network, "part": network.first}, out=tmp_path / "run").start()
    assert torch_is_untouched()


def test_an_existing_run_is_never_overwritten(tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run"):
        pass
    with pytest.raises(RunExists), laptime.record(network, out=tmp_path / "run"):
        pass
    assert torch_is_untouched()


def test_mps_gets_one_clear_line():
    with pytest.raises(UnsupportedDevice, match="cannot time 'mps'"):
        clock_for(torch.device("mps"))


def test_a_network_without_parameters_is_one_layer(tmp_path):
    network = nn.Sequential(nn.ReLU(), nn.Softmax(dim=-1))
    with laptime.record(network, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            network(x)
    assert [layer.name for layer in recording.run.network] == ["(Sequential)"]
    assert rows(recording.run, layer="(Sequential)", phase="forward")


def test_steps_without_a_backward_pass_are_labelled(tmp_path):
    network = Net()
    with laptime.record(network, sgd(network), out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            network(x)
    run = recording.run
    assert "3 of 3 training steps had no backward pass" in run.summary["notes"]
    assert all(step.backward_s == 0 and step.stage is Stage.TRAIN for step in run.steps)
    assert not rows(run, phase="backward")


def test_a_network_that_is_never_called_is_labelled(tmp_path):
    called, recorded = Net(), Net()
    with laptime.record(recorded, sgd(recorded), out=tmp_path / "run") as recording:
        for batch in recording.steps(batches(2)):
            train_step(called, sgd(called), batch)
    assert any("without calling the recorded network" in note for note in recording.run.summary["notes"])


def test_validation_between_steps_is_told_from_training(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for epoch in range(2):
            network.train()
            for batch in recording.steps(batches(2), epoch=epoch):
                train_step(network, optimizer, batch)
            network.eval()
            with torch.no_grad():
                for x, y in recording.steps(batches(3)):
                    F.cross_entropy(network(x), y)
    stages = [str(step.stage) for step in recording.run.steps]
    assert stages == (["train"] * 2 + ["validation"] * 3) * 2
    assert recording.run.summary["notes"] == []
    assert {row["phase"] for row in rows(recording.run, stage="validation")} == {"forward"}


def test_gradient_accumulation_shows_as_several_steps_to_an_update(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for number, (x, y) in enumerate(recording.steps(batches(6))):
            (F.cross_entropy(network(x), y) / 3).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [step.optimizer_step for step in recording.run.steps] == [0, 0, 1, 1, 1, 2]
    assert [step.update_s > 0 for step in recording.run.steps] == [False, False, True] * 2


def test_frozen_layers_get_no_backward_and_no_update(tmp_path):
    network = Net()
    network.first.requires_grad_(False)
    network.norm.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)
    assert {row["phase"] for row in rows(recording.run, layer="first")} == {"forward"}
    assert {row["phase"] for row in rows(recording.run, layer="last")} == {"forward", "backward", "update"}
    assert [layer.trainable for layer in recording.run.network] == [False, True]


def test_two_networks_and_two_optimizers_in_one_step(tmp_path):
    clock = FakeClock()
    maker = nn.Sequential(nn.Linear(4, 8), Tick(clock, 1.0))
    judge = nn.Sequential(nn.Linear(8, 1), Tick(clock, 10.0))
    make, judge_step = sgd(maker), sgd(judge)
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(3, 1), torch.zeros(3, 1)
    with laptime.record(
        {"maker": maker, "judge": judge},
        [make, judge_step],
        out=tmp_path / "run",
        every_step=True,
        clock=clock,
    ) as recording:
        for real in recording.steps([torch.randn(3, 8)] * 3):
            fake = maker(torch.randn(3, 4))
            judge_step.zero_grad()
            (bce(judge(real), ones) + bce(judge(fake.detach()), zeros)).backward()
            judge_step.step()
            make.zero_grad()
            bce(judge(fake), ones).backward()
            make.step()
    run = recording.run
    assert [layer.name for layer in run.network] == ["maker.0", "judge.0"]
    assert [row["seconds"] for row in rows(run, layer="maker.0", phase="forward")] == pytest.approx([1.0] * 3)
    assert [row["seconds"] for row in rows(run, layer="judge.0", phase="forward")] == pytest.approx(
        [30.0] * 3
    )
    assert {row["calls"] for row in rows(run, layer="judge.0", phase="forward")} == {3}
    assert [step.optimizer_step for step in run.steps] == [1, 2, 3]


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_charges_recomputation_to_the_backward_of_its_layer(reentrant, tmp_path):
    clock = FakeClock()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(8, 8)
            self.inner = nn.Sequential(
                nn.Linear(8, 8), Tick(clock, 1.0), nn.Linear(8, 8), Tick(clock, 2.0), nn.Tanh()
            )
            self.after = nn.Linear(8, 5)

        def forward(self, x):
            return self.after(checkpoint(self.inner, self.before(x), use_reentrant=reentrant))

    network = Checkpointed()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)
    for layer, seconds in (("inner.0", 1.0), ("inner.2", 2.0)):
        for phase in ("forward", "backward"):
            found = rows(recording.run, layer=layer, phase=phase)
            assert [row["seconds"] for row in found] == pytest.approx([seconds] * 3), (layer, phase)
    for layer in ("before", "after"):
        assert sum(row["seconds"] for row in rows(recording.run, layer=layer)) == pytest.approx(0)


def test_autocast_with_a_gradient_scaler(tmp_path):
    network = Net()
    optimizer = sgd(network)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, y in recording.steps(batches(3)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(network(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert all(step.update_s > 0 and step.backward_s > 0 for step in recording.run.steps)
    assert recording.run.summary["named_share"] > 0.98


def test_a_closure_is_not_charged_to_the_update(tmp_path):
    clock = FakeClock()
    network = nn.Sequential(nn.Linear(8, 5), Tick(clock, 1.0))
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=3)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for x, y in recording.steps(batches(2)):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                clock.advance(0.5)
                loss = F.cross_entropy(network(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    for step in recording.run.steps:
        assert step.update_s == 0
        assert step.forward_s == pytest.approx(2 * step.host_s)
        assert step.host_s >= 0.5


def test_a_gradient_penalty_inside_the_loss_is_backward_then_loss_again(tmp_path):
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, _ in recording.steps(batches(3)):
            x.requires_grad_()
            score = network(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            (score.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for step in recording.run.steps:
        assert step.loss_s > 0
        assert step.backward_s > 0


def test_a_module_used_twice_has_two_calls_and_its_tied_weight_one_owner(tmp_path):
    from tests.measure.cases import Twice, tokens

    network = Twice()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for _ in recording.steps(range(3)):
            F.cross_entropy(network(tokens()), torch.zeros(2, dtype=torch.long)).backward()
            optimizer.step()
    layers = {layer.name: layer for layer in recording.run.network}
    assert {row["calls"] for row in rows(recording.run, layer="shared", phase="forward")} == {2}
    assert layers["out"].parameters == 0
    assert layers["embed"].parameters == 80
    assert sum(layer.parameters for layer in layers.values()) == sum(p.numel() for p in network.parameters())


def test_dict_batches_loader_workers_and_steps_by_hand(tmp_path):
    network = Net()
    optimizer = sgd(network)
    data = TensorDataset(torch.randn(12, 8), torch.randint(0, 5, (12,)))
    loader = DataLoader(data, batch_size=4, num_workers=2, collate_fn=_as_dict)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(loader):
            train_step(network, optimizer, (batch["x"], batch["y"]))
        for batch in loader:
            with recording.step(batch):
                train_step(network, optimizer, (batch["x"].to("cpu"), batch["y"]))
    steps = recording.run.steps
    assert [step.samples for step in steps] == [4] * 6
    assert all(step.data_wait_s > 0 for step in steps)
    assert [step.copy_s > 0 for step in steps] == [False] * 3 + [True] * 3


def _as_dict(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}


def test_an_account_can_be_named_by_hand(tmp_path):
    clock = FakeClock()
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", clock=clock) as recording:
        for batch in recording.steps(batches(2)):
            with recording.account("copy"):
                clock.advance(1.0)
            train_step(network, optimizer, batch)
        with (
            pytest.raises(RecordingError, match="no account is called 'coffee'"),
            recording.account("coffee"),
        ):
            pass
    assert [step.copy_s for step in recording.run.steps] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("values", "words"),
    [({"loss": torch.ones(3)}, "takes one number"), ({"accuracy": 1.0}, "loss, top1, topn")],
)
def test_log_refuses_what_it_cannot_keep(values, words, tmp_path):
    network = Net()
    with (
        laptime.record(network, out=tmp_path / "run") as recording,
        pytest.raises(RecordingError, match=words),
    ):
        recording.log(**values)


def test_a_retained_graph_can_run_after_the_recording(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x, y in recording.steps(batches(1)):
            loss = F.cross_entropy(network(x), y)
            loss.backward(retain_graph=True)
    marks = len(recording.timeline.owners)
    loss.backward()
    assert len(recording.timeline.owners) == marks


def test_the_network_computes_the_same_with_and_without_the_recorder(tmp_path):
    def losses(record):
        torch.manual_seed(3)
        network = Net()
        optimizer = sgd(network)
        data = batches(5)
        if not record:
            return [train_step(network, optimizer, batch).item() for batch in data]
        with laptime.record(
            network, optimizer, out=tmp_path / "run", every_step=True, kernels=[2]
        ) as recording:
            return [train_step(network, optimizer, batch).item() for batch in recording.steps(data)]

    assert losses(record=False) == losses(record=True)


def test_the_recorder_keeps_no_graph_and_no_batch_alive(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            recording.log(loss=train_step(network, optimizer, batch))
        del batch
        gc.collect()
        alive = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.grad_fn is not None]
        assert alive == []


def test_other_threads_do_not_disturb_the_books(tmp_path):
    network, other = Net(), Net()
    optimizer = sgd(network)
    stop = threading.Event()

    def elsewhere():
        while not stop.is_set():
            F.cross_entropy(other(torch.randn(4, 8).to("cpu")), torch.zeros(4, dtype=torch.long)).backward()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
            for batch in recording.steps(batches(20)):
                train_step(network, optimizer, batch)
    finally:
        stop.set()
        thread.join()
    for step in recording.run.steps:
        assert step.copy_s == 0
        assert len(rows(recording.run, step=step.step, layer="first")) == 3


def test_the_budget_leaves_most_steps_bare_when_marks_are_dear(tmp_path):
    from laptime.measure.budget import Budget

    budget = Budget(0.02)
    drawn = 0
    for _ in range(2000):
        instrumented = budget.draw()
        drawn += instrumented
        budget.observe(1.10 if instrumented else 1.0, instrumented=instrumented)
    assert budget.share == pytest.approx(0.2, abs=0.02)
    assert drawn / 2000 == pytest.approx(0.2, abs=0.05)
    assert budget.overhead().ratio == pytest.approx(1.1)


def test_the_budget_marks_most_steps_when_marks_are_cheap():
    from laptime.measure.budget import Budget

    budget = Budget(0.02)
    for _ in range(500):
        instrumented = budget.draw()
        budget.observe(1.001 if instrumented else 1.0, instrumented=instrumented)
    assert budget.share == 0.9


def test_a_fault_of_the_recorder_does_not_end_the_training(tmp_path, monkeypatch):
    from laptime.measure.books import Books

    def broken(books, raws):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Books, "close", broken)
    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run").start()
    losses = [train_step(network, optimizer, batch) for batch in recording.steps(batches(3))]
    with pytest.warns(UserWarning, match="could not be recorded"):
        recording.stop()
    assert len(losses) == 3
    assert any("please report" in note for note in recording.run.summary["notes"])
    assert hooks(network) == 0


def test_a_forward_pass_that_raises_and_is_skipped_leaves_the_rest_to_the_host(tmp_path):
    clock = FakeClock()

    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x):
            x = self.first(x)
            if x.shape[0] == 3:
                raise ValueError("out of memory")
            return self.last(x)

    network = Fragile()
    optimizer = sgd(network)
    sizes = [6, 3, 6, 3, 6]
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True, clock=clock) as recording:
        for x in recording.steps([torch.randn(size, 8) for size in sizes]):
            try:
                train_step(network, optimizer, (x, torch.zeros(len(x), dtype=torch.long)))
            except ValueError:
                clock.advance(1.0)
    assert [step.host_s for step in recording.run.steps] == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_the_thread_that_runs_the_loop_is_the_one_recorded(tmp_path):
    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run", every_step=True).start()

    def loop():
        for batch in recording.steps(batches(3)):
            train_step(network, optimizer, batch)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    recording.stop()
    assert all(step.backward_s > 0 and step.loss_s > 0 for step in recording.run.steps)


def test_a_run_directory_that_vanishes_does_not_end_the_training(tmp_path):
    import shutil

    network = Net()
    optimizer = sgd(network)
    recording = laptime.record(network, optimizer, out=tmp_path / "run").start()
    for batch in recording.steps(batches(3)):
        train_step(network, optimizer, batch)
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(UserWarning, match="no summary could be made"):
        recording.stop()
    assert hooks(network) == 0
    assert torch_is_untouched()


def test_many_forward_passes_in_one_step_cost_the_same_each(tmp_path):
    network = Net()
    with laptime.record(network, out=tmp_path / "run") as recording, recording.step():
        for _ in range(300):
            network(torch.randn(4, 8))
        assert len(recording.instruments.networks[0].division.calls) == 4  # the root and its three modules
    assert len(recording.run.steps) == 1


@pytest.mark.parametrize("kernels", [[-3], "abc", 5])
def test_steps_to_trace_are_checked(kernels, tmp_path):
    with pytest.raises(RecordingError, match="kernels="):
        laptime.record(Net(), out=tmp_path / "run", kernels=kernels)


def test_a_network_that_runs_as_copies_in_threads_is_refused(tmp_path):
    network = nn.DataParallel(Net())
    network.device_ids = [0, 1]
    with pytest.raises(RecordingError, match="DistributedDataParallel"):
        laptime.record(network, out=tmp_path / "run").start()
    assert hooks(network) == 0
    assert torch_is_untouched()


def test_copies_and_pickles_made_during_a_recording_carry_nothing_of_it(tmp_path):
    network = Net()
    with laptime.record(network, sgd(network), out=tmp_path / "run", every_step=True) as recording:
        for batch in recording.steps(batches(3)):
            train_step(network, sgd(network), batch)
            copies = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
            assert [hooks(one) for one in copies] == [0, 0]


def test_a_function_is_asked_for_its_number_when_the_books_are_closed(tmp_path):
    network = Net()
    asked = []
    with laptime.record(network, out=tmp_path / "run", every_step=True) as recording:
        for x in recording.steps([torch.randn(4, 8)] * 3):
            loss = network(x).sum()
            loss.backward()
            recording.log(loss=loss, top1=lambda: asked.append(1) or 0.25)
    assert [step.top1 for step in recording.run.steps] == [0.25] * 3
    assert len(asked) == 3


def test_without_layers_there_are_steps_and_no_layer_rows(tmp_path):
    network = Net()
    optimizer = sgd(network)
    with Recorder(network, optimizer, out=tmp_path / "run", layers=None) as recording:
        for batch in recording.steps(batches(6)):
            train_step(network, optimizer, batch)
    run = recording.run
    assert len(run.steps) == 6
    assert run.layer_table.num_rows == 0
    assert [layer.name for layer in run.network] == ["first", "last"]
    assert run.summary["named_share"] is None
    assert all(layer.total_s == 0 for layer in run.layers())
