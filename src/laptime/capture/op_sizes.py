"""The numbers that an operation's time depends on, from its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Given = Sequence[Any]  # an operation's arguments


def sizes(kind: str, args: Given, out: Any) -> dict[str, int]:
    """For each kind of `workload.kinds`, its own; for a kind that has none, how many elements come out."""
    return _OF.get(kind, _elements)(kind, args, out)


def _elements(kind: str, args: Given, out: Any) -> dict[str, int]:
    return {"n": sum(one.numel() for one in _several(out) if isinstance(one, Tensor))}


def _elementwise(kind: str, args: Given, out: Any) -> dict[str, int]:
    found = _elements(kind, args, out)
    tensors = [one for one in args if isinstance(one, Tensor) and one.dim()]
    return found | {"broadcast": int(any(one.numel() != found["n"] for one in tensors))}


def _forward_convolution(kind: str, args: Given, out: Any) -> dict[str, int]:
    x, weight, bias = args[:3]
    found = _convolution(x.shape, weight.shape, out.shape, args)
    return found | {"bias": int(bias is not None), "last": _last(x, weight)}


def _backward_convolution(kind: str, args: Given, out: Any) -> dict[str, int]:
    gradient, x, weight = args[:3]
    moved = (x, weight, None, *args[4:])  # as the forward pass has them
    found = _convolution(x.shape, weight.shape, gradient.shape, moved)
    mask = args[-1]
    asked = {"to_input": int(mask[0]), "to_weight": int(mask[1]), "bias": int(mask[2])}
    return found | asked | {"last": _last(gradient, x, weight)}


def _product(kind: str, args: Given, out: Any) -> dict[str, int]:
    """Of the last two tensors; addmm and baddbmm have what is added before them."""
    a, b = [one for one in args if isinstance(one, Tensor)][-2:]
    many = {"b": a.shape[0]} if kind == "bmm" else {}
    return {**many, "m": a.shape[-2], "k": a.shape[-1], "n": b.shape[-1], **_transposed(a, b)}


def _attention(kind: str, args: Given, out: Any) -> dict[str, int]:
    q, k = args[:2] if kind == "attention" else args[1:3]
    batch, heads, steps, width = q.shape
    return {"b": batch, "h": heads, "s": steps, "t": k.shape[2], "d": width, "causal": int(args[-1])}


def _recurrent(kind: str, args: Given, out: Any) -> dict[str, int]:
    steps, batch, width = _input(kind, args).shape
    gates, hidden, layers, directions = args[-4:]
    form = {"h": hidden, "l": layers, "gates": gates, "directions": directions}
    return {"b": batch, "s": steps, "i": width, **form}


def _batch_norm(kind: str, args: Given, out: Any) -> dict[str, int]:
    x = _input(kind, args)
    return {"n": x.shape[0], "c": x.shape[1], "p": math.prod(x.shape[2:]), "last": _last(x)}


def _softmax(kind: str, args: Given, out: Any) -> dict[str, int]:
    dim = args[1] if kind == "softmax" else args[2]
    d = args[0].shape[dim] if args[0].dim() else 1
    return {"r": args[0].numel() // max(d, 1), "d": d}


def _pool(kind: str, args: Given, out: Any) -> dict[str, int]:
    x = _input(kind, args)
    small = _several(out)[0] if kind == "pool" else args[0]
    # A maximum also tells where it was found, and is told so on the way back.
    largest = isinstance(out, tuple | list) or any(
        isinstance(one, Tensor) and one.dtype is torch.int64 for one in args
    )
    found = {"n": x.numel(), "o": small.numel(), "window": _window(args, kind)}
    return found | {"avg": int(not largest), "last": _last(x)}


def _embedding_backward(kind: str, args: Given, out: Any) -> dict[str, int]:
    return {"t": args[1].numel(), "d": args[0].shape[-1], "v": int(args[2])}


def _reduction(kind: str, args: Given, out: Any) -> dict[str, int]:
    first, few = _first(args), _several(out)[0]
    inner = 1
    if first is not None and len(args) > 1 and isinstance(args[1], list | int):
        dims = [args[1]] if isinstance(args[1], int) else args[1]
        inner = int(first.dim() > 0 and any(d % first.dim() == first.dim() - 1 for d in dims))
    count = few.numel() if isinstance(few, Tensor) else 1
    return {"n": first.numel() if first is not None else 0, "o": count, "inner": inner}


def _copy(kind: str, args: Given, out: Any) -> dict[str, int]:
    first = _first(args)
    permuted = first is not None and not first.is_contiguous()
    return {"n": out.numel() if isinstance(out, Tensor) else 0, "permuted": int(permuted)}


def _input(kind: str, args: Given) -> Tensor:
    """What the operation was given on the way forward; on the way back a gradient comes before it."""
    found: Tensor = args[int(kind.endswith("_backward"))]
    return found


def _several(out: Any) -> Sequence[Any]:
    return out if isinstance(out, tuple | list) else [out]


def _first(args: Given) -> Tensor | None:
    return next((one for one in args if isinstance(one, Tensor)), None)


def _convolution(x: torch.Size, weight: torch.Size, out: torch.Size, args: Given) -> dict[str, int]:
    transposed = bool(args[6])
    stride, padding, dilation, groups = args[3], args[4], args[5], int(args[8])
    places = math.prod(x[2:]) if transposed else math.prod(out[2:])
    spatial = list(x[2:])
    return {
        "n": x[0],
        "c": x[1],
        "o": out[1],
        "h": spatial[0],
        "w": spatial[1] if len(spatial) > 1 else 1,
        "k": weight[2],
        "l": weight[3] if len(weight) > 3 else 1,
        "s": int(stride[0]),
        "p": int(padding[0]),
        "dilation": int(dilation[0]),
        "g": groups,
        "transposed": int(transposed),
        "places": places,
        "window": math.prod(weight[2:]),
    }


def _transposed(a: Tensor, b: Tensor) -> dict[str, int]:
    return {
        "ta": int(a.stride(-1) != 1 and a.shape[-1] > 1),
        "tb": int(b.stride(-1) != 1 and b.shape[-1] > 1),
    }


def _rows(kind: str, args: Given, out: Any) -> dict[str, int]:
    """Rows and their width; a group norm's rows are its groups."""
    x = _input(kind, args)
    shape = args[1] if kind == "layer_norm" else args[2]
    if isinstance(shape, list | tuple):
        width = math.prod(shape)
    else:  # native_group_norm(x, weight, bias, n, c, hw, groups, eps); its backward has them two further on
        numbers = [one for one in args if isinstance(one, int) and not isinstance(one, bool)]
        width = x.numel() // max(1, numbers[0] * numbers[3]) if len(numbers) >= 4 else x.shape[-1]
    return {"r": x.numel() // max(width, 1), "d": width}


def _window(args: Given, kind: str) -> int:
    given = args[1] if kind == "pool" else (args[2] if len(args) > 2 else 1)
    return math.prod(given) if isinstance(given, list | tuple) else 1


def _last(*tensors: Tensor) -> int:
    """Whether one of them has its channels side by side in memory, for which libraries have other kernels."""
    return int(
        any(
            one.dim() == 4
            and one.is_contiguous(memory_format=torch.channels_last)
            and not one.is_contiguous()
            for one in tensors
        )
    )


_OF: dict[str, Callable[[str, Given, Any], dict[str, int]]] = {
    "elementwise": _elementwise,
    "convolution": _forward_convolution,
    "convolution_backward": _backward_convolution,
    "mm": _product,
    "bmm": _product,
    "attention": _attention,
    "attention_backward": _attention,
    "recurrent": _recurrent,
    "recurrent_backward": _recurrent,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm,
    "layer_norm": _rows,
    "layer_norm_backward": _rows,
    "softmax": _softmax,
    "softmax_backward": _softmax,
    "pool": _pool,
    "pool_backward": _pool,
    "embedding_backward": _embedding_backward,
    "reduction": _reduction,
    "copy": _copy,
}
