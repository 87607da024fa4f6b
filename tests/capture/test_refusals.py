"""Networks that cannot be read: one line with the operation, the layer, and the way around it."""

import ctypes

import numpy as np
import pytest
import torch
from torch import nn

from laptime import api
from laptime.errors import WorkloadError


class Between(nn.Module):
    """Two layers, and something of the user's own between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.tanh(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ByAddress(torch.autograd.Function):
    """As kernels of triton and ctypes get their tensors."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        ctypes.memset(out.data_ptr(), 0, out.numel() * 4)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class BackwardByAddress(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (gradient.data_ptr() > 0)


@torch.library.custom_op("laptime_tests::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("laptime_tests::shaped", mutates_args=())
def shaped(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@shaped.register_fake
def _(x):
    return torch.empty_like(x)


shaped.register_autograd(lambda ctx, gradient: gradient * 2)


def told(network, **options):
    given = {"input": (4,), "batch": None if "example" in options else 2} | options
    with pytest.raises(WorkloadError) as refused:
        api.workload(network, **given)
    line = str(refused.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("between", "operation"),
    [
        (lambda x: x[x > 0][:4].expand(2, 4), "aten.nonzero"),
        (lambda x: x * len(x.nonzero()), "aten.nonzero"),
        (lambda x: x.masked_select(x > 0)[:4].expand(2, 4), "aten.masked_select"),
        (lambda x: x.unique(dim=0), "aten.unique_dim"),
    ],
    ids=["mask", "nonzero", "masked_select", "unique"],
)
def test_an_output_as_large_as_values_decide_names_the_operation_and_a_fixed_shape(between, operation):
    line = told(Between(between))
    assert line.startswith(f"{operation} in Between, after first (")
    assert "test_refusals.py:" in line
    assert "torch.where" in line
    assert "laptime profile" in line


@pytest.mark.parametrize(
    "between",
    [lambda x: x[: int(x.argmax().item())], lambda x: x * x.argmax(1).tolist()[0]],
    ids=["item", "tolist"],
)
def test_a_whole_number_read_from_a_tensor_names_the_layer_and_the_way_around(between):
    line = told(Between(between))
    assert "looks at values" in line
    assert "in Between, after first (" in line
    assert "out of forward()" in line
    assert "laptime profile" in line


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (ByNumpy, "in Between, after first (ByNumpy.forward"),
        (ByAddress, "in Between, after first (ByAddress.forward"),
        (BackwardByAddress, "in the backward pass (BackwardByAddress.backward"),
    ],
)
def test_a_kernel_outside_torch_is_named_and_does_not_crash(function, place):
    line = told(Between(function.apply))
    assert place in line
    assert "register_fake" in line
    assert "laptime profile" in line


def test_a_custom_operation_without_a_fake_one_is_named():
    line = told(Between(shapeless))
    assert line.startswith("the operation laptime_tests::shapeless in Between, after first")
    assert "register_fake" in line


def test_a_custom_operation_with_a_fake_one_is_read():
    found = api.workload(Between(shaped), input=(4,), batch=2)
    assert found.layers == ("first", "second")
    (mine,) = [one for one in found.operations if one.name == "laptime_tests.shaped"]
    assert (mine.kind, mine.covered, mine.layer) == ("other", False, "first")
    assert mine.read == mine.written > 0


def test_a_custom_operation_that_no_kind_claims_is_listed_as_uncovered_by_predictions():
    made = api.predict(Between(shaped), input=(4,), batch=2)
    assert made.uncovered["laptime_tests.shaped"] > 0
    assert not api.predict(Between(lambda x: x * 2), input=(4,), batch=2).uncovered


def test_whatever_a_network_raises_is_one_line_with_its_cause():
    def careless(x):
        return {}["missing"]

    with pytest.raises(WorkloadError, match="KeyError: 'missing', in Between, after first") as refused:
        api.workload(Between(careless), input=(4,), batch=2)
    assert isinstance(refused.value.__cause__, KeyError)


def test_torch_writes_nothing_beside_the_one_line(caplog, capfd):
    assert "in Linear" in told(nn.Linear(5, 4))
    assert not caplog.records
    assert not capfd.readouterr().err


def test_an_input_of_the_wrong_rank_tells_the_layer_and_the_shape_it_was_given():
    line = told(nn.Sequential(nn.Conv2d(4, 4, 3)))
    assert "in 0" in line
    assert "a batch of (2, 4)" in line


def test_a_module_that_failed_and_was_forgiven_is_not_blamed_for_the_next_error():
    class Forgiving(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 4)

        def forward(self, x):
            try:
                x = self.first(x)
            except RuntimeError:
                x = self.second(x)
            return x[x > 0]

    assert "in Forgiving, after second (" in told(Forgiving())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": lambda network, batch: network(*batch)}, "the shape (2, 4)"),
        ({"loss": lambda network, batch: 3.0}, "of type float"),
        ({"loss": lambda network, batch: network(*batch).detach().sum()}, "no parameter"),
        ({"loss": lambda network, batch: network(*batch)[:, :7].reshape(3, 3)}, "in the loss"),
        ({"batch": 0}, "batch 0"),
        ({"input": None, "example": torch.zeros(0, 4)}, "0 samples"),
        ({"precision": "int4"}, "fp32, bf16 or fp16"),
        ({"optimizer": "magic"}, "momentum"),
        ({"mode": "guessing"}, "training or inference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nonsense_is_one_line_that_says_what_to_change(options, words):
    assert words in told(nn.Linear(4, 4), **options)


@pytest.mark.parametrize(
    ("network", "options", "words"),
    [
        (nn.Linear, {"input": (4,)}, "no network"),
        (5, {"input": (4,)}, "no network"),
        (nn.Linear(4, 4), {"input": 4}, "input=(3, 224, 224)"),
        (nn.Linear(4, 4), {"input": (4,), "batch": True}, "whole numbers"),
        (nn.Linear(4, 4), {"input": (4,), "batch": 2.5}, "whole numbers"),
        (nn.Linear(4, 4), {"input": (4,), "example": torch.zeros(2, 4)}, "not both"),
        (nn.Linear(4, 4), {"example": torch.zeros(2, 4), "batch": 8}, "leave out batch="),
    ],
)
def test_what_cannot_be_read_is_told_before_it_is_tried(network, options, words):
    with pytest.raises(WorkloadError) as refused:
        api.workload(network, **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_network_in_half_precision_is_read_in_it():
    whole, half = (
        api.workload(net, input=(3, 8, 8), batch=2) for net in (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3).half())
    )
    assert (whole.precision, half.precision) == ("fp32", "fp16")
    assert half.memory.inputs == whole.memory.inputs // 2
    assert {one.dtype for one in half.operations if one.kind == "convolution"} == {"float16"}


def test_a_compiled_network_is_read_as_it_was_before_and_it_is_said():
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(plain)
    assert api.workload(compiled, input=(4,)).layers == api.workload(plain, input=(4,)).layers
    assert "compiled" in api.workload(compiled, input=(4,)).notes[0]
    torch._dynamo.reset()  # a recording in this process would take it for one that compiles


def test_an_optimizer_of_torch_is_known_by_its_class():
    network = nn.Linear(4, 4)
    for made, name in (
        (torch.optim.AdamW(network.parameters()), "adamw"),
        (torch.optim.SGD(network.parameters(), lr=1), "sgd"),
        (torch.optim.SGD(network.parameters(), lr=1, momentum=0.9), "momentum"),
    ):
        assert api.workload(network, input=(4,), optimizer=made).operations[-1].name == f"optimizer.{name}"
    with pytest.raises(WorkloadError, match="LBFGS is not known"):
        api.workload(network, input=(4,), optimizer=torch.optim.LBFGS(network.parameters()))


def test_a_tokenizers_batch_is_a_batch():
    from collections import UserDict

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)

        def forward(self, input_ids):
            return self.embed(input_ids)

    batch = UserDict(input_ids=torch.zeros(2, 3, dtype=torch.long))
    assert api.workload(Words(), example=batch).batch == 2
