"""Functions of single elements, and fills: passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.model import Operation
from laptime.ops.arguments import is_tensor, tensors_in
from laptime.ops.registry import Arguments, OperationKind, operation_kind

_NAMES = """
abs add add_ addcdiv addcdiv_ addcmul addcmul_ atan2 bernoulli bernoulli_ bitwise_and bitwise_not
bitwise_or ceil celu clamp clamp_ clamp_min clamp_max cos cosh div div_ elu elu_backward elu_ eq erf
exp exp_ expm1 floor floor_divide fmod ge gelu gelu_backward gt hardsigmoid hardsigmoid_backward
hardswish hardswish_ hardswish_backward hardtanh hardtanh_ hardtanh_backward isinf isnan le
leaky_relu leaky_relu_ leaky_relu_backward lerp lerp_ log log1p log2 log_sigmoid_forward
log_sigmoid_backward logical_and logical_not logical_or lt masked_fill masked_fill_ maximum minimum
mish mish_backward mse_loss mse_loss_backward mul mul_ ne neg pow pow_ reciprocal relu relu_
remainder round rsqrt rsub sgn sigmoid sigmoid_ sigmoid_backward sign silu silu_ silu_backward sin
sinh softplus softplus_backward sqrt square sub sub_ tan tanh tanh_ tanh_backward threshold_backward
tril triu where xlogy binary_cross_entropy binary_cross_entropy_backward
binary_cross_entropy_with_logits smooth_l1_loss smooth_l1_loss_backward huber_loss
huber_loss_backward native_dropout native_dropout_backward normal_ uniform_ random_ rand randn
rand_like randn_like glu glu_backward prelu _prelu_kernel _prelu_kernel_backward
"""
# Elementwise, but bound by computing on a CPU.
_SMOOTH = "gelu silu sigmoid tanh elu mish softplus hardswish exp log erf pow sin cos"
_MODELS = {"native_dropout": "dropout"} | {
    f"{name}{way}": "function" for name in _SMOOTH.split() for way in ("", "_", "_backward")
}


@operation_kind("elementwise", _NAMES)
class Elementwise(OperationKind):
    """n elements; `broadcast` says whether an input has fewer of them."""

    common = True
    reaches = "bandwidth"
    microbenchmark = "elementwise"
    # Losses are made of such operations.
    cuda_float32 = """
    cosine_similarity exp expm1 log log10 log1p log2 pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar reciprocal
    rsqrt softplus l1_loss mse_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits cosh
    sinh tan acos asin hinge_embedding_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
    cosine_embedding_loss poisson_nll_loss
    """

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        sizes = super().sizes(args, out)
        tensors = [value for value in args if is_tensor(value) and value.dim()]
        return sizes | {"broadcast": int(any(tensor.numel() != sizes["n"] for tensor in tensors))}

    def model_of(self, operation: Operation) -> str:
        return _MODELS.get(operation.name.partition(".")[2], operation.kind)


@operation_kind("function", variant_of="elementwise")
class SmoothFunction(OperationKind):
    """Activations that take long to compute."""

    like = ("elementwise",)
    microbenchmark = "elementwise"


@operation_kind("dropout", variant_of="elementwise")
class Dropout(OperationKind):
    """It draws a random number for each element."""

    like = ("elementwise",)
    microbenchmark = "elementwise"


@operation_kind(
    "fill",
    "arange fill fill_ full full_like new_full new_ones new_zeros ones ones_like zero_ zeros zeros_like"
    " scalar_tensor nll_loss_backward nll_loss2d_backward",  # the last two: zeros, but for the targets
)
class Fill(OperationKind):
    """It only writes."""

    like = ("elementwise",)
    reaches = "bandwidth"
    microbenchmark = "fill"

    def read_bytes(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        return 0


@operation_kind("other")
class Other(OperationKind):
    """What no kind claims: it counts with its bytes alone, and predictions list it."""

    covered = False
    like = ("elementwise",)
    no_microbenchmark = "nobody knows what it computes"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return {"n": sum({id(tensor): tensor.numel() for tensor in tensors_in(out)}.values())}

    def model_of(self, operation: Operation) -> str:
        return _MODELS.get(operation.name.partition(".")[2], operation.kind)
