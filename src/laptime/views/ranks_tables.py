"""The tables and sentences of the ranks of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from laptime.views import format
from laptime.views.ranks import RankPace, RanksView, Waiting
from laptime.views.table import Cells, Column, Table, share_cell, table_of

MOST_RANKS = 16  # in a table of a terminal
_MOST_COLUMNS = 8  # of the table of who waits for whom
_ALMOST = 0.95  # of the steps: every one, in words
_NAMED = 4  # layers of a bucket; of more, the first and the last


def sentences(view: RanksView) -> Iterator[str]:
    """What the numbers of the ranks come to."""
    waiting = view.waiting
    if told := slow_rank(view):
        yield told
    if view.bubbles:
        yield bubbles(view)
    if view.stale:
        known = [pace.staleness for pace in view.paces if pace.staleness]
        mean = float(np.mean([each.mean for each in known]))
        largest = max(each.largest for each in known)
        yield (
            "Ranks update without waiting for each other. Between reading parameters and applying a gradient "
            f"come {mean:.2g} updates of others on average, at most {largest:.0f}."
        )
    elif waiting and waiting.straggler is None:
        yield "There is no straggler: no rank is waited for in clearly more than its share of the steps."


def slow_rank(view: RanksView) -> str | None:
    """The rank that costs the others most, by how much, and what to do; None where all keep up."""
    slow = view.waiting.straggler if view.waiting else None
    if slow is not None and view.waiting:
        share, waited = format.percent(slow.waited_share, 0), format.milliseconds(slow.waited_s)
        often = slow.steps / view.waiting.steps
        every = often > _ALMOST
        when = f"({waited} ms)" if every else f"({waited} ms), in {format.percent(often, 0)} of the steps"
        shorter = f"{format.milliseconds(slow.shorter_s)} ms ({format.percent(slow.shorter_share, 0)})"
        remedy = "give its stage fewer layers" if view.bubbles else "see what else runs on its machine"
        more = format.milliseconds(slow.longer_s)
        return (
            f"Rank {slow.rank} is slow: the others wait {share} of {'every' if every else 'a'} step for it "
            f"{when}. Its {slow.account} takes {more} ms longer than theirs; {remedy}. A step would be "
            f"{shorter} shorter if it kept up with the next slowest."
        )
    if (behind := view.slow) is not None and behind.staleness is not None:
        times = format.figures(behind.step_s / view.usual_s(behind), 2)
        return (
            f"Rank {behind.rank} is slow: its step takes {format.milliseconds(behind.step_s)} ms, {times} "
            f"times the others'. Nobody waits for it, but its updates are {behind.staleness.mean:.2g} "
            "updates old on average: see what else runs on its machine."
        )
    return None


def bubbles(view: RanksView) -> str:
    """How long the stages of a pipeline wait for each other, why, and what would help."""
    known = [pace.bubbles for pace in view.paces if pace.bubbles]
    share = float(np.mean([each.share for each in known]))
    uneven = float(np.mean([each.imbalance_s for each in known]))
    ends = float(np.mean([each.fill_s + each.drain_s for each in known]))
    times = f"{format.milliseconds(ends)} ms to fill and drain, {format.milliseconds(uneven)} ms for slower"
    remedy = "more parallel.micro_batches" if ends > uneven else "stages that take equally long"
    waited = format.percent(share, 0)
    return f"Stages wait for each other {waited} of a step ({times} stages): {remedy} would help."


def ranks_tables(view: RanksView, most: int | None = None) -> list[Table]:
    """Pace, who waits for whom and traffic; of more than `most` ranks, those that count most."""
    shown = _shown(view, most)
    tables = [
        _paces(view, shown),
        _bubbles(view, shown),
        _for_whom(view, shown),
        _traffic(view, shown),
        _collectives(view),
        _gradients(view),
    ]
    return [table for table in tables if table]


def _shown(view: RanksView, most: int | None) -> list[int]:
    """The places of the ranks that the others wait for most; else of the slowest."""
    waiting = view.waiting
    weights = waiting.lost_s if waiting else [pace.step_s for pace in view.paces]
    places = sorted(range(len(view.paces)), key=lambda place: -weights[place])
    return sorted(places[:most])


def _title(text: str, shown: Sequence[int], view: RanksView) -> str:
    if len(shown) == len(view.paces):
        return text
    why = "most waited for" if view.waiting else "slowest"
    return f"{text}, the {len(shown)} {why} of {len(view.paces)}"


def _paces(view: RanksView, shown: Sequence[int]) -> Table:
    paces = [view.paces[place] for place in shown]
    decimals = format.digits(max(pace.step_s for pace in paces))

    def cells(write: Callable[[RankPace], str]) -> list[str]:
        return [write(pace) for pace in paces]

    shares = [
        share_cell(format.percent(pace.communication_share), pace.communication_share, "communication")
        for pace in paces
    ]
    columns: list[Cells] = [
        (Column(title="rank", words=True), cells(lambda pace: str(pace.rank))),
        (Column(title="device", words=True, priority=6, optional=True), cells(lambda pace: pace.device)),
        (Column(title="steps", priority=5, optional=True), cells(lambda pace: f"{pace.steps:,}")),
        (Column(title="mean step ms"), cells(lambda pace: format.milliseconds(pace.step_s, decimals))),
        (Column(title="communication", longest_bar=12), shares),
        (
            Column(title="samples/s", priority=4, optional=True),
            cells(lambda pace: format.rate(pace.samples_per_s)),
        ),
    ]
    if view.waiting:
        columns += _last(view.waiting, shown)
    if view.stale:
        columns += _ages(paces)
    return table_of("ranks", columns, title=_title("Pace of each rank", shown, view))


def _ages(paces: Sequence[RankPace]) -> list[Cells]:
    meaning = "staleness: updates of others since the parameters were read"
    return [
        (
            Column(title=title, meaning=meaning),
            [
                format.figures(getattr(pace.staleness, name), 3) if pace.staleness else format.UNKNOWN
                for pace in paces
            ],
        )
        for title, name in (("staleness", "mean"), ("90 % below", "p90"), ("at most", "largest"))
    ]


def _last(waiting: Waiting, shown: Sequence[int]) -> list[Cells]:
    last = [format.percent(waiting.last_in[place] / waiting.steps) for place in shown]
    lost = format.cells([waiting.lost_s[place] for place in shown], 2)
    return [
        (
            Column(
                title="waited for in",
                priority=1,
                meaning="waited for in: share of the steps in which it came last",
            ),
            last,
        ),
        (
            Column(
                title="others lose s",
                priority=2,
                meaning="others lose: seconds that all other ranks together waited for it",
            ),
            lost,
        ),
    ]


def _bubbles(view: RanksView, shown: Sequence[int]) -> Table:
    rows = [(view.paces[place].rank, bubbles) for place in shown if (bubbles := view.paces[place].bubbles)]

    def times(name: str) -> list[str]:
        return [format.milliseconds(getattr(bubbles, name)) for _, bubbles in rows]

    columns: list[Cells] = [
        (Column(title="rank", words=True), [str(rank) for rank, _ in rows]),
        (Column(title="fill ms", meaning="fill: until its first input is there"), times("fill_s")),
        (Column(title="imbalance ms", meaning="imbalance: for a slower stage"), times("imbalance_s")),
        (Column(title="drain ms", meaning="drain: for gradients, after its last forward"), times("drain_s")),
        (
            Column(title="of its time", longest_bar=12),
            [share_cell(format.percent(bubbles.share), bubbles.share, "idle") for _, bubbles in rows],
        ),
    ]
    title = _title("Bubbles: how long a stage waits for others in a step", shown, view)
    return table_of("ranks-bubbles", columns, title=title)


def _for_whom(view: RanksView, shown: Sequence[int]) -> Table:
    waiting = view.waiting
    if waiting is None:
        return table_of("ranks-waiting", [])
    by_loss = sorted(shown, key=lambda place: -waiting.lost_s[place])[:_MOST_COLUMNS]
    most = [place for place in by_loss if waiting.lost_s[place]]
    decimals = format.digits(max(map(max, waiting.for_whom_s)))
    columns: list[Cells] = [
        (Column(title="rank", words=True), [str(view.paces[place].rank) for place in shown])
    ]
    for whom in sorted(most):
        seconds = [waiting.for_whom_s[place][whom] for place in shown]
        cells = [
            "" if place == whom else format.milliseconds(each, decimals)
            for place, each in zip(shown, seconds, strict=True)
        ]
        priority = most.index(whom)  # the one most waited for is always shown
        columns.append((Column(title=f"for rank {view.paces[whom].rank}", priority=priority), cells))
    title = _title("Who waits for whom, in ms a step", shown, view)
    return table_of("ranks-waiting", columns, title=title)


def _traffic(view: RanksView, shown: Sequence[int]) -> Table:
    wanted = {view.paces[place].rank for place in shown}
    rows = [each for each in view.traffic if each.rank in wanted]
    columns: list[Cells] = [
        (Column(title="rank", words=True), [str(each.rank) for each in rows]),
        (Column(title="bytes"), [format.memory(each.bytes) for each in rows]),
        (Column(title="on the wire", priority=2), [format.memory(each.wire_bytes) for each in rows]),
        (Column(title="exposed ms"), [format.milliseconds(each.exposed_s) for each in rows]),
        (
            Column(title="overlapped ms", priority=1),
            [format.milliseconds(each.overlapped_s) for each in rows],
        ),
    ]
    return table_of("ranks-traffic", columns, title=_title("Exchanged by a rank in a step", shown, view))


def _collectives(view: RanksView) -> Table:
    rows = view.collectives
    whole = max((each.seconds or 0.0 for each in rows), default=0.0)
    decimals = format.digits(whole) if whole else None

    def times(name: str) -> list[str]:
        return [format.milliseconds(getattr(each, name), decimals) for each in rows]

    rates = [None if each.bandwidth is None else each.bandwidth * 8e-6 for each in rows]
    columns: list[Cells] = [
        (Column(title="collective", words=True), [format.name(each.kind) for each in rows]),
        (Column(title="ranks", priority=4, optional=True), [str(each.ranks) for each in rows]),
        (Column(title="calls"), [format.figures(each.calls, 3) for each in rows]),
        (Column(title="bytes"), [format.memory(each.bytes) for each in rows]),
        (
            Column(
                title="on the wire",
                priority=3,
                meaning="on the wire: what a rank sends or receives of that, at least",
            ),
            [format.memory(each.wire_bytes) for each in rows],
        ),
        (
            Column(title="ms", priority=1, meaning="ms: from the call to its result, late ranks included"),
            times("seconds"),
        ),
        (Column(title="exposed ms", meaning="exposed: the training waits for it"), times("exposed_s")),
        (Column(title="overlapped ms", priority=1), times("overlapped_s")),
        (
            Column(title="Mbit/s", priority=2, meaning="Mbit/s: on the wire while under way"),
            [format.UNKNOWN if each is None else format.figures(each, 3) for each in rates],
        ),
    ]
    return table_of("ranks-collectives", columns, title="Collectives of a rank in a step")


def _gradients(view: RanksView) -> Table:
    rows = view.buckets
    columns: list[Cells] = [
        (Column(title="bucket", words=True), [str(each.bucket) for each in rows]),
        (Column(title="bytes"), [format.memory(each.bytes) for each in rows]),
        (Column(title="ms"), [format.milliseconds(each.seconds) for each in rows]),
        (
            Column(title="exposed ms", meaning="exposed: after the last gradient; buckets overlap: no sum"),
            [format.milliseconds(each.exposed_s) for each in rows],
        ),
        (Column(title="gradients of", words=True, narrows=1), [_layers(each.layers) for each in rows]),
    ]
    return table_of("ranks-buckets", columns, title="Buckets of gradients, in the order they are exchanged")


def _layers(names: Sequence[str]) -> str:
    """`conv1 to fc2 (4 layers)`: those of a bucket follow each other."""
    if not names:
        return format.UNKNOWN
    if len(names) <= _NAMED:
        return ", ".join(map(format.name, names))
    return f"{format.name(names[0])} to {format.name(names[-1])} ({len(names)} layers)"
