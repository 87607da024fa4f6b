"""What a rank exchanges with the others: by kind of collective, and by bucket of gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One kind of collective over the training steps of a process."""

    kind: str  # all_reduce, send, parameter_server, …
    calls: int
    bytes: int  # of the tensors given: the whole of what is gathered or scattered
    exposed_s: float  # the training waited
    # None in runs of versions that did not keep them:
    wire_bytes: float | None = None  # that crossed the link of the rank in one direction, at least
    seconds: float | None = None  # at least one was under way, waiting for late ranks included


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that DDP averages together."""

    bucket: int  # 0 is exchanged first
    layers: tuple[str, ...]  # whose gradients it carries, in the order of the network
    calls: int
    bytes: int
    seconds: float  # from its last gradient until its mean is there
    exposed_s: float  # of these, after the last gradient of the backward pass; of several, they overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExchanges:
    """What one process exchanged."""

    steps: int  # training steps
    collectives: tuple[Collective, ...]
    buckets: tuple[Bucket, ...] = ()
