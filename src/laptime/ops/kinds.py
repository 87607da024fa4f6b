"""Kinds of operations: which of torch's belong to each, and what a kind computes.

The kinds are those whose time follows one rule on a device, and whose single operations a calibration runs.
"""

from __future__ import annotations

from collections.abc import Mapping

Sizes = Mapping[str, int]

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
_FILLS = """
arange fill fill_ full full_like new_full new_ones new_zeros ones ones_like zero_ zeros zeros_like
scalar_tensor
"""
_REDUCTIONS = """
all amax amin any argmax argmin count_nonzero cumsum linalg_vector_norm logsumexp max mean min norm
prod std sum var var_mean
"""
_COPIES = """
_to_copy clone copy_ constant_pad_nd flip index_select narrow_copy repeat roll select_backward
slice_backward upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_nearest2d_backward
upsample_bilinear2d_backward pixel_shuffle im2col col2im reflection_pad2d reflection_pad2d_backward
as_strided_scatter slice_scatter diagonal_copy tile unfold_backward
"""
_GATHERS = """
embedding gather index index_put index_put_ _unsafe_index _unsafe_index_put masked_select nonzero
one_hot scatter scatter_ scatter_add scatter_add_ sort topk take
"""

KINDS: dict[str, str] = {
    **dict.fromkeys(_ELEMENTWISE.split(), "elementwise"),
    **dict.fromkeys(_FILLS.split(), "fill"),
    **dict.fromkeys(_REDUCTIONS.split(), "reduction"),
    **dict.fromkeys(_COPIES.split(), "copy"),
    **dict.fromkeys(_GATHERS.split(), "gather"),
    "cat": "cat",
    "stack": "cat",
    "convolution": "convolution",
    "convolution_backward": "convolution_backward",
    "mm": "mm",
    "addmm": "mm",
    "bmm": "bmm",
    "baddbmm": "bmm",
    "_softmax": "softmax",
    "_log_softmax": "softmax",
    "_softmax_backward_data": "softmax_backward",
    "_log_softmax_backward_data": "softmax_backward",
    "_safe_softmax": "softmax",
    "wide_softmax": "softmax",
    "wide_log_softmax": "softmax",
    "wide_softmax_backward": "softmax_backward",
    "wide_log_softmax_backward": "softmax_backward",
    "nll_loss_forward": "gather",  # of one score for each target
    "nll_loss_backward": "fill",  # with zeros, but for those
    "nll_loss2d_forward": "gather",
    "nll_loss2d_backward": "fill",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "native_batch_norm_backward": "batch_norm_backward",
    "cudnn_batch_norm_backward": "batch_norm_backward",
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm_backward",
    "native_group_norm": "layer_norm",
    "native_group_norm_backward": "layer_norm_backward",
    "_fused_rms_norm": "layer_norm",
    "_fused_rms_norm_backward": "layer_norm_backward",
    "max_pool2d_with_indices": "pool",
    "avg_pool2d": "pool",
    "_adaptive_avg_pool2d": "pool",
    "adaptive_max_pool2d": "pool",
    "max_pool3d_with_indices": "pool",
    "avg_pool3d": "pool",
    "max_pool2d_with_indices_backward": "pool_backward",
    "avg_pool2d_backward": "pool_backward",
    "_adaptive_avg_pool2d_backward": "pool_backward",
    "adaptive_max_pool2d_backward": "pool_backward",
    "max_pool3d_with_indices_backward": "pool_backward",
    "avg_pool3d_backward": "pool_backward",
    "embedding_dense_backward": "embedding_backward",
    "attention": "attention",
    "attention_backward": "attention_backward",
    "recurrent": "recurrent",
    "recurrent_backward": "recurrent_backward",
}
"""Torch's name without namespace and overload -> kind."""


def flops(kind: str, sizes: Sizes) -> int:
    """A multiplication and an addition for each product; 0 for what is bound by memory."""
    match kind:
        case "mm" | "bmm":
            return 2 * sizes.get("b", 1) * sizes["m"] * sizes["k"] * sizes["n"]
        case "convolution":
            return _convolution(sizes)
        case "convolution_backward":
            return _convolution(sizes) * (sizes["to_input"] + sizes["to_weight"])
        case "attention":
            return _attention(sizes, 2)
        case "attention_backward":
            return _attention(sizes, 5)  # the scores anew, and four gradients
        case "recurrent":
            return _recurrent(sizes)
        case "recurrent_backward":
            return 2 * _recurrent(sizes)
    return 0


def _convolution(sizes: Sizes) -> int:
    """Each of `places` outputs (inputs, if transposed) of a channel looks at `window` pixels."""
    channels = sizes["c"] * sizes["o"] // sizes["g"]
    return 2 * sizes["n"] * sizes["places"] * channels * sizes["window"]


def _attention(sizes: Sizes, products: int) -> int:
    pairs = sizes["b"] * sizes["h"] * sizes["s"] * sizes["t"]
    return 2 * pairs * sizes["d"] * products


def _recurrent(sizes: Sizes) -> int:
    """Gates times (input and hidden) products for each step of each layer and direction."""
    first = sizes["i"] + sizes["h"]
    further = (sizes["h"] * sizes["directions"] + sizes["h"]) * (sizes["l"] - 1)
    each = sizes["gates"] * sizes["h"] * (first + further) * sizes["directions"]
    return 2 * sizes["b"] * sizes["s"] * each
