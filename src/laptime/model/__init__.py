"""The values that everything shares: accounts, steps, layers, operations, predictions, statistics."""

from laptime.model.accounts import ACCOUNTS, COMPUTE, Account, How, Phase, Stage
from laptime.model.layers import LOSS_LAYER, OTHER_LAYER, KernelTime, Layer, LayerSeconds, LayerTime
from laptime.model.statistics import Noise, Statistics, ratio_interval, summarize
from laptime.model.step import BUBBLE_COLUMNS, Step
from laptime.model.workload import Memory, Operation, Workload

__all__ = [
    "ACCOUNTS",
    "BUBBLE_COLUMNS",
    "COMPUTE",
    "LOSS_LAYER",
    "OTHER_LAYER",
    "Account",
    "How",
    "KernelTime",
    "Layer",
    "LayerSeconds",
    "LayerTime",
    "Memory",
    "Noise",
    "Operation",
    "Phase",
    "Stage",
    "Statistics",
    "Step",
    "Workload",
    "ratio_interval",
    "summarize",
]
