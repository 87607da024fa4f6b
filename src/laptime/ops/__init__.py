"""Kinds of operations: their names, sizes, FLOPs, and how they follow the batch size."""
