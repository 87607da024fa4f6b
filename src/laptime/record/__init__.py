"""What was measured: accounts, steps, layers, statistics. Values only; no torch, no files."""

from laptime.record.accounts import ACCOUNTS, COMPUTE, Account, How, Phase, Stage
from laptime.record.layers import KernelTime, Layer, LayerTime
from laptime.record.statistics import Noise, Statistics, ratio_interval, summarize
from laptime.record.step import Step

__all__ = [
    "ACCOUNTS",
    "COMPUTE",
    "Account",
    "How",
    "KernelTime",
    "Layer",
    "LayerTime",
    "Noise",
    "Phase",
    "Stage",
    "Statistics",
    "Step",
    "ratio_interval",
    "summarize",
]
