"""Optimizers: what is known of one is what torch's keeps, and one that is not known says so."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import laptime
from laptime.cli import app
from laptime.estimate.run_correction import workload_of
from laptime.ops.optimizers import ASSUMED, OPTIMIZERS, assumed_rule, rule_of
from laptime.recorder.live_workload import update_of
from laptime.training.optimizers import OPTIMIZERS as CONFIGURED
from laptime.training.optimizers import OptimizerConfig, optimizer

every_rule = pytest.mark.parametrize("rule", OPTIMIZERS.values(), ids=lambda rule: rule.name)


@every_rule
def test_a_configuration_builds_it_and_a_recording_knows_it_again(rule):
    config = OptimizerConfig(name=rule.name)
    made = optimizer(config, [nn.Parameter(torch.ones(3))])
    assert type(made).__name__ == rule.torch_class
    assert made.defaults["lr"] == config.rate == rule.learning_rate
    assert update_of(made)[1] is None
    assert update_of(made)[0] == rule_of(rule.torch_class, momentum="momentum" in rule.settings)


@pytest.mark.parametrize("momentum", [False, True])
@every_rule
def test_it_keeps_as_many_values_as_torch_does(rule, momentum):
    if momentum and "momentum" not in rule.settings:
        pytest.skip("it has no momentum")
    parameter = nn.Parameter(torch.ones(7))
    settings = {"momentum": 0.9 * momentum} if "momentum" in rule.settings else {}
    made = getattr(torch.optim, rule.torch_class)([parameter], lr=0.1, **settings)
    rule = update_of(made)[0]
    parameter.grad = torch.ones(7)
    made.step()
    kept = [
        value for value in made.state[parameter].values() if torch.is_tensor(value) and value.numel() == 7
    ]
    assert len(kept) == rule.state_values


@pytest.mark.parametrize(("momentum", "values"), [(0.0, 1), (0.9, 2)])
def test_momentum_of_rmsprop_takes_memory_in_predictions_and_recordings(tmp_path, momentum, values):
    network = nn.Linear(4, 2)
    chosen = torch.optim.RMSprop(network.parameters(), momentum=momentum)
    read = laptime.workload(network, input=(4,), batch=5, optimizer=chosen)
    run = recorded(tmp_path / "run", lambda given: torch.optim.RMSprop(given, momentum=momentum))
    assert read.memory.state == workload_of(run).memory.state == values * 4 * read.parameters


def test_the_configuration_offers_every_optimizer():
    assert set(CONFIGURED) == set(OPTIMIZERS)


class Lion(torch.optim.Optimizer):
    """An optimizer that torch does not have."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                one -= group["lr"] * one.grad.sign()


class Slow(torch.optim.Adagrad):
    """One of torch's, changed a little."""


def recorded(out, make):
    network = nn.Linear(4, 2)
    chosen = make(network.parameters())
    with laptime.record(network, chosen, out=out) as recording:
        for _ in range(3):
            with recording.step():
                network(torch.ones(5, 4)).sum().backward()
                chosen.step()
                chosen.zero_grad()
    return recording.run


def test_an_unknown_optimizer_is_noted_in_the_workload_and_shown_by_predict(tmp_path):
    run = recorded(tmp_path / "run", Lion)
    (note,) = workload_of(run).notes
    assert note == (
        "Lion is no optimizer that laptime knows: it is counted as Adam "
        "(2 values kept for each parameter, 16 passes over all of them)"
    )
    arguments = ["predict", str(tmp_path / "run"), "--device", "h200"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"}).output
    assert "Lion is no optimizer that laptime knows" in shown
    answer = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert note in answer["predictions"][0]["notes"]


def test_a_known_optimizer_leaves_no_note(tmp_path):
    run = recorded(tmp_path / "run", torch.optim.AdamW)
    assert workload_of(run).notes == ()
    assert {one.name for one in workload_of(run).operations if one.kind == "optimizer"} == {"optimizer.adamw"}


def test_one_that_extends_torchs_is_counted_as_that_and_noted():
    made = Slow([nn.Parameter(torch.ones(3))])
    assert update_of(made) == (OPTIMIZERS["adagrad"], "Slow is counted as Adagrad, which it extends")


def test_a_wrapped_optimizer_is_known_by_what_it_wraps():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inside):
            self.optimizer = inside

    inside = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    assert update_of(Wrapper(inside)) == (OPTIMIZERS["momentum"], None)


def test_momentum_tells_two_rules_of_one_class_apart():
    assert rule_of("SGD", momentum=False) is OPTIMIZERS["sgd"]
    assert rule_of("SGD", momentum=True) is OPTIMIZERS["momentum"]
    assert rule_of("RMSprop", momentum=False) is OPTIMIZERS["rmsprop"]
    assert rule_of("RMSprop", momentum=True).name == "rmsprop"
    assert rule_of("Lion", momentum=False) is None
    assert assumed_rule(["Lion", "Optimizer"], momentum=False)[0] is ASSUMED
