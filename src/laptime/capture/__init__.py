"""A workload read off a network without running it: one training step on tensors without memory.

The step runs on torch's fake tensors of the CPU, which know shapes and types alone, with the choices that a
GPU would make (`cuda_choices`). So any network can be read anywhere, whatever its size.
"""

from laptime.capture.fake_step import trace
from laptime.capture.op_reader import DividedNetwork

__all__ = ["DividedNetwork", "trace"]
