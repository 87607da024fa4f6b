"""Reading a step: FLOPs, bytes, layers, memory and CUDA's choices, without running or allocating anything."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from laptime.capture import trace
from laptime.errors import WorkloadError
from laptime.model import LOSS_LAYER, Account, Phase, Workload
from laptime.ops.rescaling import rescaled
from laptime.recorder.layer_division import Division
from laptime.training import target
from laptime.training.networks.registry import entries


def read(network, batch, **options):
    division = Division(network, granularity="layer", network=0, prefix="", first=0)
    batch = batch if isinstance(batch, tuple | dict) else (batch,)
    return trace(network, batch, division=division, **options)


def counted(network, x, *, backward=True):
    with FlopCounterMode(display=False) as counter:
        output = network(x)
        if not backward:
            return counter.get_total_flops()
        scores = output[0] if isinstance(output, tuple | list) else output
        F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=x.device)).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["alexnet", "vgg11", "resnet18", "resnet50", "zener7", "fcn5"])
def test_flops_are_those_that_torch_counts(name):
    shape = entries()[name].input
    with torch.device("meta"):
        network = target.network(name)
        x = torch.empty(4, *shape)
    assert read(network, x).flops == counted(network.train(), x)


CONVOLUTIONS = {
    "plain": nn.Conv2d(8, 6, 3),
    "transposed": nn.ConvTranspose2d(8, 4, 4, stride=2),
    "dilated": nn.Conv2d(8, 6, 3, dilation=2),
    "one-sided": nn.Conv2d(8, 6, (1, 5)),
    "grouped": nn.Conv2d(8, 16, 3, groups=4, padding=1),
    "depthwise": nn.Conv2d(8, 8, 3, groups=8, stride=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_flops_of_every_kind_of_convolution(name):
    network, x = nn.Sequential(CONVOLUTIONS[name], nn.Flatten()), torch.randn(2, 8, 12, 12)
    found = read(network, x)
    forward = sum(one.flops for one in found.phase(Phase.FORWARD))
    assert forward == counted(network, x, backward=False)
    # The gradient of the weights alone: torch's counter forgets the groups there (2.13).
    assert found.flops == 2 * forward
    if CONVOLUTIONS[name].groups == 1:
        assert found.flops == counted(network, x)


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.options = options

    def forward(self, x):
        q, k, v = self.project(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **self.options).flatten(1)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.1}, {"is_causal": True}], ids=str)
def test_attention_is_one_operation_each_way(options):
    found = read(Attention(**options), torch.randn(2, 16, 32))
    forward, backward = (
        [one for one in found.operations if one.kind == kind] for kind in ("attention", "attention_backward")
    )
    shape = (2, 4, 16, 8)
    assert [one.flops for one in forward] == [sdpa_flop_count(shape, shape, shape)]
    assert [one.flops for one in backward] == [sdpa_backward_flop_count(shape, shape, shape, shape)]


def test_recurrent_layers_and_dropout_are_one_operation_as_on_a_gpu():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(8, 16, 2, batch_first=True), nn.GRU(16, 8, bidirectional=True)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.gru(self.lstm(x)[0])[0]).mean(1)

    found = read(Net(), torch.randn(5, 7, 8))
    recurrent = [one for one in found.operations if one.kind == "recurrent"]
    assert [(one.sizes["b"], one.sizes["s"], one.sizes["gates"]) for one in recurrent] == [
        (5, 7, 4),
        (7, 5, 3),
    ]
    assert [one.name for one in found.operations if "dropout" in one.name] == [
        "aten.native_dropout",
        "aten.native_dropout_backward",
    ]
    assert not found.uncovered


def test_autocast_follows_cudas_lists():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16))
    network(torch.randn(2, 3, 8, 8))
    network.append(nn.LayerNorm(16)).append(nn.Softmax(-1))
    found = {}
    for one in read(network, torch.randn(2, 3, 8, 8), precision="bf16").phase(Phase.FORWARD):
        found.setdefault(one.name.removeprefix("aten."), one.dtype)
    assert found["convolution"] == found["addmm"] == found["native_batch_norm"] == "bfloat16"
    assert found["native_layer_norm"] == found["_softmax"] == "float32"


IMAGES = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(72, 4),
)
KINDS_OF_IMAGES = ("convolution", "batch_norm", "pool")


@pytest.mark.parametrize("which", ["network", "images"])
def test_channels_side_by_side_are_told_of_every_operation_that_has_kernels_for_them(which):
    network, x = copy.deepcopy(IMAGES), torch.randn(2, 3, 16, 16)
    if which == "network":
        network = network.to(memory_format=torch.channels_last)
    else:
        x = x.to(memory_format=torch.channels_last)
    found = [one for one in read(network, x).operations if one.kind.startswith(KINDS_OF_IMAGES)]
    assert {one.kind for one in found} == {
        kind + way for kind in KINDS_OF_IMAGES for way in ("", "_backward")
    }
    assert {one.sizes["last"] for one in found} == {1}


def test_channels_one_after_the_other_are_told_too():
    found = [
        one
        for one in read(IMAGES, torch.randn(2, 3, 16, 16)).operations
        if one.kind.startswith(KINDS_OF_IMAGES)
    ]
    assert {one.sizes["last"] for one in found} == {0}


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_low_precision_widens_without_a_copy_and_narrows_on_the_way_back(name):
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 24)

        def forward(self, x):
            return getattr(F, name)(self.linear(x), dim=-1)

    def squares(network, batch):
        return network(*batch).square().sum()

    found = read(Scores(), torch.randn(8, 16), precision="bf16", loss=squares).operations
    kinds = [one.kind for one in found]
    there, back = (found[kinds.index(kind)] for kind in ("softmax", "softmax_backward"))
    size = 8 * 24
    assert (there.name, back.name) == (f"laptime.wide_{name}", f"laptime.wide_{name}_backward")
    assert (there.dtype, there.read, there.written) == ("float32", 2 * size, 4 * size)
    assert (back.dtype, back.read, back.written) == ("bfloat16", 2 * 4 * size, 2 * size)
    assert there.sizes == back.sizes == {"r": 8, "d": 24}
    assert found[kinds.index("softmax") - 1].name == "aten.addmm"  # no copy between them


def test_cross_entropy_of_low_precision_widens_without_a_copy():
    found = read(nn.Linear(16, 24), torch.randn(8, 16), precision="bf16").operations
    loss = [one.name for one in found if one.account is Account.LOSS and one.kind != "fill"]
    assert loss == ["laptime.wide_log_softmax", "aten.nll_loss_forward"]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", ["zener7", "resnet18"])
def test_what_is_alive_while_an_operation_runs_is_within_the_peak(name, mode):
    with torch.device("meta"):
        network, x = target.network(name), torch.empty(4, *entries()[name].input)
    found = read(network, x, mode=mode)
    memory = found.memory
    alive = [one.alive for one in found.operations if one.phase is not Phase.UPDATE]
    assert all(one.alive >= one.written for one in found.operations if one.name == "aten.convolution")
    assert memory.static + memory.inputs + max(alive) <= memory.peak
    assert max(alive) >= memory.activations > 0 if mode == "training" else max(alive) > 0
    other = rescaled(found, 16)
    most = max(one.alive for one in other.operations)
    assert other.memory.static + other.memory.inputs + most <= other.memory.peak


def test_operations_belong_to_the_layer_that_takes_them_along():
    network = target.network("zener4")
    found = read(network, torch.randn(2, *entries()["zener4"].input))
    layers = list(found.layers)
    forward = [one.layer for one in found.operations if one.account is Account.FORWARD]
    of_loss = [one for one in found.operations if one.layer == LOSS_LAYER]
    backward = [one.layer for one in found.operations if one.phase is Phase.BACKWARD and one not in of_loss]
    assert sorted(set(forward), key=layers.index) == layers
    assert forward == sorted(forward, key=layers.index)
    assert backward == sorted(backward, key=layers.index, reverse=True)
    assert {one.layer for one in found.phase(Phase.UPDATE)} == set(layers)


@pytest.mark.parametrize("name", sorted(set(entries()) - {"recursive", "rbm", "dbn", "gan", "vae"}))
def test_every_network_of_the_zoo_can_be_read_and_no_operation_is_uncovered(name):
    known = entries()[name]
    with torch.device("meta"):
        network = target.network(name)
        x = torch.zeros(2, *known.input, dtype=torch.long if known.ids else torch.float32)
    found = read(network, x, precision="bf16")
    assert found.parameters == sum(one.numel() for one in network.parameters())
    assert not found.uncovered


def test_a_network_of_eight_billion_parameters_is_read_without_allocating_it():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(  # few layers, of 70 billion: reading takes time by their number
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=7,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        network = transformers.LlamaForCausalLM(config)
        ids = torch.zeros(1, 512, dtype=torch.long)
    found = read(network, {"input_ids": ids, "labels": ids}, precision="bf16", optimizer="adamw")
    assert found.parameters == pytest.approx(8.09e9, rel=0.01)
    assert found.flops == pytest.approx(6 * 7.04e9 * 512, rel=0.1)  # embeddings multiply nothing
    assert found.memory.state == 8 * found.parameters
    assert sum(found.uncovered.values()) < 0.01


def test_the_network_is_left_as_it_was():
    network = target.network("zener4").eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    kept = list(network.parameters())
    read(network, torch.randn(2, *entries()["zener4"].input))
    assert not network.training
    assert all(a is b for a, b in zip(kept, network.parameters(), strict=True))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(one.grad is None for one in network.parameters())


def test_attention_of_the_cpu_is_its_own_again_afterwards():
    q = torch.randn(1, 2, 4, 8)
    expected = (q @ q.transpose(-1, -2) / 8**0.5).softmax(-1) @ q
    read(Attention(), torch.randn(2, 16, 32))
    torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), expected)
    assert torch.nn.functional.dropout(torch.ones(1000), 0.5).count_nonzero() < 900


def test_what_looks_at_values_is_told_in_one_line():
    class Curious(nn.Linear):
        def forward(self, x):
            return super().forward(x)[: int(x.argmax().item())]

    with pytest.raises(WorkloadError, match="looks at values") as told:
        read(Curious(4, 4), torch.randn(2, 4))
    assert "\n" not in str(told.value)


def test_a_check_of_values_is_taken_for_false_and_noted():
    class Careful(nn.Linear):
        def forward(self, x):
            if torch.isnan(x).any() or torch.rand([]) < 0.1:
                raise ValueError("not a number")
            return super().forward(x)

    found = read(Careful(4, 4), torch.randn(2, 4))
    assert found.notes == ("a value that the network looked at was taken for False",)


def test_a_batch_of_the_wrong_shape_is_told_in_one_line():
    with pytest.raises(WorkloadError, match="cannot be read") as told:
        read(nn.Linear(4, 4), torch.randn(2, 5))
    assert "\n" not in str(told.value)


def test_inference_has_no_backward_pass_and_keeps_nothing():
    network, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))), torch.randn(32, 64)
    trained, used = read(network, x), read(network, x, mode="inference")
    assert {one.phase for one in used.operations} == {Phase.FORWARD}
    assert used.memory.gradients == used.memory.state == 0
    assert used.memory.peak < trained.memory.peak


def test_a_saved_workload_is_the_same_when_loaded(tmp_path):
    found = read(target.network("zener4"), torch.randn(2, *entries()["zener4"].input))
    found.save(tmp_path / "workload.json")
    assert Workload.load(tmp_path / "workload.json") == found


def test_a_workload_of_another_laptime_may_say_more_of_its_operations():
    found = read(nn.Linear(4, 4), torch.randn(2, 4))
    document = found.document()
    for one in document["operations"]:
        one["launches"] = 1
    assert Workload.of(document) == found


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"laptime_workload": 99}', '{"laptime_workload": 1}', "\0"]
)
def test_a_file_that_is_no_workload_is_told_in_one_line(content, tmp_path):
    file = tmp_path / "workload.json"
    file.write_text(content)
    with pytest.raises(WorkloadError) as told:
        Workload.load(file)
    assert "\n" not in str(told.value)
