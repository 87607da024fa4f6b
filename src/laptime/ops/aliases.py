"""What a real step calls its attention and recurrent layers, as the operations that a workload knows.

A step that is read on fake tensors has one attention and one recurrent operation (`workload.trace.own`).
A real one has those of its device and library. The rest has the same names everywhere.
"""

from __future__ import annotations

from typing import Any

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # cuDNN's modes, which oneDNN's operators share: relu, tanh, LSTM, GRU
_ATTENTION = "_scaled_dot_product_"
_RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn")


def translated(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The operation's name and its arguments as `workload.trace.sizes` takes them."""
    attends = name.startswith(_ATTENTION) and "attention" in name
    if not attends and name.removesuffix("_backward") not in _RECURRENT:
        return name, (*args, *kwargs.values())
    given = {one.name: one.default_value for one in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    return _attention(name, given) if attends else _recurrent(name, given)


def _attention(name: str, given: dict[str, Any]) -> tuple[str, Any]:
    tensors = tuple(given[key] for key in ("query", "key", "value"))
    causal = bool(given.get("is_causal", False))
    if "backward" not in name:
        return "attention", (*tensors, causal)
    gradient = next(given[key] for key in ("grad_out", "grad_out_") if key in given)
    kept = [given[key] for key in ("out", "logsumexp") if key in given]
    return "attention_backward", (gradient, *tensors, *kept, causal)


def _recurrent(name: str, given: dict[str, Any]) -> tuple[str, Any]:
    """cuDNN runs all layers in one call, oneDNN one layer and direction of it."""
    x = given["input"]
    if name.startswith("_cudnn"):
        if given["batch_first"]:
            x = x.transpose(0, 1)
        weights = list(given["weight"])
        form = int(given["num_layers"]), 2 if given["bidirectional"] else 1
    else:
        found = (value for key, value in given.items() if key.startswith("weight"))
        weights, form = [one for one in found if one is not None], (1, 1)
    said = _GATES[int(given["mode"])], int(given["hidden_size"]), *form
    if not name.endswith("_backward"):
        return "recurrent", (x, weights, *said)
    gradient = given.get("grad_output")
    return "recurrent_backward", (x if gradient is None else gradient, x, weights, None, *said)
