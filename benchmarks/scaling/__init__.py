"""Several GPUs of one node from one: `python -m benchmarks.scaling REFERENCE`."""
