"""Kernels put on the clock of the marks.

A trace counts from when the host set the first mark of a step, the marks' events from when the device reached
it; behind a full queue that is milliseconds later. What a layer launches runs after the event before it and
ends before the event after it, which bounds how far the two clocks are apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from laptime.recorder.kernel_trace import TracedKernel

Span = tuple[float, float]


def clock_shift(kernels: Iterable[TracedKernel], spans: Mapping[int, Span]) -> float:
    """Seconds to take off the kernels' starts; 0 where they lie inside their owners' spans already.

    Only the busiest stream counts, which is the one that the events are on. `spans` are first and last moment
    of owners that had one interval. Where no shift fits all, the middle of the bounds is least wrong.
    """
    on_device = [kernel for kernel in kernels if kernel.kind != "operator"]
    if not on_device:
        return 0.0
    stream = Counter(kernel.stream for kernel in on_device).most_common(1)[0][0]
    own = [kernel for kernel in on_device if kernel.stream == stream and kernel.code in spans]
    if not own:
        return 0.0
    least = max(kernel.start_s + kernel.seconds - spans[kernel.code][1] for kernel in own)
    most = min(kernel.start_s - spans[kernel.code][0] for kernel in own)
    return min(max(0.0, least), most) if least <= most else (least + most) / 2
