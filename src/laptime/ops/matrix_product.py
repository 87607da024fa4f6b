"""Matrix products, single and batched: linear layers, attention written by hand."""

from __future__ import annotations

from typing import Any

from laptime.model import Operation, Phase
from laptime.ops.arguments import is_tensor
from laptime.ops.feature_math import filled, log2, waves
from laptime.ops.registry import Arguments, Growth, OperationKind, Sizes, operation_kind


@operation_kind("mm", "mm addmm")
class MatrixProduct(OperationKind):
    """(m × k) times (k × n); `ta` and `tb` say whether either side is transposed."""

    microbenchmark = "mm"
    common = True
    reaches = "compute"

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        a, b = _factors(args)
        return {"m": a.shape[-2], "k": a.shape[-1], "n": b.shape[-1], **_transposed(a, b)}

    def flops(self, sizes: Sizes) -> int:
        return 2 * sizes.get("b", 1) * sizes["m"] * sizes["k"] * sizes["n"]

    def growth(self, operation: Operation, batch: int) -> Growth:
        """Rows of a layer's input; of the product that gives its weight's gradient, the depth."""
        m, k, n = (operation.sizes[name] for name in "mkn")
        size = operation.element_bytes
        transposed = operation.phase is Phase.BACKWARD and operation.sizes.get("ta", 0)
        order = "kmn" if transposed else "mnk"
        grown = next((name for name in order if operation.sizes[name] % batch == 0), None)
        if grown is None:
            return Growth()
        if grown == "k":
            return Growth(sizes=("k",), fixed_written=m * n * size)
        if grown == "n":
            return Growth(sizes=("n",), fixed_read=m * k * size)
        bias = n * size if operation.name.endswith("addmm") else 0
        return Growth(sizes=("m",), fixed_read=k * n * size + bias)

    def weights(self, sizes: Sizes) -> set[int]:
        return {sizes["k"] * sizes["n"], sizes["n"]}

    def features(self, sizes: Sizes) -> tuple[float, ...]:
        m, k, n = sizes["m"], sizes["k"], sizes["n"]
        return (
            log2(sizes.get("b", 1)),
            log2(m),
            log2(k),
            log2(n),
            float(sizes.get("ta", 0)),
            float(sizes.get("tb", 0)),
            float(m % 8 == 0),
            float(k % 8 == 0),
            float(n % 8 == 0),
            waves(m, n, sizes.get("b", 1)),
            filled(m, 128),
            filled(n, 128),
        )

    def transfer_class(self, sizes: Sizes, mode: str) -> str:
        return "product"


@operation_kind("bmm", "bmm baddbmm")
class BatchedProduct(MatrixProduct):
    """`b` products of one shape."""

    microbenchmark = "bmm"
    common = False
    reaches = ""

    def sizes(self, args: Arguments, out: Any) -> dict[str, int]:
        return {"b": _factors(args)[0].shape[0], **super().sizes(args, out)}

    def growth(self, operation: Operation, batch: int) -> Growth:
        if operation.sizes["b"] % batch == 0:
            return Growth(sizes=("b",))
        return super().growth(operation, batch)

    def weights(self, sizes: Sizes) -> set[int]:
        return set()


def _factors(args: Arguments) -> tuple[Any, Any]:
    """The last two tensors; addmm and baddbmm have what is added before them."""
    a, b = [value for value in args if is_tensor(value)][-2:]
    return a, b


def _transposed(a: Any, b: Any) -> dict[str, int]:
    return {
        "ta": int(a.stride(-1) != 1 and a.shape[-1] > 1),
        "tb": int(b.stride(-1) != 1 and b.shape[-1] > 1),
    }
