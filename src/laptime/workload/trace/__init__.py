"""A workload read off a network without running it: one training step on tensors without memory.

The step runs on torch's fake tensors of the CPU, which know shapes and types alone, with the choices that a
GPU would make (`choices`). So any network can be read anywhere, whatever its size. The only part of
`workload` that imports torch.
"""

from laptime.workload.optimizers import OPTIMIZERS
from laptime.workload.trace.step import trace
from laptime.workload.trace.updates import Division

__all__ = ["OPTIMIZERS", "Division", "trace"]
