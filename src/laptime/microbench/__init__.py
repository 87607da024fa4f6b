"""Calibration runs: single operations of random, sensible shapes, timed on the device at hand.

An operation is told as the reader of networks tells it (`workload.trace`), so that a model that is fitted to
the rows of a sweep meets the same numbers when it predicts a network.
"""

from laptime.microbench.case import Case
from laptime.microbench.families import FAMILIES, Family
from laptime.microbench.row import Row, read_rows, write_rows
from laptime.microbench.run import Sweep, dtypes_of, host_of

__all__ = ["FAMILIES", "Case", "Family", "Row", "Sweep", "dtypes_of", "host_of", "read_rows", "write_rows"]
