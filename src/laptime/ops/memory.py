"""Passes over memory: functions of single elements, fills, copies, look-ups, sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.model import Operation, Phase
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, enter, operation_kind
from laptime.ops.sizes import first_tensor, is_tensor, listed, log2, tensors_in

_ELEMENTWISE = """
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
_FILLS = """
arange fill fill_ full full_like new_full new_ones new_zeros ones ones_like zero_ zeros zeros_like
scalar_tensor nll_loss_backward nll_loss2d_backward
"""  # the last two: zeros, but for the targets
_COPIES = """
_to_copy clone copy_ constant_pad_nd flip index_select narrow_copy repeat roll select_backward
slice_backward upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_nearest2d_backward
upsample_bilinear2d_backward pixel_shuffle im2col col2im reflection_pad2d reflection_pad2d_backward
as_strided_scatter slice_scatter diagonal_copy tile unfold_backward
"""
_LOOK_UPS = """
embedding gather index index_put index_put_ _unsafe_index _unsafe_index_put masked_select nonzero
one_hot scatter scatter_ scatter_add scatter_add_ sort topk take
"""
_SCORES = "nll_loss_forward", "nll_loss2d_forward"  # of one score for each target
_REDUCTIONS = """
all amax amin any argmax argmin count_nonzero cumsum linalg_vector_norm logsumexp max mean min norm
prod std sum var var_mean
"""


@operation_kind("elementwise", _ELEMENTWISE)
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


# Activations that take long to compute, and what draws a random number for each element.
for _variant in ("function", "dropout"):
    enter(
        OperationKind(_variant, variant_of="elementwise", like=("elementwise",), microbenchmark="elementwise")
    )


@operation_kind("fill", _FILLS)
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


@operation_kind("copy", _COPIES)
class Copy(OperationKind):
    """n elements; `permuted`: read in another order than they lie in."""

    common = True
    reaches = "bandwidth"
    microbenchmark = "copy"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        first = first_tensor(args)
        permuted = first is not None and not first.is_contiguous()
        return {"n": out.numel() if is_tensor(out) else 0, "permuted": int(permuted)}

    def model_of(self, operation: Operation) -> str:
        return "permuted" if operation.sizes.get("permuted") else operation.kind


enter(OperationKind("permuted", variant_of="copy", like=("copy",), microbenchmark="permuted"))
enter(
    OperationKind("cat", "cat stack", like=("copy", "elementwise"), reaches="bandwidth", microbenchmark="cat")
)


@operation_kind("gather", " ".join((_LOOK_UPS, *_SCORES)))
class Gather(OperationKind):
    """n elements taken out of a table."""

    like = ("copy", "elementwise")
    microbenchmark = "gather"
    cuda_float32 = "nll_loss nll_loss_nd nll_loss2d"

    def read_bytes(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Of a table that is looked up in, only what is taken out."""
        taken = sum(outputs)
        return taken + sum(min(size, taken) for size in inputs[1:]) if inputs else 0

    def model_of(self, operation: Operation) -> str:
        return "score" if operation.name.partition(".")[2] in _SCORES else operation.kind


_LIKE_GATHER = ("gather", "copy", "elementwise")
enter(OperationKind("score", variant_of="gather", like=_LIKE_GATHER, microbenchmark="gather"))


@operation_kind("embedding_backward", "embedding_dense_backward")
class EmbeddingBackward(OperationKind):
    """t gradients of width d, added into a table of v rows."""

    microbenchmark = "gather"
    batch_sizes = ("t",)
    feature_sizes = ("t", "d", "v")

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return {"t": args[1].numel(), "d": args[0].shape[-1], "v": int(args[2])}

    def fixed_bytes(self, operation: Operation) -> tuple[int, int]:
        return 0, operation.written


@operation_kind("reduction", _REDUCTIONS)
class Reduction(OperationKind):
    """n elements in, o out; `inner`: over the last dimension."""

    common = True
    microbenchmark = "reduction"
    cuda_float32 = "cumsum prod prod.dim_int sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        first, few = first_tensor(args), listed(out)[0]
        inner = 1
        if first is not None and len(args) > 1 and isinstance(args[1], list | int):
            dims = [args[1]] if isinstance(args[1], int) else args[1]
            inner = int(first.dim() > 0 and any(d % first.dim() == first.dim() - 1 for d in dims))
        count = few.numel() if is_tensor(few) else 1
        return {"n": first.numel() if first is not None else 0, "o": count, "inner": inner}

    def growth(self, operation: Operation, batch: int) -> Growth:
        """What is left of a sum grows too, unless the sum was over the batch: a bias's gradient."""
        n, o = operation.sizes["n"], max(1, operation.sizes["o"])
        if n % batch:
            return Growth()
        outer = operation.phase is Phase.BACKWARD and not operation.sizes["inner"]
        over_batch = n // o % batch == 0 and (o % batch or outer)
        if over_batch or o % batch:
            return Growth(sizes=("n",), fixed_written=operation.written)
        return Growth(sizes=("n", "o"))

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return log2(sizes["n"]), log2(sizes["o"]), float(sizes.get("inner", 1))
