"""What norms and softmax share: passes over rows."""

from __future__ import annotations

from laptime.model import Operation
from laptime.ops.feature_math import log2
from laptime.ops.registry import Growth, Sizes


def growth_of_rows(
    operation: Operation, batch: int, *, fixed_read: int = 0, fixed_written: int = 0
) -> Growth:
    """The number of rows follows the batch; a scale and a shift do not."""
    if operation.sizes["r"] % batch:
        return Growth()
    return Growth(sizes=("r",), fixed_read=fixed_read, fixed_written=fixed_written)


def row_features(sizes: Sizes) -> tuple[float, ...]:
    """Rows, their width, and whether a logarithm is taken."""
    return log2(sizes["r"]), log2(sizes["d"]), float(sizes["d"] % 4 == 0), float(sizes.get("log", 0))
