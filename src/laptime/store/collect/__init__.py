"""Runs made from what other programs left: profiler traces, TensorFlow timelines, training logs."""

from laptime.store.collect.choosing import collect

__all__ = ["collect"]
