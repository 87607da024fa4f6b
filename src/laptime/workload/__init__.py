"""What one step of a network asks of any machine: operations with FLOPs, bytes and shapes, layer by layer."""

from laptime.workload.operation import Operation, Phase
from laptime.workload.workload import Memory, Optimizer, Workload

__all__ = ["Memory", "Operation", "Optimizer", "Phase", "Workload"]
