"""Devices known by their data sheet only: `python -m benchmarks.data_sheet REFERENCE`."""
