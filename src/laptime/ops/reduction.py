"""Sums, means and other reductions."""

from __future__ import annotations

from typing import Any

from laptime.model import Operation, Phase
from laptime.ops.arguments import first_tensor, is_tensor, listed
from laptime.ops.feature_math import log2
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, operation_kind

_NAMES = """
all amax amin any argmax argmin count_nonzero cumsum linalg_vector_norm logsumexp max mean min norm
prod std sum var var_mean
"""


@operation_kind("reduction", _NAMES)
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
