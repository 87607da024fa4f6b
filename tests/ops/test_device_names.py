"""What GPUs and CPUs call attention and recurrent layers is read as the operations that workloads know."""

import pytest
import torch

from laptime.ops.registry import kind_of, translated

aten = torch.ops.aten


def sizes(func, *args, **kwargs):
    name = func._schema.name.partition("::")[2]
    translated_name, given = translated(name, func, args, kwargs)
    return translated_name, kind_of(translated_name).sizes(given, None)


def empty(*shape):
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("func", "further"),
    [
        (aten._scaled_dot_product_flash_attention.default, (0.0, True)),
        (aten._scaled_dot_product_efficient_attention.default, (None, True, 0.0, True)),
        (aten._scaled_dot_product_cudnn_attention.default, (None, True, 0.0, True)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (0.0, True)),
    ],
)
def test_every_attention_of_torch_is_attention(func, further):
    query, key = empty(2, 4, 16, 32), empty(2, 4, 24, 32)
    assert sizes(func, query, key, key, *further) == (
        "attention",
        {"b": 2, "h": 4, "s": 16, "t": 24, "d": 32, "causal": 1},
    )


@pytest.mark.parametrize(
    "func",
    [
        aten._scaled_dot_product_flash_attention_backward.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
        aten._scaled_dot_product_cudnn_attention_backward.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    ],
)
def test_every_backward_attention_of_torch_is_attention_backward(func):
    query, key = empty(2, 4, 16, 32), empty(2, 4, 24, 32)
    gradient = func._schema.arguments[0].name
    given = {gradient: query, "query": query, "key": key, "value": key, "out": query, "is_causal": False}
    assert sizes(func, **given) == (
        "attention_backward",
        {"b": 2, "h": 4, "s": 16, "t": 24, "d": 32, "causal": 0},
    )


def test_cudnn_runs_all_layers_and_directions_in_one_call():
    weights = [empty(4 * 20, 12), empty(4 * 20, 20)] * 4
    given = {"weight": weights, "mode": 2, "hidden_size": 20, "num_layers": 2, "bidirectional": True}
    form = {"b": 3, "s": 7, "i": 12, "h": 20, "l": 2, "gates": 4, "directions": 2}
    func, backward = aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default
    batch_first = {"input": empty(3, 7, 12), "batch_first": True}
    assert sizes(func, **given, **batch_first) == ("recurrent", form)
    steps_first = {"input": empty(7, 3, 12), "batch_first": False}
    assert sizes(func, **given, **steps_first) == ("recurrent", form)
    assert sizes(backward, **given, **steps_first, grad_output=empty(7, 3, 40)) == (
        "recurrent_backward",
        form,
    )
    assert sizes(backward, **given, **steps_first, grad_output=None) == ("recurrent_backward", form)


def test_onednn_runs_one_layer_and_direction_in_a_call():
    weights = {"weight0": empty(60, 12), "weight1": empty(60, 20), "weight2": empty(60), "weight3": empty(60)}
    given = {"input": empty(7, 3, 12), **weights, "mode": 3, "hidden_size": 20, "num_layers": 1}
    form = {"b": 3, "s": 7, "i": 12, "h": 20, "l": 1, "gates": 3, "directions": 1}
    assert sizes(aten.mkldnn_rnn_layer.default, **given) == ("recurrent", form)


def test_other_operations_keep_their_names_and_arguments():
    x = empty(2, 3)
    assert translated("_softmax", aten._softmax.default, (x, 1), {"half_to_float": False}) == (
        "_softmax",
        (x, 1, False),
    )
