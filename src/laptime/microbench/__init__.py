"""Calibration runs: single operations of random, sensible shapes, timed on the device at hand.

An operation is described as the reader of networks describes it (`laptime.capture`), so that a model that is
fitted to the rows of a sweep meets the same numbers when it predicts a network.
"""

from laptime.microbench.families import Case, all_families
from laptime.microbench.row import SweepRow, read_rows, write_rows
from laptime.microbench.run import Sweep

__all__ = ["Case", "Sweep", "SweepRow", "all_families", "read_rows", "write_rows"]
