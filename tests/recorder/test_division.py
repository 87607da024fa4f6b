"""The division of networks into layers: four granularities, one owner to each parameter, unique names."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import laptime
from laptime.errors import UnknownGranularity
from tests.recorder.cases import CASES, Recurrent, tokens
from tests.recorder.loops import hooks, rows, torch_is_untouched

CASE = {case.name: case for case in CASES}


class Encoder(nn.Module):
    """torch's own transformer encoder: attention whose output projection is never called."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


NETWORKS = {
    "googlenet": (CASE["googlenet"].build, CASE["googlenet"].batch),
    "resnet50": (CASE["resnet50"].build, CASE["resnet50"].batch),
    "gpt2": (CASE["gpt2"].build, tokens),
    "bert": (CASE["bert"].build, tokens),
    "encoder": (Encoder, tokens),
    "rnn": (lambda: Recurrent(nn.RNN), tokens),
}


def total(output):
    """A number to run backward from, whatever a network returns."""
    if isinstance(output, torch.Tensor):
        return output.float().sum()
    values = output.values() if isinstance(output, dict) else output
    return sum(total(value) for value in values if isinstance(value, torch.Tensor | tuple | dict))


def divided(tmp_path, network, *batches, layers="layer", name="run"):
    """Record a training step per batch, layers on every step."""
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.01)
    with laptime.record(network, optimizer, out=tmp_path / name, every_step=True, layers=layers) as recording:
        for batch in recording.steps(batches):
            loss = total(network(batch))
            if loss.requires_grad:
                loss.backward()
                optimizer.step()
    assert hooks(network) == 0
    assert torch_is_untouched()
    return recording.run


def names(run):
    return [layer.name for layer in run.network]


def owned(run):
    return sum(layer.parameters for layer in run.network)


def size(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("layers", ["layer", "module", 0, 1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_names_are_unique_and_every_parameter_has_one_owner(name, layers, tmp_path):
    build, batch = NETWORKS[name]
    network = build()
    run = divided(tmp_path, network, batch(), batch(), layers=layers)
    assert len(set(names(run))) == len(names(run))
    assert owned(run) == size(network)
    assert {row["layer"] for row in rows(run)} <= {*names(run), "(loss)", "(other)"}
    assert run.summary["named_share"] > 0.98
    if layers == 0:
        assert len(run.network) == 1


def test_googlenet_by_depth_is_the_thesis_table(tmp_path):
    build, batch = NETWORKS["googlenet"]
    run = divided(tmp_path, build(), batch(), layers=1)
    inceptions = [name for name in names(run) if name.startswith("inception")]
    assert len(inceptions) == 9
    assert names(run).index(inceptions[0]) < names(run).index(inceptions[-1])


def test_layers_of_resnet_are_its_convolutions_and_its_classifier(tmp_path):
    build, batch = NETWORKS["resnet50"]
    run = divided(tmp_path, build(), batch())
    assert len(run.network) == 54
    assert {layer.kind for layer in run.network} == {"Conv2d", "Linear"}


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_layers_of_transformers_are_their_embeddings_and_projections(name, tmp_path):
    build, batch = NETWORKS[name]
    run = divided(tmp_path, build(), batch())
    assert {layer.kind for layer in run.network} <= {"Embedding", "Conv1D", "Linear"}
    blocks = [layer.name for layer in run.network if ".0." in layer.name]
    assert len(blocks) == len([layer.name for layer in run.network if ".1." in layer.name]) >= 4


def test_a_projection_that_is_never_called_goes_to_its_nearest_called_ancestor(tmp_path):
    network = Encoder()
    run = divided(tmp_path, network, tokens())
    attention = {layer.name: layer for layer in run.network}["encoder.layers.0.self_attn"]
    assert attention.kind == "MultiheadAttention"
    assert attention.parameters >= size(network.encoder.layers[0].self_attn)
    assert not any("out_proj" in name for name in names(run))


def test_a_recurrent_module_is_one_layer(tmp_path):
    run = divided(tmp_path, Recurrent(nn.LSTM), tokens())
    assert names(run) == ["embed", "recur", "head"]


class Odd(nn.Module):
    """Parameters in every place that a division could overlook."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))  # owned by the root, one dimension
        self.mix = nn.Parameter(torch.eye(8))  # owned by the root, two dimensions
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8)])])
        self.named = nn.ModuleDict({"one": nn.Linear(8, 8)})
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(8, 8))])
        self.unused = nn.Linear(8, 8)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared  # one module under two paths
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.shared.weight
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.norm(x) * self.scale
        x = self.blocks[1][0](self.blocks[0](x)) @ self.mix
        x = self.named["one"](x) @ self.extra[0]
        return self.tied(self.again(self.shared(x)))


@pytest.mark.parametrize("layers", ["layer", "module", 0, 1, 2, {"both": ["shared", "tied"]}])
def test_parameters_in_odd_places_have_one_owner_each(layers, tmp_path):
    network = Odd()
    x = torch.randn(3, 8)
    run = divided(tmp_path, network, x, x, layers=layers)
    assert owned(run) == size(network)
    assert len(set(names(run))) == len(names(run))


def test_a_module_under_two_paths_is_one_layer_and_a_tied_weight_its_first_users(tmp_path):
    run = divided(tmp_path, Odd(), torch.randn(3, 8))
    layers = {layer.name: layer for layer in run.network}
    assert "again" not in layers
    assert layers["shared"].parameters == 72
    assert layers["tied"].parameters == 0
    assert {row["calls"] for row in rows(run, layer="shared", phase="forward")} == {2}


class Deep(nn.Module):
    """Leaves out its middle layer at random, as stochastic depth does, and its second head in evaluation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.last = nn.Linear(8, 5)
        self.auxiliary = nn.Linear(8, 5)
        self.skip = True

    def forward(self, x):
        x = self.first(x)
        x = x if self.skip else self.middle(x)
        out = self.last(x)
        return out + self.auxiliary(x) if self.training else out


def test_a_layer_that_is_first_called_in_a_later_step_becomes_a_layer_then(tmp_path):
    network = Deep()
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for number in recording.steps(range(6)):
            network.skip = number < 3
            network(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    run = recording.run
    assert set(names(run)) == {"first", "middle.0", "last", "auxiliary"}
    assert owned(run) == size(network)
    assert {row["step"] for row in rows(run, layer="middle.0", phase="forward")} == {3, 4, 5}
    assert {row["step"] for row in rows(run, layer="middle.0", phase="backward")} == {3, 4, 5}


def test_an_auxiliary_head_is_found_after_a_first_pass_in_evaluation_mode(tmp_path):
    network = Deep()
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for number in recording.steps(range(5)):
            network.train(number >= 2)
            network(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    assert {row["step"] for row in rows(recording.run, layer="auxiliary", phase="forward")} == {2, 3, 4}
    assert owned(recording.run) == size(network)


def test_a_mapping_names_groups_and_leaves_the_rest_to_them(tmp_path):
    build, batch = NETWORKS["gpt2"]
    network = build()
    mapping = {
        "embeddings": ["transformer.wte", "transformer.wpe"],
        "blocks": "transformer.h.0",
        "head": "lm_head",
    }
    run = divided(tmp_path, network, batch(), batch(), layers=mapping)
    assert names(run) == ["embeddings", "blocks", "head"]
    assert owned(run) == size(network)
    assert len(rows(run, layer="embeddings", phase="forward", step=1)) == 1


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("modules", r"layers='modules' is not known; use 'layer', 'module'"),
        (-1, "a depth counts from 0"),
        (True, "not a bool"),
        (2.5, "is not known"),
        ({"stem": "frist"}, r"layers\['stem'\].*did you mean 'first'"),
        ({"stem": ["first", "zzz"]}, r"no module 'zzz'; print\(network\)"),
    ],
)
def test_a_wrong_granularity_is_told_in_one_line(layers, words, tmp_path):
    with pytest.raises(UnknownGranularity, match=words) as caught:
        laptime.record(Deep(), out=tmp_path / "run", layers=layers).start()
    assert "\n" not in str(caught.value)
    assert torch_is_untouched()


def test_names_with_commas_quotes_newlines_and_html_are_kept(tmp_path):
    odd = ["a,b", 'c"d', "<b>e</b>", "f\ng", "ü–∑", "(loss)", ""]
    network = nn.Sequential()
    for name in odd[:-1]:
        network.add_module(name, nn.Linear(8, 8))
    run = divided(tmp_path, network, torch.randn(3, 8))
    assert names(run) == odd[:-1]
    assert len(rows(run, layer="f\ng", phase="forward")) == 1


class Parts(nn.Module):
    """Never called itself; with a criterion and a metric among its modules."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 5)
        self.late = nn.Sequential(nn.Linear(8, 5))
        self.criterion = nn.CrossEntropyLoss()
        self.metric = nn.Identity()

    def loss(self, x, head):
        out = head(torch.tanh(self.body(x)))
        self.metric(out)
        return self.criterion(out, torch.zeros(len(x), dtype=torch.long))


@pytest.mark.parametrize("every_step", [True, False])
@pytest.mark.parametrize("layers", ["layer", "module"])
def test_parts_that_are_called_by_themselves_are_found_also_late(layers, every_step, tmp_path):
    network = Parts()
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    options = {"out": tmp_path / "run", "every_step": every_step, "layers": layers}
    with laptime.record(network, optimizer, **options) as recording:
        for number in recording.steps(range(40)):
            network.loss(torch.randn(3, 8), network.head if number < 20 else network.late).backward()
            optimizer.step()
    run = recording.run
    assert owned(run) == size(network)
    assert run.summary["notes"] == []
    assert all(step.forward_s > 0 and step.loss_s > 0 for step in run.steps)
    assert {"criterion", "metric"}.isdisjoint(names(run))
    late = {row["step"] for row in rows(run, layer="late.0", phase="backward")}
    assert late <= set(range(20, 40))
    assert len(late) == 20 or not every_step
    assert {row["phase"] for row in rows(run, layer="body.0")} == {"forward", "backward", "update"}
    assert run.summary["named_share"] > 0.98


def test_a_part_called_like_its_network_is_named_after_both_when_another_joins(tmp_path):
    encoder = nn.Sequential(OrderedDict(encoder=nn.Linear(4, 4), head=nn.Linear(4, 4)))
    with laptime.record({"encoder": encoder}, out=tmp_path / "run") as recording:
        recording.add_network("decoder", nn.Sequential(nn.Linear(4, 4)))
        names = [unit.name for unit in recording.hooks.units if unit.candidate]
    assert names == ["encoder.encoder", "encoder.head", "decoder.0"]


def test_two_networks_may_share_a_part(tmp_path):
    body = nn.Linear(8, 8)
    networks = {name: nn.Sequential(body, nn.Linear(8, 5)) for name in ("one", "two")}
    optimizer = torch.optim.SGD(nn.ModuleList(networks.values()).parameters(), 0.01)
    with laptime.record(networks, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for _ in recording.steps(range(3)):
            sum(network(torch.randn(3, 8)).sum() for network in networks.values()).backward()
            optimizer.step()
    run = recording.run
    assert names(run) == ["one.0", "one.1", "two.1"]
    assert {row["calls"] for row in rows(run, layer="one.0", phase="forward")} == {2}
    assert owned(run) == size(body) + sum(size(network[1]) for network in networks.values())
