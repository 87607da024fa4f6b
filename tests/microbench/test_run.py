"""Calibration runs: every kind is drawn, and is told as the reader of networks tells it."""

from collections import Counter
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from laptime.capture import trace
from laptime.microbench import Case, Sweep, SweepRow, all_families, read_rows, write_rows
from laptime.microbench.random_sizes import Draw, Supply, TooLarge
from laptime.microbench.run import HostStopwatch
from laptime.recorder.layer_division import Division

CPU = torch.device("cpu")
TINY = {"largest_s": 0.0005, "store_bytes": 1 << 22}
KINDS = {
    *("convolution", "convolution_backward", "pool", "pool_backward", "mm", "bmm", "attention"),
    *("attention_backward", "recurrent", "recurrent_backward", "batch_norm", "batch_norm_backward"),
    *("layer_norm", "layer_norm_backward", "softmax", "softmax_backward", "reduction", "elementwise"),
    *("fill", "copy", "cat", "gather", "embedding_backward", "optimizer"),
}


def supply(seed=0):
    return Supply(CPU, draw=Draw(seed), **TINY)


def drawn(family, seed=0, dtype=torch.float32):
    """A member of a family that is small enough."""
    source = supply(seed)
    for _ in range(500):
        try:
            with torch.no_grad():
                return family.make(source, dtype)
        except TooLarge:
            continue
    raise AssertionError(f"no member of {family.name} is small enough")


@pytest.mark.parametrize("family", all_families(), ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_members_of_a_family_are_single_operations_of_its_kinds(family, dtype):
    if dtype is torch.bfloat16 and not family.low:
        pytest.skip("in float32 only")
    for seed in range(12):
        with torch.no_grad():
            for case in drawn(family, seed, dtype):
                found = case.operation()
                case.call()
                assert found.covered
                assert found.kind in KINDS
                assert found.moved > 0


class Net(nn.Module):
    """Any function, with its tensors as parameters so that gradients reach all of them."""

    def __init__(self, function, *tensors):
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList(nn.Parameter(one.detach().clone()) for one in tensors)

    def forward(self, x):
        out = self.function(*self.tensors)
        return out.reshape(1, -1) * x


def read(function, *tensors):
    """The operations of a training step that does this and little else, as the reader has them."""
    return step(Net(function, *tensors), torch.ones(1, 1))


def step(network, *batch):
    division = Division(network, granularity="layer", network=0, prefix="", first=0)
    return trace(network, batch, division=division, loss=squares).operations


def squares(network, batch):
    """The sum alone would send back a gradient of one number, expanded."""
    return network(*batch).square().sum()


def told(operation):
    sizes = {name: value for name, value in operation.sizes.items() if name != "bias"}
    return operation.kind, operation.dtype, sizes, operation.flops, operation.read, operation.written


def expect(family, network, *, seeds=range(6)):
    """Every member is found in the step of a network that has it; `network` makes it from the arguments."""
    for seed in seeds:
        for case in drawn(family, seed):
            with torch.no_grad():
                mine = case.operation()
            step = network(case)
            if step is not None:
                assert told(mine) in [told(one) for one in step], (mine, [told(one) for one in step])


FAMILY = {family.name: family for family in all_families()}


def arguments(case):
    """Of torch's operation."""
    call = case.shown or case.call
    return call.args


def test_convolutions_are_told_as_a_network_s():
    def network(case):
        forward = case.kept
        x, weight = arguments(case)[:2] if forward else arguments(case)[1:3]
        bias, (s, p, _, _, _, groups) = (
            (arguments(case)[2], arguments(case)[3:9])
            if forward
            else (arguments(case)[3], arguments(case)[4:10])
        )
        to_input = forward or arguments(case)[-1][0]
        layer = nn.Conv2d(
            x.shape[1], len(weight), weight.shape[2], s[0], p[0], groups=groups, bias=bias is not None
        )
        if not to_input:
            return step(layer, x)
        return step(nn.Sequential(Scale(x.shape), layer), x)

    expect(FAMILY["convolution"], network, seeds=range(20))


class Scale(nn.Module):
    """So that a gradient is asked for at its output."""

    def __init__(self, shape):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, *shape[1:]))

    def forward(self, x):
        return x * self.scale


def test_poolings_are_told_as_a_network_s():
    def network(case):
        name = case.call.func.__name__
        forward = case.kept
        x = arguments(case)[0] if forward else arguments(case)[1]
        if "adaptive" in name:
            few = arguments(case)[1][0] if forward else arguments(case)[0].shape[-1]
            return step(nn.Sequential(Scale(x.shape), nn.AdaptiveAvgPool2d(few)), x)
        window = arguments(case)[1:4] if forward else arguments(case)[2:5]
        up = (
            arguments(case)[{True: 5, False: 6}[forward]]
            if "max" in name
            else arguments(case)[4 + (not forward)]
        )
        make = nn.MaxPool2d if "max" in name else nn.AvgPool2d
        layer = make(window[0], window[1], window[2], ceil_mode=up)
        return step(nn.Sequential(Scale(x.shape), layer), x)

    expect(FAMILY["pool"], network, seeds=range(12))


def test_a_linear_layer_s_products_are_told_as_a_network_s():
    def network(case):
        tensors = arguments(case)
        if len(tensors) == 3:
            bias, x, weight = tensors
            return read(F.linear, x, weight.t(), bias)
        return read(torch.mm, *tensors)

    expect(FAMILY["mm"], partial(_as_made, network), seeds=range(20))


def _as_made(network, case):
    """Parameters are copies, which lie in order: only what was in order can be compared."""
    tensors = arguments(case)
    transposed = [one for one in tensors if not one.is_contiguous()]
    return network(case) if not transposed or len(tensors) == 3 else None


def test_batched_products_are_told_as_a_network_s():
    expect(FAMILY["bmm"], partial(_as_made, lambda case: read(torch.bmm, *arguments(case))), seeds=range(12))


def test_attention_is_told_as_a_network_s():
    def network(case):
        given = arguments(case)
        q, k, v = given[:3] if case.kept else given[1:4]
        return read(partial(F.scaled_dot_product_attention, is_causal=given[-1]), q, k, v)

    expect(FAMILY["attention"], network)


def test_recurrent_layers_are_told_as_a_network_s():
    def network(case):
        given = arguments(case)
        x, weights = given[:2] if case.kept else given[1:3]
        gates, hidden, layers, directions = given[-4:]
        make = {4: nn.LSTM, 3: nn.GRU, 1: nn.RNN}[gates]
        assert len(weights) == 4 * layers * directions

        class Sequence(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = Scale(x.shape)
                self.layer = make(x.shape[2], hidden, layers, bidirectional=directions == 2)

            def forward(self, x):
                return self.layer(self.scale(x))[0]

        return step(Sequence(), x)

    expect(FAMILY["recurrent"], network)


def test_norms_are_told_as_a_network_s():
    def batch(case):
        x = arguments(case)[0] if case.kept else arguments(case)[1]
        return step(nn.Sequential(Scale(x.shape), nn.BatchNorm2d(x.shape[1])), x)

    def layer(case):
        x = arguments(case)[0] if case.kept else arguments(case)[1]
        return step(nn.Sequential(Scale(x.shape), nn.LayerNorm(x.shape[1])), x)

    expect(FAMILY["batch_norm"], batch)
    expect(FAMILY["layer_norm"], layer)


def test_softmax_is_told_as_a_network_s():
    def network(case):
        name = case.call.func.__name__
        return read(partial(F.log_softmax if "log" in name else F.softmax, dim=1), arguments(case)[0])

    expect(FAMILY["softmax"], network)


def test_functions_and_copies_are_told_as_a_network_s():
    def network(case):
        name, given = (case.shown or case.call).func.__name__, arguments(case)
        if name == "native_dropout":
            return read(partial(F.dropout, p=0.1), given[0])
        forward = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": F.sigmoid, "tanh": F.tanh}
        base = name.removesuffix("_backward")
        if base in forward:
            return read(forward[base], given[0])
        if name == "threshold_backward":
            return read(F.relu, given[0])
        if name in ("add", "mul", "div"):
            return read(getattr(torch, name), *given[:2])
        return None

    expect(FAMILY["elementwise"], network, seeds=range(40))
    expect(
        FAMILY["cat"],
        lambda case: read(lambda *parts: torch.cat(parts, arguments(case)[1]), *arguments(case)[0]),
    )
    expect(FAMILY["permuted"], permuted)


def permuted(case):
    x = arguments(case)[0]
    order = sorted(range(x.dim()), key=lambda dim: (-x.stride(dim), -x.shape[dim]))
    back = [order.index(dim) for dim in range(x.dim())]
    plain = x.permute(order)
    return read(lambda y: y.permute(back).contiguous(), plain) if not x.is_contiguous() else None


def test_reductions_are_told_as_a_network_s():
    def network(case):
        name, given = case.call.func.__name__, arguments(case)
        if name == "amax":
            return None
        dims = given[1] if len(given) > 1 else None
        keep = given[2] if len(given) > 2 else False
        function = getattr(torch, name)
        return read(lambda x: function(x, dims, keep) if dims else function(x), given[0])

    expect(FAMILY["reduction"], network, seeds=range(12))


def test_look_ups_are_told_as_a_network_s():
    def network(case):
        name, given = case.call.func.__name__, arguments(case)
        if name == "nll_loss_forward":
            return read(lambda scores: F.nll_loss(scores, given[1]), given[0])
        (ids, rows) = given[1], given[2] if "backward" in name else len(given[0])
        return step(nn.Embedding(rows, given[0].shape[1]), ids)

    expect(FAMILY["gather"], network)


def test_an_update_is_told_as_a_network_s():
    (case,) = drawn(FAMILY["optimizer"])
    updated = case.call.__self__.param_groups[0]["params"]
    (found,) = [one for one in read(lambda *all_: all_[0], *updated) if one.kind == "optimizer"]
    assert told(case.operation()) == told(found)


def test_a_sweep_of_a_second_has_every_kind(tmp_path):
    sweep = Sweep(CPU, seconds=1.5, **TINY, watch=HostStopwatch(most=1))
    rows = list(sweep)
    seen = Counter(row.operation.kind for row in rows)
    assert len(rows) + sweep.disturbed > 40
    assert len(seen) > len(KINDS) // 2
    assert set(seen) <= KINDS
    for row in rows:
        assert row.device_us > 0
        assert row.host_us == 0  # the host is the device
    write_rows(rows, tmp_path / "rows.csv")
    again = list(read_rows(tmp_path / "rows.csv"))
    assert [one.timed().work for one in again] == [one.timed().work for one in rows]


def test_a_workspace_that_nobody_looked_at_is_not_taken_for_none(tmp_path):
    operation = drawn(FAMILY["mm"])[0].operation()
    rows = [
        SweepRow(operation=operation, device_us=5.0, host_us=0.0, calls=3, workspace=size)
        for size in (None, 0, 4096)
    ]
    write_rows(rows, tmp_path / "rows.csv")
    assert [one.timed().workspace for one in read_rows(tmp_path / "rows.csv")] == [None, 0, 4096]


def test_a_sweep_is_the_same_for_the_same_seed():
    families = [FAMILY["mm"]]

    def names(seed):
        found = []
        sweep = Sweep(CPU, seconds=0.3, families=families, seed=seed, largest_s=0.001, store_bytes=1 << 22)
        found.extend(row.operation.sizes for row in sweep)
        return found

    first, again = names(1), names(1)
    assert first
    assert any(one in again for one in first)


def test_what_would_take_too_long_is_refused():
    with pytest.raises(TooLarge):
        supply().check(flops=1e12)
    with pytest.raises(TooLarge):
        supply().take((1 << 30,), torch.float32)


def test_what_a_forward_pass_makes_stays_for_a_while():
    watch = HostStopwatch(held_bytes=1000, most=3)
    watch.time(lambda: torch.zeros(10), kept=True)
    assert len(watch._held) == 3
    watch.time(lambda: torch.zeros(1000), kept=True)
    assert not watch._held


def test_a_row_is_timed_under_the_features_of_a_prediction():
    with torch.no_grad():
        operation = Case(call=partial(torch.ops.aten.relu, torch.ones(3, 4))).operation()
    row = SweepRow(operation=operation, device_us=2.0, host_us=0.0, calls=3)
    assert (row.timed().name, row.timed().work.bytes) == ("aten.relu", 96)
