"""Kinds of operations, one file each: names in torch, sizes, FLOPs, features, how they follow the batch."""
