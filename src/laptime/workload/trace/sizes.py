"""The numbers that an operation's time depends on, from its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sizes(kind: str, args: Sequence[Any], out: Any) -> dict[str, int]:
    """For each kind of `workload.kinds`, its own."""
    match kind:
        case "convolution":
            bias = int(args[2] is not None)
            found = _convolution(args[0].shape, args[1].shape, out.shape, args)
            return found | {"bias": bias, "last": _last(*args[:2])}
        case "convolution_backward":
            gradient, x, weight = args[:3]
            moved = (x, weight, None, *args[4:])  # as the forward pass has them
            found = _convolution(x.shape, weight.shape, gradient.shape, moved)
            mask = args[-1]
            asked = {"to_input": int(mask[0]), "to_weight": int(mask[1]), "bias": int(mask[2])}
            return found | asked | {"last": _last(gradient, x, weight)}
        case "mm":
            a, b = args[-2:] if len(args) == 2 else args[1:3]
            return {"m": a.shape[0], "k": a.shape[1], "n": b.shape[1], **_transposed(a, b)}
        case "bmm":
            a, b = args[:2] if len(args) == 2 else args[1:3]
            return {"b": a.shape[0], "m": a.shape[1], "k": a.shape[2], "n": b.shape[2], **_transposed(a, b)}
        case "attention" | "attention_backward":
            q, k = args[:2] if kind == "attention" else args[1:3]
            batch, heads, steps, width = q.shape
            return {"b": batch, "h": heads, "s": steps, "t": k.shape[2], "d": width, "causal": int(args[-1])}
        case "recurrent" | "recurrent_backward":
            x = args[0] if kind == "recurrent" else args[1]
            gates, hidden, layers, directions = args[-4:]
            return {
                "b": x.shape[1],
                "s": x.shape[0],
                "i": x.shape[2],
                "h": hidden,
                "l": layers,
                "gates": gates,
                "directions": directions,
            }
        case "batch_norm" | "batch_norm_backward":
            x = args[0] if kind == "batch_norm" else args[1]
            return {"n": x.shape[0], "c": x.shape[1], "p": math.prod(x.shape[2:]), "last": _last(x)}
        case "layer_norm" | "layer_norm_backward":
            return _rows(args, kind)
        case "softmax" | "softmax_backward":
            dim = args[1] if kind == "softmax" else args[2]
            d = args[0].shape[dim] if args[0].dim() else 1
            return {"r": args[0].numel() // max(d, 1), "d": d}
        case "pool" | "pool_backward":
            x = args[0] if kind == "pool" else args[1]
            whole = x.numel()
            small = out[0] if isinstance(out, tuple | list) else out
            few = small.numel() if kind == "pool" else args[0].numel()
            largest = isinstance(out, tuple | list) or any(
                isinstance(one, Tensor) and one.dtype is torch.int64 for one in args
            )
            return {
                "n": whole,
                "o": few,
                "window": _window(args, kind),
                "avg": int(not largest),
                "last": _last(x),
            }
        case "embedding_backward":
            return {"t": args[1].numel(), "d": args[0].shape[-1], "v": int(args[2])}
        case "reduction":
            first = next((one for one in args if isinstance(one, Tensor)), None)
            few = out[0] if isinstance(out, tuple | list) else out
            count = few.numel() if isinstance(few, Tensor) else 1
            inner = 1
            if first is not None and len(args) > 1 and isinstance(args[1], list | int):
                dims = [args[1]] if isinstance(args[1], int) else args[1]
                inner = int(first.dim() > 0 and any(d % first.dim() == first.dim() - 1 for d in dims))
            return {"n": first.numel() if first is not None else 0, "o": count, "inner": inner}
        case "copy":
            first = next((one for one in args if isinstance(one, Tensor)), None)
            permuted = first is not None and not _dense(first)
            return {"n": out.numel() if isinstance(out, Tensor) else 0, "permuted": int(permuted)}
    count = sum(
        one.numel() for one in (out if isinstance(out, tuple | list) else [out]) if isinstance(one, Tensor)
    )
    found = {"n": count}
    if kind == "elementwise":
        tensors = [one for one in args if isinstance(one, Tensor) and one.dim()]
        found["broadcast"] = int(any(one.numel() != count for one in tensors))
    return found


def _convolution(x: torch.Size, weight: torch.Size, out: torch.Size, args: Sequence[Any]) -> dict[str, int]:
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


def _rows(args: Sequence[Any], kind: str) -> dict[str, int]:
    """Rows and their width; a group norm's rows are its groups."""
    x = args[0] if kind == "layer_norm" else args[1]
    shape = args[1] if kind == "layer_norm" else args[2]
    if isinstance(shape, list | tuple):
        width = math.prod(shape)
    else:  # native_group_norm(x, weight, bias, n, c, hw, groups, eps); its backward has them two further on
        numbers = [one for one in args if isinstance(one, int) and not isinstance(one, bool)]
        width = x.numel() // max(1, numbers[0] * numbers[3]) if len(numbers) >= 4 else x.shape[-1]
    return {"r": x.numel() // max(width, 1), "d": width}


def _window(args: Sequence[Any], kind: str) -> int:
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


def _dense(tensor: Tensor) -> bool:
    """Whether elements lie one after the other in their order."""
    return tensor.is_contiguous()
