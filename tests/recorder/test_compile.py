"""torch.compile: a compiled region is one named unit, labelled as such, and its graph is left alone."""

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import laptime
from laptime.recorder.backends import FakeClock

# Dynamo looks at .grad of whatever enters a graph and hides the warning, which an error filter defeats.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.one = nn.Linear(width, width)
        self.two = nn.Linear(width, width)

    def forward(self, x):
        return x + self.two(torch.relu(self.one(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.block = Block()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(network, optimizer, out, steps=4, **options):
    with laptime.record(network, optimizer, out=out, every_step=True, **options) as recording:
        for x in recording.steps([torch.randn(4, 8)] * steps):
            F.cross_entropy(network(x), torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recording.run


def phases(run, layer):
    return {row["phase"] for row in run.layer_table.to_pylist() if row["layer"] == layer}


def test_a_compiled_network_is_one_unit_that_says_so(tmp_path):
    network = Net()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    run = train(compiled, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run")
    (layer,) = run.network
    assert (layer.name, layer.kind, layer.compiled) == ("(Net)", "compiled Net", True)
    assert layer.parameters == sum(p.numel() for p in network.parameters())
    assert phases(run, "(Net)") == {"forward", "backward", "update"}
    assert run.summary["named_share"] > 0.98
    assert any("compiled" in note for note in run.summary["notes"])


def test_a_compiled_block_is_a_unit_among_eager_layers(tmp_path):
    network = Net()
    network.block = torch.compile(network.block, backend="aot_eager", fullgraph=True)
    run = train(network, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run")
    assert [(layer.name, layer.compiled) for layer in run.network] == [
        ("stem", False),
        ("block", True),
        ("head", False),
    ]
    for layer in ("stem", "block", "head"):
        assert phases(run, layer) == {"forward", "backward", "update"}


def test_a_module_compiled_in_place_is_a_unit_too(tmp_path):
    network = Net()
    network.block.compile(backend="aot_eager", fullgraph=True)
    run = train(network, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run")
    assert [(layer.name, layer.compiled) for layer in run.network] == [
        ("stem", False),
        ("block", True),
        ("head", False),
    ]
    assert phases(run, "block") == {"forward", "backward", "update"}


def test_a_whole_network_compiled_in_place(tmp_path):
    network = Net()
    network.compile(backend="aot_eager", fullgraph=True)
    run = train(network, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run")
    assert [layer.kind for layer in run.network] == ["compiled Net"]
    assert phases(run, "(Net)") == {"forward", "backward", "update"}


def test_compiling_under_a_recording_breaks_no_graph(tmp_path):
    """The loss, the copy and the network are compiled together while every wrapper of ours is in place."""
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(x, y):
        return F.cross_entropy(network(x.to(torch.float32)), y)

    with laptime.record(network, optimizer, out=tmp_path / "run", every_step=True) as recording:
        for x in recording.steps([torch.randn(4, 8)] * 3):
            loss_of(x, torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()
    assert len(recording.run.steps) == 3
    assert any("without a call of the network" in note for note in recording.run.summary["notes"])


def test_a_recording_causes_no_recompilation(tmp_path):
    network = Net()
    compiled = torch.compile(network, backend="aot_eager")
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    x = torch.randn(4, 8)
    compiled(x).sum().backward()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    train(compiled, optimizer, tmp_path / "run")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_time_around_a_compiled_block_goes_to_its_neighbours(tmp_path):
    clock = FakeClock()
    network = Net()
    forward = network.head.forward

    def slow(x):
        clock.advance(1.0)
        return forward(x)

    network.head.forward = slow
    network.block = torch.compile(network.block, backend="aot_eager")
    run = train(network, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run", clock=clock)
    seconds = {
        (row["layer"], row["phase"]): row["seconds"]
        for row in run.layer_table.to_pylist()
        if row["step"] == 2
    }
    assert seconds["head", "forward"] == pytest.approx(1.0)
    assert seconds["block", "forward"] == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_the_default_compiler_works_as_well(tmp_path):
    network = Net()
    compiled = torch.compile(network)
    run = train(compiled, torch.optim.SGD(network.parameters(), 0.1), tmp_path / "run")
    assert phases(run, "(Net)") == {"forward", "backward", "update"}
