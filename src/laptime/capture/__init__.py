"""A workload read off a network without running it: one training step on tensors without memory.

The step runs on torch's fake tensors of the CPU, which know shapes and types alone, with the choices that a
GPU would make (`choices`). So any network can be read anywhere, whatever its size. The only part of
`workload` that imports torch.
"""

from laptime.capture.fake_step import trace
from laptime.capture.optimizer_ops import Division
from laptime.ops.optimizers import OPTIMIZERS

__all__ = ["OPTIMIZERS", "Division", "trace"]
