"""Which steps of a short run have layer times, and what the run says of its network and of their cost."""

import torch
from torch import nn

import laptime
from laptime.model import Stage
from laptime.recorder.arguments import class_names
from tests.recorder.loops import Net, batches, sgd, train_step


def record(out, **options):
    network = Net()
    optimizer = sgd(network)
    with laptime.record(network, optimizer, out=out, **options) as recording:
        for batch in recording.steps(batches(4)):
            train_step(network, optimizer, batch)
        network.eval()
        with torch.no_grad():
            for x, _ in recording.steps(batches(4), stage="validation"):
                network(x)
        network.train()
    return recording.run


def marked(run, stage):
    return [step.step for step in run.steps if step.instrumented and step.stage is stage]


def test_the_second_and_third_step_of_each_stage_are_marked(tmp_path):
    run = record(tmp_path / "run", budget=0.0001)
    assert marked(run, Stage.TRAIN) == [0, 1, 2]  # the layers are found in the first
    assert marked(run, Stage.VALIDATION) == [5, 6]
    assert run.layers().skipped == 1
    assert run.layers()["first"].forward.count == 2


def test_a_run_without_layers_has_no_marked_step_after_the_first(tmp_path):
    assert marked(record(tmp_path / "run", layers=None), Stage.TRAIN) == [0]


def test_a_run_says_what_its_layer_times_cost_it_as_a_whole(tmp_path):
    told = record(tmp_path / "run", budget=0.0001).summary["budget"]
    assert told["marked_share"] == 2 / 3  # of the steps after the first
    assert told["paid"] > 0
    assert told["paid_how"] == "estimated"


def test_a_run_is_called_by_the_class_of_its_network_unless_it_was_given_a_name(tmp_path):
    assert record(tmp_path / "a").config["network"] == "Net"
    assert record(tmp_path / "b", config={"network": "mine"}).config["network"] == "mine"
    assert "network" not in record(tmp_path / "c", config={"target": "zoo"}).config


def test_several_networks_are_called_by_their_classes_and_wrappers_by_what_they_hold():
    pair = [nn.DataParallel(Net()), nn.Linear(1, 1), Net()]
    assert class_names(pair) == "Net + Linear"
    assert class_names([]) == ""
