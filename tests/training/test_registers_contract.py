"""What holds for every register of training: networks, kinds of data, optimizers, schedules, losses.

A register has an entry for each name; a configuration takes the names, those too that are entered later.
"""

from importlib import import_module

import pytest
import torch
from tools.reference.configuration import reference
from torch import nn

from laptime.errors import ConfigError
from laptime.ops.optimizers import OPTIMIZERS, UpdateRule
from laptime.training.build import build_network, goal
from laptime.training.config.reading import explain, read_config
from laptime.training.data import Data
from laptime.training.data.kinds import KINDS, FolderData
from laptime.training.networks import registry
from laptime.training.optimizers import (
    LOSSES,
    SCHEDULES,
    LossKind,
    OptimizerConfig,
    ScheduleConfig,
    ScheduleKind,
    criterion,
    factor,
    optimizer,
    settings,
)

REGISTERS = {
    "network.name": registry.entries(),
    "data.kind": KINDS,
    "optimizer.name": OPTIMIZERS,
    "schedule.name": SCHEDULES,
    "loss.name": LOSSES,
}
NAMES = [(key, name) for key, register in REGISTERS.items() for name in register]


def read(folder, *settings):
    path = folder / "a.toml"
    path.write_text('network.name = "feedforward"\n')
    return read_config(path, settings)


@pytest.mark.parametrize(("key", "name"), NAMES)
def test_a_configuration_takes_every_name(key, name, tmp_path):
    needed = {"folder": [f"data.path={tmp_path}"], "text": ["network=lstm"], "trees": ["network=recursive"]}
    config = read(tmp_path, f"{key}={name}", *needed.get(name, ())).config
    section, _, field = key.partition(".")
    assert getattr(getattr(config, section), field) == name


@pytest.mark.parametrize("key", REGISTERS)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(key, tmp_path):
    name = next(name for name in REGISTERS[key] if name.isalpha())
    with pytest.raises(ConfigError, match=f"did you mean '?{name}'?"):
        read(tmp_path, f"{key}={name}x")


def test_entries_stand_under_their_own_names():
    for key in ("data.kind", "optimizer.name", "network.name"):  # the others' entries have no name beside it
        for name, entry in REGISTERS[key].items():
            own = entry.model_fields["kind"].default if key == "data.kind" else entry.name
            assert own == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_data_is_a_documented_section_and_a_file_that_opens_it(kind):
    section = KINDS[kind]
    assert section.__doc__
    assert all(info.description for name, info in section.model_fields.items() if name != "kind")
    assert callable(import_module(f"laptime.training.data.{kind}").open_data)


def test_the_keys_that_an_entry_takes_are_keys_of_its_section():
    assert {key for name in OPTIMIZERS for key in settings(name)} <= set(OptimizerConfig.model_fields)
    assert {key for kind in SCHEDULES.values() for key in kind.settings} <= set(ScheduleConfig.model_fields)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_changes_parameters(name):
    weight = nn.Parameter(torch.ones(3))
    built = optimizer(OptimizerConfig(name=name, weight_decay=0.01), [weight])
    weight.square().sum().backward()
    built.step()
    assert (weight < 1).all()
    assert built.param_groups[0]["lr"] == OPTIMIZERS[name].learning_rate


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_starts_with_the_whole_rate_and_never_raises_it(name):
    at = factor(ScheduleConfig(name=name, every=2), updates=40, updates_per_epoch=5)
    factors = [at(update) for update in range(41)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] >= 0


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_one_number_that_is_smaller_for_better_scores(name):
    targets = torch.tensor([0, 2])
    good, bad = torch.eye(3)[targets] * 8 - 4, torch.eye(3)[targets.flip(0)] * 8 - 4
    assert criterion(name)(good, targets).shape == ()
    assert criterion(name)(good, targets) < criterion(name)(bad, targets)


# -- entries that are added at run time ----------------------------------------------------------------------


def test_a_network_entered_later_is_configured_explained_and_built(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry.entries()))

    @registry.network("two-layers", input=(64,), classes=10, data="digits", parameters=650)
    class TwoLayers(nn.Sequential):
        def __init__(self, *, num_classes: int = 10, width: int = 8) -> None:
            super().__init__(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, num_classes))

    resolved = read(tmp_path, "network.name=two-layers", "network.options.width=4")
    assert resolved.config.data.kind == "digits"
    rows = {key: (value, why) for key, value, why, _ in explain(resolved)}
    assert rows["network.options.width"] == ("4", "--set")
    entry = registry.entry("two-layers")
    made = build_network(resolved.config, entry, Data(train=[], validation=None))
    loss = goal(resolved.config, entry).judge(made, (torch.randn(2, 64), torch.tensor([1, 2]))).loss
    loss.backward()
    with pytest.raises(ConfigError, match=r"network.options.widht is unknown; did you mean width\?"):
        read(tmp_path, "network.name=two-layers", "network.options.widht=4")


def test_an_optimizer_entered_later_is_configured_explained_and_built(tmp_path, monkeypatch):
    sizes = {"state_values": 2, "passes": 16, "temporaries": 1}
    rule = UpdateRule(name="nadam", torch_class="NAdam", learning_rate=2e-3, **sizes)
    monkeypatch.setitem(OPTIMIZERS, rule.name, rule)
    resolved = read(tmp_path, "optimizer=nadam", "optimizer.betas=0.8,0.9")
    rows = {key: (value, why) for key, value, why, _ in explain(resolved)}
    assert rows["optimizer.lr"] == ("0.002", "default of nadam")
    built = optimizer(resolved.config.optimizer, [nn.Parameter(torch.ones(2))])
    assert isinstance(built, torch.optim.NAdam)
    assert built.defaults["betas"] == (0.8, 0.9)
    with pytest.raises(
        ConfigError, match=r"optimizer\.nesterov is for momentum, and optimizer.name is nadam"
    ):
        read(tmp_path, "optimizer=nadam", "optimizer.nesterov=true")
    with pytest.raises(ConfigError, match="adamw, nadam; did you mean nadam"):
        read(tmp_path, "optimizer=nadamm")
    assert "adamw, nadam |" in reference()


def test_a_schedule_and_a_loss_entered_later_are_taken(tmp_path, monkeypatch):
    half = ScheduleKind(factor=lambda config, epochs, share: 0.5, settings=("final",))
    monkeypatch.setitem(SCHEDULES, "half", half)
    monkeypatch.setitem(LOSSES, "absolute", LossKind(function="l1_loss"))
    config = read(tmp_path, "schedule=half", "loss=absolute", "schedule.final=0.1").config
    assert factor(config.schedule, updates=9, updates_per_epoch=3)(4) == 0.5
    assert criterion(config.loss.name)(torch.zeros(2, 3), torch.tensor([0, 1])) == pytest.approx(1 / 3)


def test_a_section_can_be_made_in_python_too():
    assert FolderData(path="images").kind == "folder"
    with pytest.raises(ValueError, match="one of sgd"):
        OptimizerConfig(name="addam")
