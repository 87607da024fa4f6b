"""The loop: what it counts, how it goes on from a checkpoint, and how it ends."""

import os
import signal

import pytest
import torch
from torch import nn

import laptime
from laptime.errors import ConfigError, RunError, TrainingError
from laptime.runs.health import find_losses
from laptime.training import checkpoint, stop_signals
from laptime.training.build import ready
from laptime.training.config import Config, LoaderConfig
from laptime.training.data import Data
from laptime.training.device_setup import DeviceSetup
from laptime.training.loader import Batches, Order
from laptime.training.loop import TrainingLoop
from laptime.training.ranks import Ranks
from laptime.training.stop_signals import Terminated


class Net(nn.Module):
    """Two layers with dropout in between, so that a wrong random state shows."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


class Sized(nn.Module):
    """One layer of any size."""

    def __init__(self, inputs=6, outputs=3):
        super().__init__()
        self.only = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.only(x)


class Points(torch.utils.data.Dataset):
    """Points of three classes; a whole batch at once. `spoil` is called with the picks."""

    def __init__(self, count, seed, spoil=None):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        self.points = torch.randn(count, 6, generator=generator) + self.labels[:, None]
        self.spoil = spoil
        self.seen = []

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, picks):
        if self.spoil is not None:
            self.spoil(picks)
        self.seen.append(picks)
        index = torch.tensor(picks) % len(self)
        return self.points[index], self.labels[index]


def configured(**sections):
    base = {
        "network": {"name": f"{__name__}:Net"},
        "data": {"kind": "synthetic", "shape": [6], "classes": 3},
        "train": {"batch": 8, "epochs": 3, "device": "cpu"},
        "optimizer": {"name": "adam", "lr": 0.01},
        "schedule": {"name": "cosine"},
    }
    return Config(**{key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})


def data(count=40, spoil=None):
    return Data(train=Points(count, 1, spoil), validation=Points(12, 2), classes=("a", "b", "c"))


def training(out, config=None, given=None, **options):
    config = config or configured()
    place = DeviceSetup.of("cpu", Ranks())
    made = ready(config, place, given or data())
    return TrainingLoop(config, made, out=out, **options)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def losses(run, stage="train"):
    """The loss of each step, of the last attempt that took it."""
    found = {}
    for step in run.steps:
        if step.stage == stage:
            found[step.step] = step.loss
    return list(found.values())


def test_every_step_has_its_loss_accuracy_epoch_and_update(tmp_path):
    run = training(tmp_path / "run").run()
    train = [step for step in run.steps if step.stage == "train"]
    assert [step.epoch for step in train] == [0] * 5 + [1] * 5 + [2] * 5
    assert [step.optimizer_step for step in train] == list(range(1, 16))
    assert all(step.samples == 8 and 0 <= step.top1 <= step.topn == 1 for step in train)
    assert len(losses(run, "validation")) == 6
    assert (run.status, run.summary["notes"]) == ("finished", [])
    assert {row["layer"] for row in run.layer_table.to_pylist()} >= {"first", "last"}
    assert run.config["train"]["batch"] == 8
    assert run.config["samples"] == 40


def test_the_network_learns(tmp_path):
    run = training(tmp_path / "run", configured(train={"batch": 8, "epochs": 12})).run()
    assert losses(run)[-1] < 0.8 * losses(run)[0]


@pytest.mark.parametrize("stop_at", [3, 5, 7, 11])
def test_a_broken_training_goes_on_with_the_losses_of_an_unbroken_one(stop_at, tmp_path):
    whole = training(tmp_path / "whole").run()

    class Cut(Exception):
        pass

    def cut(now):
        if now.step == stop_at:
            raise Cut

    config = configured(checkpoint={"every_steps": 2})
    with pytest.raises(Cut):
        training(tmp_path / "broken", config, watch=cut).run()
    assert laptime.load(tmp_path / "broken").status == "failed"
    run = training(tmp_path / "broken", config, resume=True).run()
    assert losses(run) == losses(whole)
    assert losses(run, "validation") == losses(whole, "validation")
    assert {step.attempt for step in run.steps} == {0, 1}
    last = [step.optimizer_step for step in run.steps if step.attempt == 1 and step.stage == "train"]
    assert last[-1] == 15


def test_the_first_interrupt_ends_after_the_step_with_a_checkpoint(tmp_path):
    whole = training(tmp_path / "whole").run()
    said = []

    def interrupt(now):
        if now.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "run", watch=interrupt, say=said.append).run()
    run = laptime.load(tmp_path / "run")
    assert run.status == "interrupted"
    assert len(losses(run)) == 7
    assert "press Ctrl-C again" in said[0]
    assert losses(training(tmp_path / "run", resume=True).run()) == losses(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_that_is_delivered_twice_is_one(number, tmp_path):
    def interrupt(now):
        if now.step == 7:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    with pytest.raises(Terminated if number == signal.SIGTERM else KeyboardInterrupt):
        training(tmp_path / "run", watch=interrupt).run()
    assert laptime.load(tmp_path / "run").status == "interrupted"
    assert checkpoint.load(tmp_path / "run" / "checkpoint" / "last.pt")["counts"]["step"] == 7


def test_a_second_request_after_a_while_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_signals, "SAME_S", 0.0)

    def interrupt(now):
        if now.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "run", watch=interrupt).run()
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"batch": 4}}, "train.batch was 8 and is 4"),
        ({"train": {"batch": 8, "seed": 5}}, "train.seed was 0 and is 5"),
        ({"optimizer": {"name": "sgd", "lr": 0.01}}, "optimizer.name was adam and is sgd"),
    ],
)
def test_a_training_goes_on_only_as_what_it_was(sections, said, tmp_path):
    config = configured(train={"batch": 8, "epochs": 1})
    training(tmp_path / "run", config).run()
    with pytest.raises(TrainingError, match=said) as error:
        training(tmp_path / "run", configured(**sections), resume=True)
    assert "\n" not in str(error.value)


def test_a_training_does_not_go_on_with_other_data(tmp_path):
    training(tmp_path / "run").run()
    with pytest.raises(TrainingError, match="the number of samples was 40 and is 48"):
        training(tmp_path / "run", given=data(48), resume=True)


def test_what_may_change_is_written_into_the_run(tmp_path):
    training(tmp_path / "run", configured(train={"batch": 8, "epochs": 1})).run()
    more = configured(train={"batch": 8, "epochs": 2}, loader={"workers": 1}, checkpoint={"every": 2})
    run = training(tmp_path / "run", more, resume=True).run()
    assert (run.config["train"]["epochs"], run.config["loader"]["workers"]) == (2, 1)
    assert len(losses(run)) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outputs": 2}, "the data has 3 classes, and .* gives scores for fewer"),
        ({"inputs": 5}, "fails on the first batch, an input of shape 8x6 .*cannot be multiplied"),
    ],
)
def test_a_network_that_does_not_fit_its_first_batch_is_told_in_one_line(options, said, tmp_path):
    config = configured(network={"name": f"{__name__}:Sized", "options": options})
    with pytest.raises(ConfigError, match=said) as error:
        training(tmp_path / "run", config).run()
    assert "\n" not in str(error.value)
    assert laptime.load(tmp_path / "run").status == "failed"


def test_a_network_that_fails_later_keeps_its_own_error(tmp_path):
    def fail(now):
        if now.step == 2:
            raise IndexError("mine")

    with pytest.raises(IndexError, match="mine"):
        training(tmp_path / "run", watch=fail).run()


def test_options_that_torch_refuses_are_told_in_one_line(tmp_path):
    config = configured(network={"name": "zener4", "options": {"hidden": -4}})
    with pytest.raises(ConfigError, match=r"cannot be built .* change network.options.hidden") as error:
        training(tmp_path / "run", config)
    assert "\n" not in str(error.value)


def test_gradients_are_summed_over_steps(tmp_path):
    config = configured(train={"batch": 8, "epochs": 1, "accumulate": 2, "device": "cpu"})
    run = training(tmp_path / "run", config).run()
    # Five batches: two updates of two, and one for the last.
    assert [step.optimizer_step for step in run.steps if step.stage == "train"] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("stop_at", [5, 6, 7, 8])
def test_a_training_broken_between_two_updates_goes_on_as_an_unbroken_one(stop_at, tmp_path):
    """Gradients that wait for their update are in no checkpoint: it comes after the update."""
    config = configured(
        train={"batch": 4, "epochs": 2, "accumulate": 4}, checkpoint={"every": 0, "every_steps": 3}
    )
    whole = training(tmp_path / "whole", config).run()

    def stop(now):
        if now.step == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "broken", config, watch=stop).run()
    assert losses(training(tmp_path / "broken", config, resume=True).run()) == losses(whole)


def test_a_schedule_is_planned_over_updates_and_the_last_batches_are_applied(tmp_path):
    config = configured(train={"batch": 4, "epochs": 3, "accumulate": 4, "steps": 13})
    loop = training(tmp_path / "run", config)
    # An epoch has ten batches: three updates; three batches more are one.
    assert loop._ready.updates == 4
    updates = [step.optimizer_step for step in loop.run().steps if step.stage == "train"]
    assert updates[-4:] == [3, 3, 3, 4]


def test_a_rank_that_was_lost_after_its_last_step_validates_and_saves(tmp_path):
    config = configured(checkpoint={"every": 0})
    training(tmp_path / "run", config).run()
    last = tmp_path / "run" / checkpoint.LAST
    before = checkpoint.load(last)
    checkpoint.save(last, {**before, "counts": {**before["counts"], "best": -1.0}})
    best = (tmp_path / "run" / checkpoint.BEST).read_bytes()
    run = training(tmp_path / "run", config, rejoin=True).run()
    assert len(losses(run)) == 15
    assert checkpoint.load(last)["counts"]["attempt"] == 2
    assert (tmp_path / "run" / checkpoint.BEST).read_bytes() == best


def test_a_loss_that_is_no_number_ends_in_one_line_and_the_run_is_kept(tmp_path):
    config = configured(optimizer={"name": "sgd", "lr": 1e30})
    with pytest.raises(
        TrainingError, match=r"the loss is no number at step \d+: lower optimizer.lr"
    ) as error:
        training(tmp_path / "run", config).run()
    assert "\n" not in str(error.value)
    run = laptime.load(tmp_path / "run")
    assert run.status == "failed"
    assert len(run.steps) >= 1


def test_a_loss_that_is_no_number_can_be_lived_with(tmp_path):
    config = configured(
        optimizer={"name": "sgd", "lr": 1e30}, train={"batch": 8, "epochs": 3, "on_nan": "go-on"}
    )
    assert training(tmp_path / "run", config).run().status == "finished"


def test_a_disk_that_fills_up_costs_checkpoints_and_rows_and_the_training_goes_on(tmp_path, small_disk):
    whole = training(tmp_path / "whole").run()
    disk = small_disk()
    out = disk.path / "run"
    said, seen = [], []

    def fill(now):
        if now.step == 7:
            disk.fill()
        seen.append(now.loss)

    config = configured(checkpoint={"every_steps": 2})
    run = training(out, config, watch=fill, say=said.append).run()
    assert run.status == "finished"
    assert len(seen) == 15  # training steps
    failed = [line for line in said if "checkpoint could not be written" in line]
    assert failed == [
        "a checkpoint could not be written (No space left on device); training goes on, the one before stays"
    ]
    assert run.health.failed_checkpoints >= 4
    assert find_losses(run).lost["steps"] == 21 - len(run.steps) > 0
    assert said[-1] == f"{out}: {21 - len(run.steps)} of 21 steps were lost: the disk was full"
    assert checkpoint.load(out / "checkpoint" / "last.pt")["counts"]["step"] == 6
    disk.free()
    assert losses(training(out, config, resume=True).run()) == losses(whole)


def test_a_disk_that_is_full_from_the_first_checkpoint_on_ends_nothing(tmp_path, small_disk):
    disk = small_disk()
    said = []
    made = training(disk.path / "run", say=said.append)
    made._watch = lambda now: disk.fill() if now.step == 1 else None
    run = made.run()
    assert run.status == "finished"
    assert any("training goes on, there is none" in line for line in said)
    assert not (disk.path / "run" / "checkpoint" / "last.pt").exists()


def test_a_loader_worker_that_dies_is_told_in_one_line(tmp_path):
    def die(picks):
        if torch.utils.data.get_worker_info() is not None:
            os._exit(3)

    config = configured(loader={"workers": 1})
    with pytest.raises(TrainingError, match="a loader worker died") as error:
        training(tmp_path / "run", config, data(spoil=die)).run()
    assert "\n" not in str(error.value)
    assert laptime.load(tmp_path / "run").status == "failed"


def test_memory_that_is_not_there_is_told_with_a_smaller_batch(tmp_path):
    def exhaust(picks):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    with pytest.raises(
        TrainingError, match=r"batch 8 does not fit into the memory of cpu; try train.batch = 4"
    ):
        training(tmp_path / "run", given=data(spoil=exhaust)).run()


def test_workers_bring_the_same_batches_as_the_training_process(tmp_path):
    alone = training(tmp_path / "alone").run()
    helped = training(tmp_path / "helped", configured(loader={"workers": 2})).run()
    assert losses(helped) == losses(alone)


def test_the_best_state_is_kept_beside_the_last(tmp_path):
    training(tmp_path / "run").run()
    folder = tmp_path / "run" / "checkpoint"
    last, best = (checkpoint.load(folder / name) for name in ("last.pt", "best.pt"))
    assert last["counts"]["epoch"] == 3
    assert best["counts"]["epoch"] <= 3
    assert last["counts"]["step"] == 15


def test_a_checkpoint_of_another_network_is_refused_in_one_line(tmp_path):
    training(tmp_path / "run").run()
    other = configured(network={"name": "torch.nn:Linear", "options": {"in_features": 6, "out_features": 3}})
    with pytest.raises(TrainingError, match=r"network.name was .*Net and is torch.nn:Linear") as error:
        training(tmp_path / "run", other, resume=True)
    assert "\n" not in str(error.value)


def test_a_checkpoint_that_is_damaged_or_missing_is_told_in_one_line(tmp_path):
    with pytest.raises(TrainingError, match="there is no checkpoint"):
        training(tmp_path / "run", resume=True)
    training(tmp_path / "run").run()
    file = tmp_path / "run" / "checkpoint" / "last.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(TrainingError, match="cannot be read"):
        training(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "settings",
    [{"precision": "bf16"}, {"clip": 0.1}, {"channels_last": True}, {"steps": 4}],
    ids=lambda one: next(iter(one)),
)
def test_ways_to_train(settings, tmp_path):
    config = configured(train={"batch": 8, "epochs": 1, "device": "cpu"} | settings)
    run = training(tmp_path / "run", config).run()
    assert run.status == "finished"
    assert len(losses(run)) == settings.get("steps", 5)


def test_without_profiling_steps_and_accounts_are_kept_and_layers_left_out(tmp_path):
    run = training(tmp_path / "run", configured(record={"profile": False})).run()
    assert len(losses(run)) == 15
    assert not [row for row in run.layer_table.to_pylist() if row["step"] > 1]


def test_a_finished_run_is_not_written_over(tmp_path):
    training(tmp_path / "run").run()
    with pytest.raises(RunError):
        training(tmp_path / "run").run()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_follows_without_a_pause_and_in_its_own_order(workers):
    def batches(epochs):
        order = Order(20, 6, seed=3, shuffle=True, drop_last=False, epochs=epochs)
        return Batches(Points(20, 1), order, LoaderConfig(workers=workers), torch.device("cpu"))

    def labels(found):
        return [batch[0].tolist() for batch in found]

    through, apart = batches(3), batches(0)
    try:
        assert [labels(through.epoch(epoch)) for epoch in range(3)] == [
            labels(apart.epoch(epoch)) for epoch in range(3)
        ]
        # Broken off in the middle and taken up elsewhere, as by a checkpoint.
        next(through.epoch(1))
        assert labels(through.epoch(1, first=2)) == labels(apart.epoch(1))[2:]
    finally:
        through.close()
        apart.close()


def test_workers_begin_with_an_epoch_before_the_one_before_it_has_ended():
    order = Order(20, 5, seed=3, shuffle=True, drop_last=False, epochs=2)
    picked = []
    inner = order.__iter__
    order.__class__ = type("Watched", (Order,), {"__iter__": lambda self: _noted(inner(), picked)})
    made = Batches(Points(20, 1), order, LoaderConfig(workers=1, prefetch=3), torch.device("cpu"))
    try:
        first = made.epoch(0)
        for _ in range(3):
            next(first)
        assert len(picked) > order.batches
    finally:
        made.close()


def _noted(batches, picked):
    for batch in batches:
        picked.append(batch)
        yield batch


def test_the_best_loss_so_far_is_known_after_a_resume(tmp_path):
    training(tmp_path / "run").run()
    states = [checkpoint.load(tmp_path / "run" / "checkpoint" / name) for name in ("last.pt", "best.pt")]
    best = {state["counts"]["best"] for state in states}
    assert len(best) == 1
    assert best.pop() < float("inf")
