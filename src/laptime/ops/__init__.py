"""Kinds of operations: names in torch, sizes, FLOPs, features, how they follow the batch."""
