"""Orders of a pipeline stage's passes over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple


class Pass(StrEnum):
    """What a stage does with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"  # the whole of it
    INPUT = "input gradient"  # of a zero-bubble schedule: what the stage before waits for,
    WEIGHT = "weight gradient"  # and what nobody waits for


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of layers."""

    kind: Pass
    micro: int
    chunk: int = 0


Order = tuple[Action, ...]


def gpipe(rank: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """All forward passes, then all backward passes (Huang et al. 2019)."""
    forward = [Action(Pass.FORWARD, micro) for micro in range(micro_batches)]
    return (*forward, *(Action(Pass.BACKWARD, micro) for micro in range(micro_batches)))


def one_forward_one_backward(rank: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """As few forward passes ahead as the depth asks for, then in turns (PipeDream-flush)."""
    return _in_turns(
        [Action(Pass.FORWARD, micro) for micro in range(micro_batches)],
        [Action(Pass.BACKWARD, micro) for micro in range(micro_batches)],
        ahead=stages - rank - 1,
    )


def interleaved(rank: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Each rank has several chunks of layers, and takes micro-batches by the number of ranks.

    Narayanan et al. 2021: the bubble shrinks by the number of chunks, messages grow by it.
    """
    whole = range(micro_batches * chunks)

    def at(place: int, *, backward: bool) -> Action:
        round_, within = divmod(place, stages * chunks)
        chunk, micro = divmod(within, stages)
        chunk = chunks - 1 - chunk if backward else chunk
        kind = Pass.BACKWARD if backward else Pass.FORWARD
        return Action(kind, round_ * stages + micro, chunk)

    ahead = 2 * (stages - rank - 1) + (chunks - 1) * stages
    if micro_batches == stages:  # Megatron-LM fills the pipeline completely then
        ahead = len(whole)
    return _in_turns(
        [at(place, backward=False) for place in whole], [at(place, backward=True) for place in whole], ahead
    )


def zero_bubble(rank: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """One forward, one backward, with gradients of weights put off (Qi et al. 2023, ZB-H1).

    A rank puts off as many as it has stages before it, so that all hold equally many micro-batches.
    """
    order: list[Action] = []
    for action in one_forward_one_backward(rank, stages, micro_batches, chunks):
        if action.kind is Pass.FORWARD:
            order.append(action)
            continue
        order.append(Action(Pass.INPUT, action.micro))
        if action.micro >= rank:
            order.append(Action(Pass.WEIGHT, action.micro - rank))
    left = range(max(0, micro_batches - rank), micro_batches)
    return (*order, *(Action(Pass.WEIGHT, micro) for micro in left))


def _in_turns(forward: list[Action], backward: list[Action], ahead: int) -> Order:
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for done, action in enumerate(forward[ahead:]):
        order += [action, backward[done]]
    return (*order, *backward[len(forward) - ahead :])


ORDERS: Mapping[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
}
