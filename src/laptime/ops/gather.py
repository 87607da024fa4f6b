"""Look-ups by number, and the gradient of an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laptime.model import Operation
from laptime.ops.feature_math import log2
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, grows, operation_kind

_SCORES = "nll_loss_forward", "nll_loss2d_forward"  # of one score for each target
_NAMES = """
embedding gather index index_put index_put_ _unsafe_index _unsafe_index_put masked_select nonzero
one_hot scatter scatter_ scatter_add scatter_add_ sort topk take
"""


@operation_kind("gather", " ".join((_NAMES, *_SCORES)))
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


@operation_kind("score", variant_of="gather")
class Score(OperationKind):
    """The score of each target, for a loss."""

    like = ("gather", "copy", "elementwise")
    microbenchmark = "gather"


@operation_kind("embedding_backward", "embedding_dense_backward")
class EmbeddingBackward(OperationKind):
    """t gradients of width d, added into a table of v rows."""

    microbenchmark = "gather"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return {"t": args[1].numel(), "d": args[0].shape[-1], "v": int(args[2])}

    def growth(self, operation: Operation, batch: int) -> Growth:
        return grows(operation, batch, "t", fixed_written=operation.written)

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        return tuple(log2(sizes[name]) for name in ("t", "d", "v"))
