"""Runs made from what other programs left: profiler traces, TensorFlow timelines, training logs."""

from laptime.runs.importers.detect import collect

__all__ = ["collect"]
