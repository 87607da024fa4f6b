"""Calibration runs: single operations of random, sensible shapes, timed on the device at hand.

An operation is described as the reader of networks describes it (`laptime.capture`), so that a model that is
fitted to the rows of a sweep meets the same numbers when it predicts a network.
"""

from laptime.microbench.case import Case
from laptime.microbench.families import SweepFamily, all_families
from laptime.microbench.row import SweepRow, read_rows, write_rows
from laptime.microbench.run import Sweep, dtypes_of, host_of

__all__ = [
    "Case",
    "Sweep",
    "SweepFamily",
    "SweepRow",
    "all_families",
    "dtypes_of",
    "host_of",
    "read_rows",
    "write_rows",
]
