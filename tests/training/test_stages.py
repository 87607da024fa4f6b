"""Cutting a network into stages: what is computed stays the same, and the longest stage is short."""

import pytest
import torch
from torch import nn

from laptime.errors import ConfigError
from laptime.training.layer_costs import layer_costs
from laptime.training.networks.registry import build
from laptime.training.objectives import Classification
from laptime.training.stages import balanced, cut_network


class Branching(nn.Module):
    """What it computes depends on its data."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x)) if x.sum() > 0 else self.first(x)


class Auxiliary(nn.Module):
    """Another forward pass in training than in validation."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.body(x)
        return self.head(x) * 2 if self.training else self.head(x)


def equal_costs(network):
    layers = (nn.Linear, nn.Conv2d, nn.LSTM, nn.Embedding)
    return {name: 1.0 for name, module in network.named_modules() if isinstance(module, layers)}


@pytest.mark.parametrize(
    ("name", "shape"),
    [("zener4", (1, 32, 32)), ("resnet18", (3, 64, 64)), ("googlenet", (3, 64, 64)), ("lstm", (64,))],
)
def test_stages_one_after_another_compute_what_the_network_computes(name, shape):
    torch.manual_seed(0)
    network = build(name, **{"googlenet": {"aux_heads": False}}.get(name, {})).eval()
    inputs = torch.randint(256, (2, *shape)) if name == "lstm" else torch.randn(2, *shape)
    cut = cut_network(network, 2, equal_costs(network), name)
    value = inputs
    for index in range(len(cut.ends)):
        value = cut.stage(index)(value)
    torch.testing.assert_close(value, network(inputs))


def test_every_parameter_is_in_one_stage_under_the_name_it_has_in_the_network():
    network = build("resnet18")
    cut = cut_network(network, 3, equal_costs(network), "resnet18")
    names = [name for index in range(3) for name, _ in cut.stage(index).named_parameters()]
    assert sorted(names) == sorted(name for name, _ in network.named_parameters())


@pytest.mark.parametrize(
    ("seconds", "parts", "ends"),
    [
        ([1, 1, 1, 1], 2, [2, 4]),
        ([9, 1, 1, 1], 2, [1, 4]),
        ([1, 1, 1, 9], 3, [1, 3, 4]),
        ([5], 1, [1]),
        ([1, 2, 3, 4, 5, 6], 3, [3, 5, 6]),
    ],
)
def test_the_longest_part_is_as_short_as_it_can_be(seconds, parts, ends):
    assert max_part(seconds, balanced(seconds, parts)) == max_part(seconds, ends)
    assert len(balanced(seconds, parts)) == parts


def max_part(seconds, ends):
    begins = [0, *ends[:-1]]
    parts = [sum(seconds[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    assert all(end > begin for begin, end in zip(begins, ends, strict=True))
    return max(parts)


def test_a_cut_follows_the_cost_of_layers_not_their_number():
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    costs = {"0": 10.0, **{str(place): 1.0 for place in range(1, 6)}}
    assert [name for name, _ in cut_network(network, 2, costs, "net").stage(0).named_parameters()] == [
        "0.weight",
        "0.bias",
    ]


def test_costs_are_known_for_every_layer_of_a_network_that_never_ran():
    sample = (torch.randn(1, 1, 32, 32), torch.zeros(1, dtype=torch.long))
    costs = layer_costs(build("zener4"), Classification(), sample, torch.device("cpu"))
    assert {"conv1", "conv2", "fc1", "fc2"} <= costs.keys()
    assert costs["conv1"] > costs["fc2"] > 0


@pytest.mark.parametrize(
    ("network", "stages", "said"),
    [
        (Branching(), 2, "depends on its data"),
        (Auxiliary(), 2, "in training is another than in validation"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 3, "at most 2 stages, and 3 are asked for"),
    ],
)
def test_a_network_that_cannot_be_cut_is_refused_in_one_line(network, stages, said):
    with pytest.raises(ConfigError, match=said) as refused:
        cut_network(network, stages, equal_costs(network), "mine")
    assert "\n" not in str(refused.value)
    assert network.training
