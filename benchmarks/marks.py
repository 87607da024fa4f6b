"""What one mark costs on this device, by each way to set and read it: `python -m benchmarks.marks`."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from laptime.recorder.autograd_graph import highest_nodes, sequence_number
from laptime.recorder.backends import backend_of
from laptime.recorder.timeline import HOST, Timeline
from laptime.training.networks import registry


def microseconds(call: Callable[[], Any], count: int = 2000) -> float:
    """Median of ten rounds, per call."""
    rounds = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(count // 10):
            call()
        rounds.append((time.perf_counter() - begin) / (count // 10) * 1e6)
    return sorted(rounds)[5]


def cuda_ways() -> dict[str, float]:
    """Ways to record and read a CUDA event."""
    stream = torch.cuda.current_stream()
    event, later = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    event.record()
    later.record()
    torch.cuda.synchronize()
    base: Any = torch._C._CudaEventBase
    found = {
        "new event, wrapper": microseconds(lambda: torch.cuda.Event(enable_timing=True).record()),
        "pooled event, wrapper": microseconds(lambda: event.record(stream)),
        "pooled event, C method": microseconds(lambda: base.record(event, stream)),
        "elapsed_time": microseconds(lambda: base.elapsed_time(event, later)),
        "query": microseconds(lambda: base.query(event)),
    }
    torch.cuda.synchronize()
    runtime = ctypes.PyDLL(None)
    try:
        record = runtime.cudaEventRecord
    except AttributeError:
        return found
    record.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    handle, queue = event.cuda_event, stream.cuda_stream
    found["pooled event, ctypes"] = microseconds(lambda: record(handle, queue))
    torch.cuda.synchronize()
    return found


def walk_cost(name: str, device: str) -> tuple[float, int]:
    """Microseconds to find the first node of each of ten layers in a network's graph, and its size."""
    network = registry.build(name).to(device)
    start = sequence_number()
    output = network(torch.randn(2, *registry.entry(name).input, device=device))
    output = output if isinstance(output, torch.Tensor) else output[0]
    loss = F.cross_entropy(output, torch.zeros(2, dtype=torch.long, device=device))
    nodes = sequence_number() - start
    numbers = list(range(start, start + nodes, max(1, nodes // 10)))
    return microseconds(lambda: highest_nodes([loss.grad_fn], numbers), 200), nodes


def main() -> None:
    """Print the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    timeline = Timeline(backend_of(device).clock(torch.device(device)))

    def mark() -> None:
        timeline.mark(HOST)
        timeline.clock.recycle([timeline.stamps.pop()])
        timeline.owners.pop()

    rows = {"Timeline.mark": microseconds(mark)}
    if device == "cuda":
        rows |= cuda_ways()
    for name in ("alexnet", "googlenet", "resnet50"):
        cost, nodes = walk_cost(name, device)
        rows[f"walk of {name}, {nodes} nodes"] = cost
    for name, cost in rows.items():
        print(f"{name:34s} {cost:8.2f} µs")


if __name__ == "__main__":
    main()
