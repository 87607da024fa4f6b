"""The recorder on ordinary loops: their steps, their accounts, how they end."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laptime
from laptime.model import Stage
from laptime.recorder.backends import FakeClock
from laptime.recorder.recorder import Recorder
from tests.recorder.loops import Net, Tick, batches, hooks, rows, sgd, torch_is_untouched, train_step


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


def test_recordings_one_after_the_other_are_fine(tmp_path):
    network = Net()
    optimizer = sgd(network)
    for name in ("one", "two"):
        with laptime.record(network, optimizer, out=tmp_path / name) as recording:
            for batch in recording.steps(batches(2)):
                train_step(network, optimizer, batch)
        assert len(recording.run.steps) == 2


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
    assert any("without a call of the network" in note for note in recording.run.summary["notes"])


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
        with pytest.warns(UserWarning, match="no account is called 'coffee'"), recording.account("coffee"):
            pass
    assert [step.copy_s for step in recording.run.steps] == pytest.approx([1.0, 1.0])


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


@pytest.mark.parametrize(("count", "kernels"), [(1, []), (12, [4]), (8, [])])
def test_the_step_time_of_the_summary_is_that_of_the_accounts(count, kernels, tmp_path):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=tmp_path / "run", kernels=kernels) as recording:
        for batch in recording.steps(batches(count)):
            train_step(network, optimizer, batch)
    run = laptime.load(tmp_path / "run")
    wall = run.accounts().wall
    assert run.summary["step_s"]["count"] == wall.count > 0
    assert run.summary["step_s"]["median"] == wall.median
